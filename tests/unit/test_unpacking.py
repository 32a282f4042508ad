"""Record batches of every kind are unpacked, or what is wrong with them is said. Nothing that is sent is an error."""

import tracemalloc
from collections.abc import Sequence
from random import Random

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException

from projector.kafka import client  # noqa: F401 - installs what is tested here
from projector.kafka.batches import Batches
from projector.kafka.unpacking import BoundedRecords, Unpacker
from projector.record import Record
from schemas.limits import MAX_BATCH_BYTES, MAX_HEADER_BYTES, MAX_POLL_BYTES, MAX_RECORD_BYTES
from schemas.resources import LEAD
from tests.harness.raw_batches import GZIP, LZ4, NONE, SNAPPY, ZSTD, Header, batch, record

TOPIC = "crm.leads"
CODECS = [NONE, GZIP, SNAPPY, LZ4, ZSTD]
READ_COMMITTED = 1
THREE = [record(offset, b"key %d" % offset, b"value", [(b"a", None), (b"b", b"x")]) for offset in range(3)]


def unpacker() -> Unpacker:
    return Unpacker({TOPIC: LEAD}, MAX_RECORD_BYTES)


def unpack(data: bytes, first: int = 0, by: Unpacker | None = None) -> tuple[list[Record], int]:
    """Returns the records, and from where the next fetch begins."""
    found = BoundedRecords(
        TopicPartition(TOPIC, 0), Batches(data), None, first, None, by or unpacker(), True, READ_COMMITTED
    )
    return list(found), found.next_fetch_offset


def test_the_consumers_use_it() -> None:
    """If a new version of aiokafka has other names, this fails."""
    assert fetcher.PartitionRecords is BoundedRecords
    assert fetcher.MemoryRecords is Batches


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("first", [0, 1])
def test_good_records(codec: int, first: int) -> None:
    records, after = unpack(batch(THREE, codec=codec) + batch(THREE, codec=codec, base=3), first)
    assert [record.offset for record in records] == list(range(first, 6))
    assert records[-1] == Record(TOPIC, 0, 5, 0, b"key 2", b"value", (("a", None), ("b", b"x")), LEAD)
    assert after == 6


def test_an_incomplete_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    data = batch(THREE)
    assert unpack(data + batch(THREE, base=3)[:-1])[1] == 3


@pytest.mark.parametrize(
    ("headers", "names"),
    [
        pytest.param([(b"\xff\xfe", b"x")], ["\\xff\\xfe"], id="a name that is not UTF-8"),
        pytest.param([(b"", None)], [""], id="an empty name"),
        pytest.param([(b"a", None), (b"\xc0", None)], ["a", "\\xc0"], id="the second name is not UTF-8"),
    ],
)
def test_headers(headers: Sequence[Header], names: list[str]) -> None:
    """A header that is not ours makes nothing bad, and the records around it are there."""
    records, _ = unpack(batch([THREE[0], record(1, b"key", b"value", headers), THREE[2]], codec=ZSTD))
    assert [found.problem for found in records] == ["", "", ""]
    assert [name for name, _ in records[1].headers] == names
    assert records[2].key == b"key 2"


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        pytest.param(record(1, b"k" * 20_000_000, b"v"), "the message key has 20,000,000 bytes", id="key"),
        pytest.param(record(1, b"k", bytes(MAX_RECORD_BYTES + 1)), "the value has 1,048,577 bytes", id="value"),
        pytest.param(record(1, b"k", b"v", [(b"h", bytes(MAX_HEADER_BYTES))]), "the headers have 65,537", id="headers"),
        pytest.param(b"\x02\x00", "the record is not encoded as Kafka describes it", id="a record of one byte"),
    ],
)
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_a_bad_record_between_good_ones(bad: bytes, problem: str, codec: int) -> None:
    records, after = unpack(batch([THREE[0], bad, THREE[2]], codec=codec if len(bad) < 1e7 else NONE))
    assert [found.offset for found in records] == [0, 1, 2]
    assert problem in records[1].problem
    assert records[1].value is None
    assert len(records[1].key or b"") <= 200
    assert not records[0].problem
    assert records[2].key == b"key 2"
    assert after == 3


def test_a_value_of_the_largest_size_is_good() -> None:
    [found], _ = unpack(batch([record(0, b"k" * 200, bytes(MAX_RECORD_BYTES))]))
    assert not found.problem


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD, 5, 7])
@pytest.mark.parametrize("content", [b"", b"\x00", b"garbage" * 10, bytes(1000)])
def test_a_batch_that_cannot_be_decompressed(codec: int, content: bytes) -> None:
    """The batches around it are read. One dead letter stands for all of its records."""
    bad = batch(THREE, attributes=codec, compressed=content, base=3)
    records, after = unpack(batch(THREE) + bad + batch(THREE, base=6))
    assert [found.offset for found in records if not found.problem] in ([0, 1, 2, 6, 7, 8], list(range(9)))
    if unreadable := [found for found in records if found.problem]:
        assert "the batch with the offsets 3 to 5 cannot be read" in unreadable[0].problem
        assert unreadable[0].offset == 3
    assert after == 9


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_the_memory_for_a_batch_is_limited(codec: int) -> None:
    data = batch([record(0, b"k", bytes(6 * MAX_BATCH_BYTES))], codec=codec)
    tracemalloc.start()
    try:
        [found], after = unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_BATCH_BYTES
    finally:
        tracemalloc.stop()
    assert "cannot be decompressed" in found.problem
    assert after == 1


def test_a_poll_is_limited_by_bytes() -> None:
    """What it does not return is fetched again."""
    by = unpacker()
    large = [record(offset, b"k", bytes(MAX_RECORD_BYTES)) for offset in range(8)]
    data = b"".join(batch(large, codec=ZSTD, base=8 * number) for number in range(10))
    assert by.begin(5000) == 5000
    records, after = unpack(data, by=by)
    assert len(records) == after == MAX_POLL_BYTES // MAX_RECORD_BYTES
    assert by.begin(5000) == 31  # as many of this size as fit
    records, after = unpack(data, after, by=by)
    assert records[0].offset == 32
    assert after == 64


def test_a_wrong_checksum_is_fetched_again_before_the_batch_is_bad() -> None:
    data = bytearray(batch(THREE))
    data[-1] ^= 1
    by = unpacker()
    for _ in range(2):
        with pytest.raises(CorruptRecordException):
            unpack(bytes(data), by=by)
    [found], after = unpack(bytes(data), by=by)
    assert "its checksum is wrong" in found.problem
    assert after == 3


def test_control_batches_are_skipped_whatever_they_contain() -> None:
    for content in (record(0, b"", None), record(0, b"\x00\x00\x00\x00", None), b"\x02\x00"):
        marker = batch([content], attributes=0b110000, producer=7, base=3)
        records, after = unpack(batch(THREE) + marker + batch(THREE, base=4))
        assert len(records) == 6
        assert after == 7


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes(seed: int) -> None:
    """Of any batch whose checksum is right, whatever is in it, each offset is passed once."""
    random = Random(seed)
    for _ in range(50):
        content = bytearray(b"".join(THREE))
        for _ in range(random.randint(1, 8)):
            content[random.randrange(len(content))] = random.randrange(256)
        del content[random.randint(0, len(content)) :]
        data = batch(THREE, compressed=bytes(content), count=random.choice([3, 3, 1, 100]))
        records, after = unpack(data + batch(THREE, base=100))
        offsets = [found.offset for found in records]
        assert offsets == sorted(set(offsets))
        assert offsets[-3:] == [100, 101, 102]
        assert after == 103
