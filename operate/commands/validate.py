"""`validate`: feeds a producer's records to the decoder of the projector, and says why it would refuse them. With
`--render` it prints the documents that readers would get.

Neither Redis nor Kafka is needed, except to read a topic: then no group is joined, and nothing is committed. Otherwise
a producer gives the records in lines: a JSON object, or a message key, a tab and a value.

    {"key": "…", "headers": {"ce_id": "…"}, "value": {…}}    the value as JSON, as a text, or null for a tombstone
    {"key": "…", "value_base64": "…"}                        a value that is not text
    <key><tab><value>                                        an empty value and `null` are tombstones

They become the same records as those that Kafka returns, so that the decoder cannot tell the difference.
"""

import argparse
import sys
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import orjson
from msgspec.structs import replace

from operate.explain.records import bad
from projector.errors import BadRecord, Refused, Unavailable
from projector.kafka.batches import Unpacker, bounded
from projector.kafka.reader import open_reader
from projector.kafka.record_batch import Headers, ReadHere
from projector.nesting import is_nested_deeper
from projector.record import MAGIC, Record, hint_of_value, unframed
from projector.reference import Reference
from projector.unknown_fields import unknown_fields, unknown_headers
from schemas import words
from schemas.envelopes import event_type, mode_of
from schemas.faults import Fault, unknown_type
from schemas.limits import MAX_LEVELS
from schemas.resources import BY_TOPIC, KINDS, LEAD, ORGANIZATION, Kind
from schemas.settings import ProjectorSettings

