"""Record batches at the level of the protocol: generated, mutated and cut off, and read by the projector's own code.

For any sequence of batches, whatever is in them: nothing is raised, offsets only rise, every offset is passed, the
records of the batches that are intact are all there, and what is bad says so in a few words.
"""

import struct
import time
from collections.abc import Callable
from itertools import chain, pairwise, takewhile
from random import Random

from projector.dead_letter import DeadLetter
from projector.errors import BadRecord
from projector.interpret import interpret
from projector.kafka.batches import FetchedRecords, Unpacker
from projector.kafka.record_batch import RecordBatch, whole_batches
from projector.record import Partition, Record
from schemas.limits import MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_RECORD_BYTES
from schemas.resources import LEAD
from tests.harness import crm, raw_batches
from tests.harness.raw_batches import GZIP, LZ4, NONE, SNAPPY, ZSTD, Header, batch

TOPIC = "crm.leads"
MAX_SECONDS = 2.0
"""For a few batches of up to 16 MiB, on a slow machine; what was found here first took minutes."""
_RARE = 0.02
"""The share of damaged batches that are large, because these take a hundred times as long."""
_CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
_GOOD = (crm.lead(), crm.binary(crm.lead()), crm.framed(crm.lead()), crm.tombstone(LEAD), crm.deleted(LEAD, 2))
_VARINTS = (0, 1, -1, 2, -2, 63, 64, -64, 2**14, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63))
_NAMES = (
    b"ce_id",
    b"ce_type",
    b"ce_specversion",
    b"content-type",
    b"ce_time",
    b"",
    b"\xff",
    b"\xed\xa0\x80",
    b"x" * 200,
)
_FIELDS_AT = ((0, ">q"), (8, ">i"), (16, ">b"), (21, ">h"), (23, ">i"), (27, ">q"), (35, ">q"), (43, ">q"), (57, ">i"))


def fuzz(seed: int, seconds: float) -> str:
    random = Random(seed)
    until = time.monotonic() + seconds
    took, records, bad = list[float](), 0, 0
    while time.monotonic() < until or not took:
        data, intact = _stream(random)
        started = time.thread_time()
        found = _check(data, intact)
        took.append(time.thread_time() - started)
        records += len(found)
        bad += sum(bool(record.problem) for record in found)
    assert max(took) < MAX_SECONDS, f"a few batches took {max(took):.1f} s"
    counts = f"{len(took):,} streams of batches, {records:,} records of which {bad:,} are bad"
    return f"{counts}, the slowest stream {max(took):.2f} s"


def _stream(random: Random) -> tuple[bytes, list[tuple[int, int]]]:
    """Returns some batches, of which some are damaged, and the range of offsets of each that is not."""
    data, intact, base = b"", [], random.choice((0, 7, 2**40))
    for _ in range(random.randint(1, 5)):
        count = random.randint(1, 6)
        if random.random() < 0.4:
            messages = random.choices(_GOOD, k=count)
            records = [
                raw_batches.record(
                    offset, message.key, message.value, [(name.encode(), text) for name, text in message.headers]
                )
                for offset, message in enumerate(messages)
            ]
            data += batch(records, codec=random.choice(_CODECS), base=base)
            intact.append((base, base + count))
        else:
            damage = _large if random.random() < _RARE else random.choice(_DAMAGE)
            data += damage(random, count, base)
        base += count
    return data, intact


def _check(data: bytes, intact: list[tuple[int, int]]) -> list[Record]:
    """Read a stream as a consumer does: again from where it ended, until nothing is left."""
    unpacker, first, found, attempts = Unpacker({TOPIC: LEAD}, MAX_RECORD_BYTES), 0, list[Record](), 0
    while attempts < 3:  # a wrong checksum is tried again, and nothing else is
        # A broker returns whole batches, from the one on that has this offset.
        before = takewhile(lambda content: RecordBatch(content).last < first, whole_batches(data))  # noqa: B023
        data = data[sum(map(len, before)) :]
        records = FetchedRecords(Partition(TOPIC, 0), data, (), first, unpacker)
        found += chain.from_iterable(records.pieces())
        attempts = attempts + 1 if records.next_offset == first else 0
        first = records.next_offset
    for record, following in pairwise(found):
        # That records are missing is said of the offset of the last record, if the batch has no other one left.
        is_said = following.problem is not None and following.offset == record.offset
        assert record.next_offset <= following.offset or is_said
    good = {record.offset for record in found if not record.problem}
    for begin, end in intact:
        assert good.issuperset(range(begin, end)), f"the records {begin} to {end} are intact, and not there"
    for record in found:
        _check_record(record)
    return found


def _check_record(record: Record) -> None:
    assert len(record.key or b"") <= MAX_KEY_BYTES
    assert len(record.value or b"") <= MAX_RECORD_BYTES
    assert 0 <= record.timestamp < 2**48
    fault = None
    try:
        interpret(record)
    except BadRecord as error:
        fault = error.fault
    assert fault is None or fault.kind != "defect", fault
    assert fault is None or len(DeadLetter.of(record, fault).reason) <= 1000
    assert fault or not record.problem


