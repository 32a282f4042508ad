"""For each expression, decoder and loop that reads what others send: the input of n bytes that takes it longest.

`python -m tests.harness.worst_inputs <n>` runs each of them once, for a program that counts (`counted`).
"""

import asyncio
import gc
import gzip
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cramjam
import msgspec

from api import request, waiting
from api.edge import _EMPTY_LINES, MAX_HEAD_BYTES, Edge, is_host, normalized
from api.errors import ApiError
from api.request import client_address
from operate.commands.validate import Lines
from operate.console.pages import page
from operate.explain.explainer import question
from projector import change, unknown_fields
from projector.dead_letter import DeadLetter
from projector.errors import BadRecord
from projector.interpret import in_parts, interpret
from projector.kafka.codecs import decompressed
from projector.kafka.record_batch import RecordBatch, whole_batches
from projector.kafka.sign_in import _CODE, _TOKEN
from projector.record import Record, entity_key
from projector.redis.calls import compressed, of_intents
from projector.spelling import usual_time
from schemas import compression, names, resources, words
from schemas.faults import fault_of
from schemas.settings import ProjectorSettings
from tests.harness import crm, raw_batches
from tests.harness.crm import Message
from tests.harness.generations import ids
from tests.harness.programs import printed_by


class Worst(msgspec.Struct, frozen=True):
    """`make` returns the input of about n bytes; `run` is what reads it. `least` is the smallest n that is counted:
    where a limit cuts the input off, 16 times as much must be within it.
    """

    name: str
    make: Callable[[int], Any]
    run: Callable[[Any], object]
    least: int = 16_384