_FORMS = 'a JSON object with "key", "value" and, if it has any, "headers", or a key, a tab and a value'
_SEVERAL_LINES = Fault(
    "not_a_record",
    "line",
    _FORMS,
    found="its JSON cannot be read, because the line ends before it does: write each record in one line, as `jq -c .` "
    "does",
)
_WITHIN = b' \t"]}'
"""A line that follows the first one of JSON over several lines begins with one of these."""
Source = Mapping[str, str | int]
"""Where a record is: its file and line, or its topic, partition and offset."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments to the parser of the command."""
    command.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="lines of JSON objects with key, headers and value, or of a key, a tab and a value; - (the default) is "
        "standard input",
    )
    command.add_argument(
        "--strict", action="store_true", help="also refuse unknown fields, and a file or topic without any record"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument(
        "--render",
        action="store_true",
        help="print the document that readers would get of each good record, one JSON object a line; a lead with its "
        "contact if that is among the records. What is wrong is printed to standard error",
    )
    source = command.add_mutually_exclusive_group()
    source.add_argument(
        "--kind",
        choices=[kind.noun for kind in KINDS],
        help="what the records are about (default: what the type of each event says)",
    )
    source.add_argument("--topic", help="check the records that this topic of Kafka has now, instead of files")
    command.add_argument(
        "--from",
        dest="first",
        type=int,
        metavar="OFFSET",
        help="with --topic: the first offset in each partition; -100 is a hundred before the end",
    )


def check_arguments(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exit the process with code 2 if the arguments do not fit together."""
    if arguments.topic is not None and arguments.files:
        parser.error("name files or a --topic, not both")
    if arguments.topic is None and arguments.first is not None:
        parser.error("--from needs a --topic")


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line in JSON. Where a record was in Kafka is accepted, and does not matter."""

    key: str | None = None
    value: msgspec.Raw = msgspec.Raw(b"")
    value_base64: str | None = None
    headers: dict[str, str | None] | list[tuple[str, str | None]] = {}
    topic: str | None = None
    partition: int = 0
    offset: int = 0
    timestamp: int = 0


class _Typed(msgspec.Struct):
    type: str | None = None


_LINE, _TYPED = msgspec.json.Decoder(_Line), msgspec.json.Decoder(_Typed)
_NAMES = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Lines:
    """Turns lines into records. `kind` is what all of them are about; None if each event says it."""

    def __init__(self, settings: ProjectorSettings, kind: Kind | None) -> None:
        self._settings = settings
        self._kind = kind
        self._offset = -1
        self._unpacker = Unpacker({kind.topic: kind for kind in KINDS}, settings.max_record_bytes)

    def record(self, line: bytes) -> tuple[Record, Headers]:
        """Returns the record of a line, and all of its headers. Its offset is the number of lines before it. Raises
        BadRecord.
        """
        self._offset += 1
        if line.strip() == b"[":
            raise BadRecord(_SEVERAL_LINES)
        if line.lstrip().startswith(b"{"):
            key, value, headers, topic = _parse(line)
        else:
            before, tab, after = line.partition(b"\t")
            if not tab:
                raise _bad_line("it is neither of the two forms")
            key, value, headers, topic = before, None if after in (b"", b"null") else after, (), None
        kind = self._kind or (_kind(key, value, headers) if topic is None else _kind_of(topic, self._settings))
        if kind is None:
            raise BadRecord(Fault("not_valid", "topic", "one of the topics", _topics(self._settings)))
        sizes = [len(part or b"") for part in (key, value)] + [len(name) + len(word or b"") for name, word in headers]
        found = ReadHere(self._offset, 0, key, value, headers)
        return bounded((kind.topic, 0), found, sum(sizes), self._unpacker), headers


def _bad_line(why: str) -> BadRecord:
    return BadRecord(Fault("not_a_record", "line", _FORMS, found=why))


def _parse(line: bytes) -> tuple[bytes | None, bytes | None, Headers, str | None]:
    try:
        line.decode()  # of a Raw, only the form is checked
        if is_nested_deeper(line, MAX_LEVELS + 3):  # the line, the event, and `data`
            raise BadRecord(Fault("recursion", "line"))
        names = _NAMES.decode(line).keys()
        if {"specversion", "type"} <= names:
            raise _bad_line("this is an event without its message key")
        found = _LINE.decode(line)
        pairs = found.headers.items() if isinstance(found.headers, dict) else found.headers
        headers = tuple((name, None if word is None else word.encode()) for name, word in pairs)
        return None if found.key is None else found.key.encode(), _value(found), headers, found.topic
    except msgspec.ValidationError as error:
        raise _bad_line(str(error)) from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        if "truncated" in str(error):  # msgspec has no other way to say it
            raise BadRecord(_SEVERAL_LINES) from None
        raise _bad_line(f"its JSON cannot be read ({error})") from None


def _value(line: _Line) -> bytes | None:
    raw = bytes(line.value)
    if line.value_base64 is not None:
        try:
            return b64decode(line.value_base64, validate=True)
        except NotBase64:
            raise _bad_line("`value_base64` is not base64") from None
    if not raw:
        raise _bad_line("`value` is missing; null is a tombstone")
    if raw == b"null":
        return None
    return msgspec.json.decode(raw, type=str).encode() if raw.startswith(b'"') else raw


def _kind(key: bytes | None, value: bytes | None, headers: Headers) -> Kind:
    """Returns what a record is about: its event says it. Raises BadRecord.

    A tombstone says nothing, so it may be about anything that has such a message key. The same for a value that is not
    JSON: the decoder says why.
    """
    likely = LEAD if b":" in (key or b"") else ORGANIZATION
    names = dict(headers)
    binary = mode_of(names) == "binary"
    if binary:
        type_ = (names.get("ce_type") or b"").decode(errors="replace") or None
    elif value is None:
        return likely
    else:
        try:
            content = unframed(value) if value and value[0] == MAGIC else value
            if is_nested_deeper(content, MAX_LEVELS + 2):
                return likely
            type_ = _TYPED.decode(content).type
        except msgspec.ValidationError as error:
            if "$.type" not in str(error):  # it is not an object
                return likely
            raise BadRecord(unknown_type(binary=False, missing=False)) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, BadRecord):
            return likely
    for kind in KINDS:
        if type_ in (event_type(kind, "changed"), event_type(kind, "deleted")):
            return kind
    if value is None:
        return likely
    fault = unknown_type(binary=binary, missing=type_ is None)
    raise BadRecord(fault if binary else replace(fault, hint=hint_of_value(fault, value)))


class Findings:
    """What was found. Without `json`, each fault is printed when it is found; with `render`, to standard error, because
    the documents are the output.
    """

    def __init__(self, *, strict: bool, json: bool, render: bool) -> None:
        self._strict = strict
        self._json = json
        self._render = render
        self._output = sys.stderr if render else sys.stdout
        self._good: list[Record] = []
        self._contacts = Reference()
        self._faults: list[dict[str, object]] = []
        self.records = 0
        self._bad = 0
        self.good = True
        """Whether there was no fault."""

    def add(self, source: Source, record: Record, headers: Headers = ()) -> None:
        """Judge a record. `headers` are all that it has: those that are not read are not in the record."""
        faults = [error.fault] if (error := bad(record)) else []
        if self._strict:
            faults += [*unknown_headers(name for name, _ in headers), *unknown_fields(record)]
        self.judged(source, faults)
        if self._render and not faults:
            self._good.append(record)
            self._contacts.add(record)

    def judged(self, source: Source, faults: Sequence[Fault]) -> None:
        """Count a record, and print what is wrong with it."""
        self.records += 1
        self._bad += bool(faults)
        for fault in faults:
            self._add(source, fault)

    def _add(self, source: Source, fault: Fault) -> None:
        self.good = False
        if self._json:
            found = {"path": fault.path, "expected": fault.expected, "allowed": fault.allowed}
            self._faults.append({**source, **found, "reason": words.fault(fault)})
        else:
            self._output.write(f"{':'.join(map(str, source.values()))}: {words.fault(fault)}\n")

    def empty(self, source: Source) -> None:
        """Note that a file or a topic has no record. With `strict` that is a fault: those who check it expect some."""
        if self._strict:
            self._add(source, Fault("no_record", "line", "a record in each line"))

    def end(self) -> None:
        """Print the documents, then how many records were judged, or everything as JSON."""
        # A contact may come after its leads, so this is the first moment at which all documents are known.
        for record in self._good:
            if document := self._contacts.document_of(record):
                sys.stdout.write(document.decode() + "\n")
        if self._json:
            found = {"records": self.records, "bad": self._bad, "faults": self._faults}
            self._output.write(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n")
        else:
            verdict = f"{self._bad:,} bad" if self._bad else "all good" if self.records else "nothing to check"
            self._output.write(f"{self.records:,} record{'' if self.records == 1 else 's'}: {verdict}\n")


async def run_validate(arguments: argparse.Namespace, settings: ProjectorSettings) -> int:
    """`validate`: returns 0 if all records are good, 1 if some are bad, and 2 if they cannot be read.

    With `--strict`, a file or a topic without any record counts as bad.
    """
    findings = Findings(strict=arguments.strict, json=arguments.json, render=arguments.render)
    try:
        if arguments.topic is None:
            kind = next((kind for kind in KINDS if kind.noun == arguments.kind), None)
            _read_files(arguments.files or ["-"], Lines(settings, kind), findings)
        else:
            async for source, record in _of_topic(settings, arguments.topic, arguments.first):
                findings.add(source, record)
            if not findings.records:
                findings.empty({"topic": arguments.topic})
    except BrokenPipeError:  # of the output: `main` ends the program
        raise
    except OSError as error:
        sys.stderr.write(f"{error.filename} cannot be read: {error.strerror}\n")
        return 2
    except (Refused, Unavailable) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    findings.end()
    return 0 if findings.good else 1


def _read_files(names: Sequence[str], lines: Lines, findings: Findings) -> None:
    """Raises OSError if a file cannot be read."""
    for name in names:
        before, several = findings.records, False
        for number, line in _lines(name):
            if several and line[0] in _WITHIN:
                continue
            several = False
            source: Source = {"file": name, "line": number}
            try:
                findings.add(source, *lines.record(line))
            except BadRecord as error:
                findings.judged(source, [error.fault])
                several = error.fault is _SEVERAL_LINES
        if findings.records == before:
            findings.empty({"file": name})


def _lines(name: str) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file that are not empty, with their numbers."""
    with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line.rstrip(b"\r\n")


async def _of_topic(settings: ProjectorSettings, topic: str, first: int | None) -> AsyncIterator[tuple[Source, Record]]:
    """Yields the records that a topic has now. `first` is an offset; if it is negative, it counts from the end.

    Raises Refused and Unavailable.
    """
    kind = _kind_of(topic, settings)
    if kind is None or not topic.startswith(settings.topic_prefix):
        raise Refused(f"{topic} is not a topic that Leadview reads: name one of {', '.join(_topics(settings))}")
    async with open_reader(settings, [kind]) as reader:
        ranges = await reader.range(await reader.existing_partitions())
        if first is not None:
            ranges = {at: (max(begin, end + first if first < 0 else first), end) for at, (begin, end) in ranges.items()}
        async for records in reader.read(ranges):
            for record in records:
                yield {"topic": topic, "partition": record.partition, "offset": record.offset}, record


def _kind_of(topic: str, settings: ProjectorSettings) -> Kind | None:
    """Returns what the records of a topic are about. In a line its name may lack the prefix."""
    return BY_TOPIC.get(topic.removeprefix(settings.topic_prefix))


def _topics(settings: ProjectorSettings) -> tuple[str, ...]:
    return tuple(f"{settings.topic_prefix}{kind.topic}" for kind in KINDS)