def _field_of_the_header(random: Random, count: int, base: int) -> bytes:
    """The length, the magic, the attributes, the last offset, a time, the producer or the count is another."""
    data = bytearray(batch(_records(random, count), codec=random.choice(_CODECS), base=base))
    at, form = random.choice(_FIELDS_AT[3:])
    size = struct.calcsize(form)
    data[at : at + size] = random.choice(
        (b"\xff" * size, bytes(size), random.randbytes(size), b"\x7f" + b"\xff" * (size - 1))
    )
    struct.pack_into(">i", data, 23, count - 1)  # otherwise the offsets of the next batches are not its own
    return _with_checksum(data)


def _bytes_of_records(random: Random, count: int, base: int) -> bytes:
    """Some are inserted, replaced or missing, or the rest is."""
    content = b"".join(_records(random, count))
    for _ in range(random.randint(1, 5)):
        at = random.randrange(len(content) + 1)
        end = random.choice((at, at + 1, at + random.randint(1, 9), len(content)))
        other = random.choice((b"", random.randbytes(1), raw_batches.varint(random.choice(_VARINTS))))
        content = content[:at] + other + content[end:]
    codec = random.choice(_CODECS)
    return batch([b""] * count, codec=codec, compressed=raw_batches.compress(codec, content), base=base)


def _any_bytes(random: Random, count: int, base: int) -> bytes:
    content = random.randbytes(random.choice((0, 1, 10, 200, 5000)))
    return batch([b""] * count, attributes=random.randrange(8), compressed=content, base=base)


def _compressed_bytes(random: Random, count: int, base: int) -> bytes:
    """Bytes of a compressed batch are others, or it is cut off."""
    data = bytearray(batch(_records(random, count), codec=random.choice(_CODECS[1:]), base=base))
    for _ in range(random.randint(1, 4)):
        data[random.randrange(61, len(data))] = random.randrange(256)
    del data[random.randint(62, len(data)) :]
    struct.pack_into(">i", data, 8, len(data) - 12)
    return _with_checksum(data)


def _wrong_checksum(random: Random, count: int, base: int) -> bytes:
    data = bytearray(batch(_records(random, count), base=base))
    data[random.randrange(61, len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def _control(random: Random, count: int, base: int) -> bytes:
    content = random.choice((b"", b"\x02\x00", random.randbytes(9), raw_batches.record(0, random.randbytes(4), None)))
    attributes = random.choice((0b100000, 0b110000))
    return batch([content] * count, attributes=attributes, producer=random.choice((-1, 7)), base=base)


def _large(random: Random, count: int, base: int) -> bytes:
    """A field, the headers or the batch are at a limit or beyond it."""
    size = random.choice((199, 200, 201, 65_536, MAX_RECORD_BYTES, MAX_RECORD_BYTES + 1))
    if random.random() < 0.05:
        size = random.choice((MAX_BATCH_BYTES - 100, MAX_BATCH_BYTES, 3 * MAX_BATCH_BYTES))
    many = [(random.choice(_NAMES), None)] * random.choice((99, 100, 101, 5000))
    records = [
        random.choice(
            (
                raw_batches.record(offset, b"k" * size, b"v"),
                raw_batches.record(offset, b"k", b"v" * size),
                raw_batches.record(offset, b"k", b"v", [(b"h", b"v" * size)]),
                raw_batches.record(offset, b"k", b"v" * random.choice((1, 9000)), many),
            )
        )
        for offset in range(count if size < MAX_BATCH_BYTES // 2 else 1)
    ]
    records += [raw_batches.record(offset, b"k", b"v") for offset in range(len(records), count)]
    return batch(records, codec=random.choice((ZSTD, LZ4)), base=base)


def _records(random: Random, count: int) -> list[bytes]:
    return [
        raw_batches.record(
            random.choice((offset, offset, offset, *_VARINTS)) if random.random() < 0.1 else offset,
            random.choice((None, b"", b"k", crm.lead().key, random.randbytes(9))),
            random.choice((None, b"", b"{}", crm.lead().value, random.randbytes(99))),
            _headers(random),
            random.choice((0, 1, *_VARINTS)) if random.random() < 0.1 else 0,
        )
        for offset in range(count)
    ]


def _headers(random: Random) -> list[Header]:
    values = (None, b"", b"1.0", b"\xff", b"crm.lead.changed", b"application/json", random.randbytes(30))
    return [(random.choice(_NAMES), random.choice(values)) for _ in range(random.choice((0, 0, 1, 3, 8)))]


def _with_checksum(data: bytearray) -> bytes:
    struct.pack_into(">I", data, 17, raw_batches.checksum(bytes(data[21:])))
    return bytes(data)


_DAMAGE: tuple[Callable[[Random, int, int], bytes], ...] = (
    *(_field_of_the_header, _bytes_of_records, _bytes_of_records, _any_bytes, _compressed_bytes),
    *(_wrong_checksum, _control),
)