def filled(part: bytes, size: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """Returns JSON of about so many bytes: this part again and again, in lists of a thousand."""
    thousand = opening + b",".join([part] * 1000) + closing
    whole, rest = divmod(size, len(thousand) + 1)
    last = opening + b",".join([part] * max(1, rest // (len(part) + 1))) + closing
    return b"[" + b",".join([thousand] * whole + [last]) + b"]"


def keyed(size: int, *values: bytes, name: Callable[[int], bytes] = b"%x".__mod__) -> bytes:
    """Returns an object of about so many bytes. No name in it comes twice; the last of the values comes again."""
    parts: list[bytes] = []
    while size > 0:
        parts.append(b'"%b":%b' % (name(len(parts)), values[min(len(parts), len(values) - 1)]))
        size -= len(parts[-1]) + 1
    return b"{" + b",".join(parts) + b"}"


def named(size: int, *values: bytes) -> bytes:
    """The same with names of one character each, from all over the table: they take the longest for their size."""
    # 7919 is prime, so all of them differ.
    return keyed(size, *values, name=lambda number: chr(0xE000 + number * 7919 % 0x100000).encode())


def data_first(message: Message) -> Message:
    """Returns the message with `data` before the type, so that it is passed over once before it is read."""
    start, _, rest = (message.value or b"").partition(b',"data":')
    return msgspec.structs.replace(message, value=b'{"data":' + rest[:-1] + b"," + start[1:] + b"}")


def records() -> Iterator[tuple[str, Callable[[int], Message]]]:
    """Yields what a record may hold that takes long to read: the shape of its JSON, and a place for it."""
    attribution, unknown = crm.lead(attribution={"a": "PLACE"}), crm.lead(unknown="PLACE")
    whole, stage = Message(resources.LEAD, crm.lead().key, b'"PLACE"'), crm.lead(stage="PLACE")
    custom, binary = crm.contact(custom_fields="PLACE"), crm.binary(crm.lead())
    shapes: dict[str, Callable[[int], bytes]] = {
        "texts that never end": lambda n: b"[" * 10_001 + b'\\"' * (n // 2),
        "brackets in texts": lambda n: filled(b'"["', n),
        "brackets behind a backslash": lambda n: filled(b'"\\\\","\\"["', n),
        "opening brackets": lambda n: b"[" * n,
        "nested pairs": lambda n: b"[1" + b",[[[[1]]]]" * min(n // 10, 2_400) + b"," + b"1," * (n // 4) + b"1]",
        "opening objects": lambda n: b'{"":' * (n // 4),
        "opening brackets and quotes": lambda n: b'["' * (n // 2),
        "quotes": lambda n: b'"' * n,
        "backslashes": lambda n: b'"' + b"\\" * n,
        "spaces": lambda n: b" " * n + b"1",
        "commas and spaces": lambda n: b"[" + b", " * (n // 2),
        "a comma and spaces": lambda n: b"[1," + b" " * n + b"x",
        "digits": lambda n: b"9" * n,
        "digits and dots": lambda n: b"[" + b"1." * (n // 2),
        "letters of exponents": lambda n: b"[" + b"e" * n,
        "integers": lambda n: filled(b"1", n),
        "integers of 18 digits": lambda n: filled(b"9" * 18, n),
        "integers of 4,300 digits": lambda n: filled(b"9" * 4300, n),
        "fractions": lambda n: filled(b"0.12345678901234567", n),
        "extreme numbers": lambda n: filled(b"1.9999999999999999e307", n),
        "extreme numbers in texts": lambda n: filled(b'"e307"', n),
        "long numbers": lambda n: filled(b"9" * 308 + b".5", n),
        "numbers that are hard to round": lambda n: filled(b"1e23", n),
        "objects and arrays": lambda n: filled(b"[]", n),
        "nested arrays": lambda n: filled(b"[" * 90 + b"]" * 90, n),
        "escaped characters": lambda n: b'"' + b"\\u0001" * (n // 6) + b'"',
        "escaped quotes": lambda n: b'"' + b'\\"' * (n // 2) + b'"',
        "surrogates": lambda n: b'"' + b"\\ud83d\\ude00" * (n // 12) + b'"',
        "texts of one character": lambda n: filled('"\N{GRINNING FACE}"'.encode(), n),
        "short texts": lambda n: filled('"\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}"'.encode(), n),
        "quotes of both kinds": lambda n: b'"' + b"'\\\"" * (n // 3) + b'"',
        "bad UTF-8 at the end": lambda n: b'"' + b"a" * n + b'\xff"',
        "the names of many fields": lambda n: keyed(n, b"1"),
        "the short names of many fields": lambda n: named(n, b"1"),
        "colons in texts": lambda n: filled(b'":"', n),
        "one name again and again": lambda n: b"{" + b",".join([b'"a":1'] * (n // 6)) + b"}",
        "the envelope of Kafka Connect": lambda n: b'{"schema":' + b"[" * (n // 2) + b',"payload":' + b"[" * (n // 2),
    }
    for shape, make in shapes.items():
        for place, message in (
            ("attribution", attribution),
            ("an unknown field", unknown),
            ("the whole value", whole),
            *([("the stage", stage)] if "quotes" in shape else []),
            *([("custom fields", custom)] if "names" in shape else []),
        ):
            yield f"{shape}: {place}", lambda n, message=message, make=make: crm.within(message, make(n))  # type: ignore[misc]
    for shape in ("the names of many fields", "integers", "texts that never end", "spaces"):
        yield f"{shape}, before the type", lambda n, make=shapes[shape]: data_first(crm.within(attribution, make(n)))  # type: ignore[misc]
        yield (
            f"{shape}, in binary mode",
            lambda n, make=shapes[shape]: _binary(crm.within(attribution, make(n))),  # type: ignore[misc]
        )
        yield (
            f"{shape}, in the frame of a registry",
            lambda n, make=shapes[shape]: crm.framed(crm.within(unknown, make(n))),  # type: ignore[misc]
        )
    yield "every limit at once", lambda n: data_first(crm.within(attribution, _every_limit(n)))
    yield "a content type", lambda n: crm.with_headers(binary, content__type=b"a/" + b"+" * (min(n, 60_000)))
    yield (
        "a content type of spaces",
        lambda n: crm.with_headers(binary, content__type=b"a/json" + b" " * min(n, 60_000) + b"x"),
    )
    yield "a header with a time", lambda n: crm.with_headers(binary, ce_time=b"2" * min(n, 60_000))


def _every_limit(size: int) -> bytes:
    """Returns as much of everything as is allowed, of a smaller size as much less of each, and integers for the rest. In
    a text, there is too much of it, so that it is counted once more.
    """
    share = min(1.0, size / 900_000)
    kinds = (b"1.9999999999999999e307", 95), (b"1e23", 4800), (b"{}", 9000), (b"1", 5900)
    values = [value for value, count in kinds for _ in range(int(count * share))]
    found = named(sum(len(value) + 8 for value in values), *values)[:-1] + b',"":"' + b"[" * int(10_001 * share)
    found += b'","texts":' + filled('"\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}"'.encode(), int(395_000 * share))
    return found + b',"numbers":' + filled(b"1", max(1, size - len(found) - 12)) + b"}"


def _binary(message: Message) -> Message:
    data = (message.value or b"").partition(b',"data":')[2][:-1]
    return msgspec.structs.replace(crm.binary(crm.lead()), value=data)


def applied(message: Message) -> None:
    """Do with a record what a projector does before it is sent to Redis, and what it does if the record is bad."""
    record = message.record()
    change.version_of(record)
    try:
        intent, _ = interpret(record)
    except BadRecord as error:
        msgspec.json.encode(DeadLetter.of(record, error.fault, error.version))
        words.fault(error.fault)
        return
    list(of_intents([compressed(intent)], ids(1, 2)))


def looked_at(message: Message) -> None:
    """Look for unknown fields, as `validate --strict` does and as a projector does in a sample."""
    record = message.record()
    unknown_fields.has_unknown_fields(record)
    unknown_fields.unknown_fields(record)


PLAIN = crm.within(crm.lead(attribution={"a": "PLACE"}), filled(b"1", 980_000))
"""A record of nearly 1 MiB that is good, and not made to be the worst: half a million integers."""


def _unpacked(data: bytes) -> None:
    for content in whole_batches(data):
        for piece, sizes in RecordBatch(content).records():
            assert len(piece) == len(sizes)


def _batch(content: bytes, records: int = 1) -> bytes:
    return raw_batches.batch([b""] * records, compressed=content)


def _quietly(run: Callable[[Any], object], *errors: type[Exception]) -> Callable[[Any], object]:
    def quiet(given: Any) -> None:
        with suppress(*errors):
            run(given)

    return quiet


def _decompressed(codec: int) -> Callable[[bytes], object]:
    return _quietly(lambda data: decompressed(codec, memoryview(data)), Exception)


def _taken(head: bytes) -> None:
    loop, server = asyncio.new_event_loop(), SimpleNamespace(loaded_app=None, connections=set(), tasks=set())
    edge = Edge(server, server, {"worker": None}, loop)  # type: ignore[arg-type]  # this is all that a head needs
    for at in range(min(len(head), MAX_HEAD_BYTES - 1)):
        edge.data_received(head[at : at + 1])
    edge.connection_lost(None)
    loop.close()


def _lines(line: bytes) -> None:
    Lines(ProjectorSettings(), None).record(line)


def _address(header: bytes) -> None:
    client_address(request.Request(b"", "GET", b"/", {b"x-forwarded-for": header}, "127.0.0.1"), ())


def _stored(text: bytes) -> None:
    compression.unpacked(compression.packed(text))


_RUNS, _MOST = 30, 40
_RECORD = 131_072
"""From here on a limit decides how the value is looked at, so the way is the same for more."""
_FEW_TEXTS = 16_384
"""For very short texts, that limit is above half a MiB, and 8 times as much must be below it."""
_TEXT = 60_000
"""zstd compresses texts of more than 128 KiB, and those of more than 256 KiB, in other ways."""
_HEADER = 1024
"""A head has at most 16 KiB."""


def _allowed(names: bytes) -> None:
    asked = {b"access-control-request-headers": names}
    request.answer_other_method(request.Request(b"id", "OPTIONS", headers=asked))


OF_RECORDS = tuple(
    Worst(name, make, applied, _FEW_TEXTS if name.startswith(("short texts", "texts of one")) else _RECORD)
    for name, make in records()
)
# ruff: noqa: E501 - a table is read in lines
WORST: tuple[Worst, ...] = (
    *OF_RECORDS,
    *(Worst(f"unknown fields: {name}", make, looked_at, _RECORD) for name, make in records() if "names of many" in name),
    Worst("a message key", lambda n: Message(resources.LEAD, b"a" * n, b"{}"), _quietly(lambda m: entity_key(m.record()), BadRecord)),
    Worst("a batch of small records", lambda n: _batch(raw_batches.record(0, b"", None) * (n // 8)), _unpacked),
    Worst("a batch of empty records", lambda n: _batch(b"\0" * n), _unpacked),
    Worst("a batch of wrong lengths", lambda n: _batch(b"\xff" * n), _unpacked),
    Worst("a record of headers", lambda n: _batch(raw_batches.record(0, b"k", b"v", ((b"a", b"b"),) * (n // 4))), _unpacked),
    Worst("batches without records", lambda n: _batch(b"", 0) * (n // 61), _unpacked),
    Worst("gzip", lambda n: gzip.compress(bytes(n * 16)), _decompressed(1)),
    Worst("members of gzip", lambda n: gzip.compress(b"") * (n // 20), _decompressed(1)),
    Worst("gzip that is cut off", lambda n: gzip.compress(os.urandom(n))[:-9], _decompressed(1)),
    Worst("blocks of snappy", lambda n: b"\x82SNAPPY\0" + bytes(8) + b"\0\0\0\1\0" * (n // 5), _decompressed(2)),
    Worst("snappy", lambda n: bytes(cramjam.snappy.compress_raw(bytes(n * 16))), _decompressed(2)),
    Worst("lz4 that is corrupt", lambda n: bytes(cramjam.lz4.compress(os.urandom(n)))[:-9], _decompressed(3)),
    Worst("zstd", lambda n: bytes(cramjam.zstd.compress(os.urandom(n // 2).hex().encode())), _decompressed(4)),
    Worst("packed texts", lambda n: os.urandom(n // 2).hex().encode(), _stored, _TEXT),
    Worst("a line for `validate`", lambda n: b'{"key":"k","value":' + b"[" * n, _quietly(_lines, BadRecord)),
    Worst("a line with tabs", lambda n: b"\t" * n, _quietly(_lines, BadRecord)),
    Worst("a fault", lambda n: "`$.data." + " - at `$" * (n // 8), lambda text: fault_of(text, resources.LEAD, binary=False)),
    Worst("a fault without a place", lambda n: "Expected `" + ", got `" * (n // 7), lambda text: fault_of(text, resources.LEAD, binary=True)),
    Worst("a message of msgspec", lambda n: "Invalid '" + "\"'" * (n // 2) + '"', lambda text: change._VALUE.sub("", text)),
    Worst("the name of a key in Redis", lambda n: b"{" * n, names.tag),
    Worst("a name of a document", lambda n: b"lv:{" + b"0" * n, lambda name: (names.IN_GENERATION.match(name), names.OF_ACCESS.match(name))),
    Worst("a token", lambda n: "~" * n + " ", lambda text: (_TOKEN.fullmatch(text), _CODE.fullmatch(text))),
    Worst("a question", lambda n: "0-" * (n // 2), question),
    Worst("a question with colons", lambda n: "0:" * (n // 2), question),
    Worst("the name of a page", lambda n: "a-" * (n // 2) + ".m", page),
    Worst("empty lines before a request", lambda n: b"\r\n" * (n // 2) + b"x", _EMPTY_LINES.match),
    Worst("a head in parts of a byte", lambda n: b"GET /" + b"a" * n, _taken, _HEADER),
    Worst("a host", lambda n: b"%41" * (n // 3) + b"%", is_host, _HEADER),
    Worst("a host in brackets", lambda n: b"[" + b":" * n, is_host, _HEADER),
    Worst("an address in brackets", lambda n: b"[" + b"0:" * (n // 2) + b"]", is_host, _HEADER),
    Worst("a path", lambda n: b"%41%" * (n // 4), normalized, _HEADER),
    Worst("entity tags", lambda n: b'"' * n + b"x", request.etags_to_match, _HEADER),
    Worst("entity tags of ours", lambda n: (b'"' + b"0" * 24 + b'",') * (n // 27) + b'"', request.etags_to_match, _HEADER),
    Worst("entity tags with codings", lambda n: b'"' + b"--gzi" * (n // 5) + b'"', request.etags_to_match, _HEADER),
    Worst("preferences", lambda n: b'"\\",' * (n // 4), waiting.wait_of, _HEADER),
    Worst("seconds to wait", lambda n: b'wait="' + b"0" * n, waiting.wait_of, _HEADER),
    Worst("names of headers", lambda n: b"a," * (n // 2), _allowed, _HEADER),
    Worst("a time with many digits", lambda n: "9999-12-31T23:59:59." + "9" * n, usual_time),
    Worst("an API key", lambda n: b"Bearer " + b" " * n + b"lv_live_", _quietly(request.credentials, ApiError), _HEADER),
    Worst("a request id", lambda n: b"a" * n, request.request_id, _HEADER),
    Worst("addresses of proxies", lambda n: b"," * n, _address, _HEADER),
)  # fmt: skip


def slow(worst: Worst) -> str:
    """Returns an empty text if the input of this size is read in a time that is in proportion to it.

    It compares n with 8 n in the time of this thread, and the least of several runs: 64 times for what is quadratic, 8
    for what is linear, up to 20 if it no longer fits into the caches. So neither the speed of the machine nor what else
    it does decides.
    """
    small, large = worst.make(worst.least), worst.make(8 * worst.least)
    least = [float("inf"), float("inf")]
    for number in range(_RUNS):
        for place, given in enumerate((small, large)):
            least[place] = min(least[place], seconds(worst, given))
        if least[1] < _MOST * least[0]:
            return ""
        if number and least[1] > 2 * _MOST * least[0]:
            break
    return f"{worst.name}: {least[1] / least[0]:.1f} times as long for 8 times as much"


def seconds(worst: Worst, given: Any) -> float:
    """Returns the time of this thread for one run."""
    started = time.thread_time()
    worst.run(given)
    return time.thread_time() - started


def longest_part(record: Record) -> float:
    """Returns the time of this thread for the longest part of reading a record, the compression of its document included."""
    longest, started = 0.0, time.thread_time()
    for _ in _parts(record):
        longest = max(longest, time.thread_time() - started)
        started = time.thread_time()
    return longest


def _parts(record: Record) -> Iterator[None]:
    """Yields behind each part."""
    with suppress(BadRecord):
        intent, _ = yield from in_parts(record)
        yield
        list(of_intents([compressed(intent)], ids(1, 2)))
    yield


def counted(names_of: Sequence[str], factor: int) -> dict[str, int]:
    """Returns the instructions that each of these takes, with inputs of `factor` times the least size. Needs valgrind."""
    with tempfile.TemporaryDirectory() as folder:
        counting = ["nice", "valgrind", "--tool=callgrind", "--dump-after=getsid", f"--callgrind-out-file={folder}/out"]
        program = [sys.executable, "-m", "tests.harness.worst_inputs", str(factor), *names_of]
        printed_by([*counting, *program], environment=os.environ | {"PYTHONHASHSEED": "0"})
        # A dump each time the program asks for its session: before the first input, and behind each.
        found = [
            int(re.findall(r"^totals: (\d+)", Path(f"{folder}/out.{number}").read_text(), re.MULTILINE)[0])
            for number in range(2, len(names_of) + 2)
        ]
    return dict(zip(names_of, found, strict=True))


def main(words: Sequence[str]) -> None:
    """Run these inputs, in a size of so many times the least one, with a call of getsid before and behind each."""
    wanted = {worst.name: worst for worst in WORST}
    prepared = [(wanted[name], wanted[name].make(int(words[0]) * wanted[name].least)) for name in words[1:]]
    for worst, _ in prepared:
        worst.run(worst.make(64))  # what is imported and cached at its first use
    gc.disable()
    os.getsid(0)
    for worst, given in prepared:
        worst.run(given)
        os.getsid(0)


if __name__ == "__main__":
    main(sys.argv[1:])
