"""What a projector gets of a broker: which broker is asked, and record batches of every kind.

The leader is asked, or the replica in the same rack that the leader has named. Batches are unpacked, or what is wrong
with them is said. Nothing that is sent is an error, and what answers may also be no broker at all.
"""

import asyncio
import gc
import gzip
import struct
import sys
import tracemalloc
import weakref
from collections.abc import Sequence
from itertools import chain
from math import inf
from typing import Any

import cramjam
import pytest
from aiokafka.errors import (
    CorruptRecordException,
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    NoError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
)
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v11, FetchResponse_v11
from aiokafka.protocol.metadata import MetadataResponse_v5
from aiokafka.structs import BrokerMetadata

from projector.errors import Unavailable
from projector.kafka import batches, reader
from projector.kafka.batches import FetchedRecords, PendingRecords, Unpacker
from projector.kafka.reader import Fetcher
from projector.kafka.topics import describe, present
from projector.record import Partition, Record
from schemas import words
from schemas.limits import MAX_BATCH_BYTES, MAX_HEADER_BYTES, MAX_HEADERS, MAX_POLL_BYTES, MAX_RECORD_BYTES
from schemas.resources import KINDS, LEAD
from schemas.settings import ProjectorSettings
from tests.harness.raw_batches import GZIP, LZ4, NONE, SNAPPY, ZSTD, Header, batch, checksum, compress, record
from tests.harness.waiting import PATIENCE_SECONDS

TOPIC = "crm.leads"
CODECS = [NONE, GZIP, SNAPPY, LZ4, ZSTD]
TRANSACTIONAL, CONTROL = 0b10000, 0b100000
PARTITION = Partition(TOPIC, 0)
HEADERS = [(b"ce_id", None), (b"trace", b"y"), (b"ce_type", b"x")]
_HUGE = b"\xfe" + b"\xff" * 8 + b"\x01"
THREE = [record(offset, b"key %d" % offset, b"value", HEADERS) for offset in range(3)]


def unpacker() -> Unpacker:
    return Unpacker({TOPIC: LEAD}, MAX_RECORD_BYTES)


def unpack(data: bytes, first: int = 0, by: Unpacker | None = None) -> tuple[list[Record], int]:
    """Returns the records, and from where the next fetch begins."""
    found = fetched(data, first, by)
    return list(chain.from_iterable(found.pieces())), found.next_offset


def fetched(
    data: bytes, first: int = 0, by: Unpacker | None = None, aborted: Sequence[tuple[int, int]] = ()
) -> FetchedRecords:
    return FetchedRecords(PARTITION, data, aborted, first, by or unpacker())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("first", [0, 1])
def test_batches_in_each_codec_are_unpacked(codec: int, first: int) -> None:
    records, after = unpack(batch(THREE, codec=codec) + batch(THREE, codec=codec, base=3), first)
    assert ([record.offset for record in records], after) == (list(range(first, 6)), 6)
    assert records[-1] == Record(TOPIC, 0, 5, 0, b"key 2", b"value", (("ce_id", None), ("ce_type", b"x")), LEAD)


def test_incomplete_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    data, by = batch(THREE) + batch(THREE, base=3)[:-1], unpacker()
    for _ in range(4):  # it never counts as one whose checksum is wrong
        records, after = unpack(data, by=by)
        assert len(records) == after == 3


def said(found: Record) -> str:
    assert found.problem
    return words.fault(found.problem)


@pytest.mark.parametrize(
    ("sent", "value", "kept"),
    [
        pytest.param([(b"\xff\xfe", b"x")], b"value", (), id="a name that is not UTF-8"),
        pytest.param([(b"", None)], b"value", (), id="an empty name"),
        pytest.param(
            [(b"ce_id", None), (b"\xc0", None)], b"value", (("ce_id", None),), id="the second name is not UTF-8"
        ),
        pytest.param([(b"h%d" % number, b"") for number in range(MAX_HEADERS)], b"", (), id="as many as there may be"),
        pytest.param(
            [(b"ce_id", b"%d" % number) for number in range(MAX_HEADERS)],
            b"value",
            (("ce_id", b"%d" % (MAX_HEADERS - 1)),),
            id="of one that comes often, the last counts, so that it takes little memory",
        ),
        pytest.param(
            [(b"traceparent", b"00-1"), (b"ce_traceparent", b"00-2")],
            b"value",
            (("traceparent", b"00-1"), ("ce_traceparent", b"00-2")),
            id="those of a trace",
        ),
        pytest.param([], bytes(MAX_RECORD_BYTES), (), id="a value of the largest size"),
    ],
)
def test_headers_and_values_that_are_good(
    sent: Sequence[Header], value: bytes, kept: tuple[tuple[str, bytes | None], ...]
) -> None:
    """A header that is not ours is ignored, and the records around it are there."""
    records, _ = unpack(batch([THREE[0], record(1, b"k" * 200, value, sent), THREE[2]], codec=ZSTD))
    keys = [b"key 0", b"k" * 200, b"key 2"]
    assert [(found.problem, found.key) for found in records] == [(None, key) for key in keys]
    assert records[1].headers == kept


@pytest.mark.parametrize(
    ("value", "more", "kept"),
    [
        pytest.param(bytes(MAX_RECORD_BYTES + 1), [], (("traceparent", b"00-1"),), id="a value that is too large"),
        pytest.param(b"v", [(b"", b"")] * 101, (("traceparent", b"00-1"),), id="too many headers"),
        pytest.param(b"v", [(b"traceparent", bytes(MAX_HEADER_BYTES))], (), id="a trace that is too large"),
    ],
)
def test_a_record_beyond_a_limit_keeps_its_trace(
    value: bytes, more: list[Header], kept: tuple[tuple[str, bytes], ...]
) -> None:
    [found], _ = unpack(batch([record(0, b"k", value, [(b"traceparent", b"00-1"), (b"ce_id", b"e"), *more])]))
    assert found.problem
    assert (found.value, found.headers) == (None, kept)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        pytest.param(record(1, b"k" * 20_000_000, b"v"), "the message key has 20,000,000 bytes", id="key"),
        pytest.param(record(1, b"k" * 201, b"v"), "the message key has 201 bytes", id="key, one byte too long"),
        pytest.param(record(1, b"k", bytes(MAX_RECORD_BYTES + 1)), "the value has 1,048,577 bytes", id="value"),
        pytest.param(record(1, b"k", b"v", [(b"h", bytes(MAX_HEADER_BYTES))]), "the headers have 65,537", id="headers"),
        pytest.param(record(1, b"k", b"v", [(b"", b"")] * 101), "the record has 101 headers", id="many headers"),
        pytest.param(record(1, b"k", bytes(9000), [(b"", None)] * 10**6), "has 1,000,000 headers", id="far too many"),
        pytest.param(b"\x02\x00", "the record is not encoded as Kafka describes it", id="a record of one byte"),
        pytest.param(
            b"\x22\x00\x00\x02" + _HUGE + b"keys",
            "the record is not encoded as Kafka describes it",
            id="a key of 2**63 bytes",
        ),
        pytest.param(
            b"\x28\x00\x00\x02\x01\x01\x02" + _HUGE + b"name",
            "the record is not encoded as Kafka describes it",
            id="a name of 2**63 bytes",
        ),
        pytest.param(
            b"\x0a\x00\x00\x02\x01\x02",
            "the record is not encoded as Kafka describes it",
            id="a record that is cut off",
        ),
    ],
)
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_bad_record_between_good_ones_leaves_them_good(bad: bytes, problem: str, codec: int) -> None:
    records, after = unpack(batch([THREE[0], bad, THREE[2]], codec=codec if len(bad) < 1e7 else NONE))
    assert ([found.offset for found in records], after) == ([0, 1, 2], 3)
    assert (records[0].problem, records[1].value, records[2].key) == (None, None, b"key 2")
    assert problem in said(records[1])
    assert len(records[1].key or b"") <= 200


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD, 5, 7])
@pytest.mark.parametrize("content", [b"", b"\x00", b"garbage" * 10, bytes(1000), b"\x82SNAPPY\x00" + b"\xff" * 100])
def test_batch_that_cannot_be_decompressed_is_one_bad_record(codec: int, content: bytes) -> None:
    """The batches around it are read. One dead letter stands for all of its records."""
    bad = batch(THREE, attributes=codec, compressed=content, base=3)
    records, after = unpack(batch(THREE) + bad + batch(THREE, base=6))
    assert [found.offset for found in records if not found.problem] in ([0, 1, 2, 6, 7, 8], list(range(9)))
    if unreadable := [found for found in records if found.problem]:
        assert "the batch with the offsets 3 to 5 cannot be read" in said(unreadable[0])
        assert unreadable[0].offset == 3
    assert after == 9


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("codec", "count", "size", "headers", "most", "problem"),
    [
        *((codec, 1, 6 * MAX_BATCH_BYTES, 0, 3 * MAX_BATCH_BYTES, "cannot be decompressed") for codec in CODECS[1:]),
        (ZSTD, 200, 0, 3_000, MAX_BATCH_BYTES, "the record has 3,000 headers, more than 100"),
    ],
)
def test_the_memory_for_a_batch_is_limited(
    codec: int, count: int, size: int, headers: int, most: int, problem: str
) -> None:
    content = [record(offset, b"k", bytes(size), [(b"", None)] * headers) for offset in range(count)]
    data = batch(content, codec=codec)
    tracemalloc.start()
    try:
        found, after = unpack(data)
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    assert all(problem in said(each) for each in found)
    assert len(found) == after == len(content)


def polls(data: bytes, by: Unpacker, most: int) -> list[list[Record]]:
    """Returns what each poll returns of what a broker has returned."""
    found, rest = list[list[Record]](), PendingRecords(fetched(data, 0, by))
    while not rest.is_empty:
        by.begin()
        found.append(rest.take(most))
        assert not found[-1] or rest.next_offset >= found[-1][-1].next_offset
    return found


@pytest.mark.parametrize(
    ("count", "size"),
    [
        pytest.param(8, MAX_RECORD_BYTES, id="large records"),
        pytest.param(1, MAX_BATCH_BYTES, id="batches that are too large to be decompressed cost as much"),
    ],
)
def test_poll_is_limited_by_bytes(count: int, size: int) -> None:
    large = [record(offset, b"k", bytes(size)) for offset in range(count)]
    found = polls(b"".join(batch(large, codec=ZSTD, base=count * number) for number in range(20)), unpacker(), 5000)
    assert all(len(records) <= MAX_POLL_BYTES // size for records in found)
    assert [record.offset for records in found for record in records] == list(range(20 * count))


@pytest.mark.parametrize(
    ("seconds", "most", "lengths"),
    [
        pytest.param(inf, 4, [4, 4, 4, 3], id="number of records"),
        pytest.param(0.0, 5000, [3, 3, 3, 3, 3, 0], id="its time is over: the batch that it has begun"),
    ],
)
def test_poll_is_limited_by_records_and_by_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, most: int, lengths: list[int]
) -> None:
    monkeypatch.setattr(batches, "LONGEST_SECONDS", seconds)
    data = b"".join(batch(THREE, base=3 * number) for number in range(5))
    assert [len(records) for records in polls(data, unpacker(), most)] == lengths


def test_wrong_checksum_is_fetched_again_before_the_batch_is_bad() -> None:
    data, by = bytearray(batch(THREE) + batch(THREE, base=3)), unpacker()
    data[-1] ^= 1
    for _ in range(2):
        records, after = unpack(bytes(data), by=by)
        assert len(records) == after == 3
    records, after = unpack(bytes(data), by=by)
    assert "its checksum is wrong" in said(records[3])
    assert (records[3].offset, records[3].offsets, after) == (3, 3, 6)


def test_batch_without_a_header_is_an_error_of_kafka() -> None:
    """Nothing says where the next batch begins."""
    with pytest.raises(CorruptRecordException):
        unpack(batch(THREE) + struct.pack(">qi", 3, 1) + b"x")


def test_what_brokers_before_kafka_011_have_stored() -> None:
    content = struct.pack(">IbbqiI", 0, 1, 0, 0, -1, 0)
    records, after = unpack(struct.pack(">qi", 7, len(content)) + content, 5)
    assert "its format is from before Kafka 0.11" in said(records[0])
    assert after == 8


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        pytest.param([0, 0, 2], [(0, 1), (1, 2)], id="twice the same"),
        pytest.param([1, 0, 2], [(1, 1), (2, 1)], id="back"),
        pytest.param([0, -5, 2], [(0, 1), (1, 2)], id="before the batch"),
        pytest.param([0, 1, 50], [(0, 1), (1, 1), (2, 1)], id="behind the batch"),
        pytest.param([2, 1, 0], [(2, 1), (2, 1)], id="back after the last one"),
    ],
)
def test_offsets_that_are_not_in_order_become_a_bad_record(offsets: list[int], expected: list[tuple[int, int]]) -> None:
    """No record is lost silently, and none gets the coordinates of another one."""
    records, after = unpack(batch([record(offset, b"k", b"v") for offset in offsets]) + batch(THREE, base=3))
    assert [(found.offset, found.offsets) for found in records] == [*expected, (3, 1), (4, 1), (5, 1)]
    assert [bool(found.problem) for found in records].count(True) == 1
    assert after == 6


def promised(content: bytes, count: int, last: int | None = None, codec: int = NONE) -> bytes:
    """Returns a batch whose header promises so many records, the last one at this offset."""
    data = bytearray(batch([b""] * count, codec=codec, compressed=content))
    struct.pack_into(">i", data, 23, count - 1 if last is None else last)
    struct.pack_into(">I", data, 17, checksum(bytes(data[21:])))
    return bytes(data)


XERIAL = b"\x82SNAPPY\x00" + bytes(8)


def block(content: bytes) -> bytes:
    """Returns a block of snappy as Java clients write it."""
    block = bytes(cramjam.snappy.compress_raw(content))
    return struct.pack(">i", len(block)) + block


@pytest.mark.parametrize(
    ("codec", "content"),
    [
        pytest.param(GZIP, gzip.compress(THREE[0]) + gzip.compress(THREE[1] + THREE[2]), id="two members of gzip"),
        pytest.param(GZIP, gzip.compress(b"") * 3 + gzip.compress(b"".join(THREE)), id="empty members of gzip"),
        pytest.param(
            GZIP, gzip.compress(THREE[0]) + gzip.compress(b"".join(THREE[1:])) + bytes(9), id="zeros behind gzip"
        ),
        pytest.param(LZ4, b"".join(bytes(cramjam.lz4.compress(one)) for one in THREE), id="frames of lz4"),
        pytest.param(ZSTD, b"".join(bytes(cramjam.zstd.compress(one)) for one in THREE), id="frames of zstd"),
        pytest.param(
            ZSTD,
            bytes(cramjam.zstd.compress(THREE[0]))
            + bytes.fromhex("502a4d1805000000")
            + b"extra"
            + bytes(cramjam.zstd.compress(b"".join(THREE[1:]))),
            id="a frame of zstd that is to be skipped",
        ),
        pytest.param(SNAPPY, XERIAL + b"".join(map(block, THREE)), id="blocks of snappy"),
        pytest.param(SNAPPY, b"".join(XERIAL + block(one) for one in THREE), id="several times snappy"),
    ],
)
def test_all_pieces_of_what_was_compressed_are_read(codec: int, content: bytes) -> None:
    records, after = unpack(promised(content, 3, codec=codec) + batch(THREE, base=3))
    assert [(found.offset, found.problem) for found in records] == [(offset, None) for offset in range(6)]
    assert after == 6


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("content", "count", "last", "expected"),
    [
        pytest.param(THREE, 5, 4, [(0, 1), (1, 1), (2, 1), (3, 2)], id="two are missing"),
        pytest.param([], 3, 2, [(0, 3)], id="all are missing"),
        pytest.param(THREE, 4, 2, [(0, 1), (1, 1), (2, 1), (2, 1)], id="more than there are offsets"),
        pytest.param(THREE, 2, 2, [(0, 1), (1, 1), (2, 1), (2, 1)], id="one too many"),
        pytest.param([*THREE, b"rest"], 3, 2, [(0, 1), (1, 1), (2, 1), (2, 1)], id="bytes behind the last one"),
        pytest.param([THREE[0], THREE[2]], 2, 4, [(0, 1), (2, 1)], id="compaction has removed three: all is well"),
        pytest.param([THREE[0], THREE[2]], 3, 4, [(0, 1), (2, 1), (3, 2)], id="after a compaction, one is missing"),
        pytest.param([], 0, 4, [], id="compaction has removed all: all is well"),
    ],
)
def test_records_are_as_many_as_the_header_promises(
    codec: int, content: list[bytes], count: int, last: int, expected: list[tuple[int, int]]
) -> None:
    """What is missing, or more than there may be, leaves a dead letter, and the records that can be read are there."""
    sent = promised(compress(codec, b"".join(content)), count, last, codec)
    for first in range(last + 2):
        records, after = unpack(sent, first)
        assert [(found.offset, found.offsets) for found in records] == [
            (max(offset, first), offset + offsets - max(offset, first))
            for offset, offsets in expected
            if offset + offsets > first
        ]
        assert [found.offset for found in records if not found.problem] == [
            offset for offset in range(first, 3) if b"key %d" % offset in b"".join(content)
        ]
        assert after == max(first, last + 1)


def test_dead_letter_without_an_offset_of_its_own_is_in_the_poll_of_the_last_record() -> None:
    """Otherwise the next poll would seem to go back, as if the partition had been cut off."""
    found = polls(promised(b"".join(THREE), 4, 2), unpacker(), 3)
    assert [[record.offset for record in records] for records in found] == [[0, 1, 2, 2], []]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(THREE[0] + THREE[1][:-2], id="cut off"),
        pytest.param(THREE[0] + _HUGE + THREE[1] + THREE[2], id="a record of 2**63 bytes"),
    ],
)
def test_wrong_length_ends_the_batch(content: bytes) -> None:
    """One dead letter stands for this record and those behind it, because nothing says where they begin."""
    records, after = unpack(batch(THREE, compressed=content) + batch(THREE, base=3))
    assert [(found.offset, found.offsets) for found in records] == [(0, 1), (1, 2), (3, 1), (4, 1), (5, 1)]
    assert said(records[1]) == "the batch with the offsets 1 to 2 cannot be read: the length of a record is wrong"
    assert after == 6


@pytest.mark.parametrize(("time", "expected"), [(-5, 0), (2**62, 2**48 - 1), (1234, 1234)])
def test_time_of_a_record_is_limited_to_48_bits(time: int, expected: int) -> None:
    records, _ = unpack(batch([record(0, b"k", b"v", time=time), record(1, b"k", bytes(9000), time=time)]))
    assert [found.timestamp for found in records] == [expected, expected]


ABORT = record(0, b"\0\0\0\0", None)


@pytest.mark.parametrize(
    ("attributes", "content", "aborted", "kept"),
    [
        pytest.param(TRANSACTIONAL, ABORT, [(7, 0)], 3, id="what was aborted is left out, and what comes later is not"),
        pytest.param(TRANSACTIONAL, record(0, b"\0\0\0\1", None), [(7, 0)], 0, id="a commit ends no aborted one"),
        pytest.param(0, record(0, b"", None), [], 6, id="a marker without a key"),
        pytest.param(0, ABORT, [], 6, id="a marker of nothing"),
        pytest.param(0, b"\x02\x00", [], 6, id="a marker that cannot be read"),
    ],
)
def test_marker_ends_only_its_transaction(
    attributes: int, content: bytes, aborted: list[tuple[int, int]], kept: int
) -> None:
    """Markers are skipped whatever they contain."""
    before = batch(THREE, attributes=attributes, producer=7)
    marker = batch([content], attributes=TRANSACTIONAL | CONTROL, producer=7, base=3)
    found = fetched(before + marker + batch(THREE, attributes=attributes, producer=7, base=4), aborted=aborted)
    assert (len([*chain.from_iterable(found.pieces())]), found.next_offset) == (kept, 7)


def test_what_is_read_in_part_is_freed_at_once() -> None:
    """Not at the next garbage collection, before which hundreds of megabytes may come."""
    records = fetched(batch([record(offset, b"k", bytes(1000)) for offset in range(1000)], codec=ZSTD))
    found = PendingRecords(records)
    assert len(found.take(1)) == 1
    alive = weakref.ref(records)
    gc.disable()
    try:
        del found, records
        assert alive() is None
    finally:
        gc.enable()


def test_small_records_count_with_what_they_take_in_memory() -> None:
    by = unpacker()
    unpack(batch([record(offset, None, None) for offset in range(1000)]), by=by)
    assert by.unpacked > 1000 * sys.getsizeof(Record(TOPIC, 0, 0, 0, None, None, (), LEAD))


RACK = "zone-b"
LEADER, REPLICA, NOBODY = 1, 2, -1
FIRST = 7

Answer = tuple[type[KafkaError], int, bytes]
"""The error, the replica that the broker names, and the records."""
RECORDS = (NoError, NOBODY, batch([record(0, b"key", b"value")], base=FIRST))
ASK_THE_REPLICA = (NoError, REPLICA, b"")


class Brokers:
    """The client of aiokafka, with brokers that answer one after the other what was written for them."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[int] = []
        self.wanted: list[dict[int, int]] = []
        self.silent = asyncio.Event()
        self.cluster = self

    async def send(self, node: int, request: FetchRequest, **_group: int) -> FetchResponse_v11:
        """Note what is asked for. Behind the last answer, this is all that happens."""
        sent: Any = request.build(FetchRequest_v11)
        assert sent.rack_id == RACK
        [(_, partitions)] = sent.topics
        self.wanted.append({number: offset for number, _, offset, *_ in partitions})
        if not self._answers:
            self.silent.set()
            await asyncio.Event().wait()
        assert {*self.wanted[-1].values()} == {FIRST}, "the position has not changed"
        self.asked.append(node)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        error, named, data = answer
        return FetchResponse_v11(
            0, 0, 0, [(PARTITION.topic, [(PARTITION.partition, error.errno, 9, 9, 0, [], named, data)])]
        )

    def leader_for_partition(self, _partition: object) -> int:
        return LEADER

    def brokers(self) -> Sequence[int]:
        return LEADER, REPLICA

    def add_topic(self, _topic: str) -> None: ...

    def force_metadata_update(self) -> None: ...


async def given_up(_partition: Partition) -> int:
    raise AssertionError("the position was given up")


def fetcher_of(brokers: Brokers) -> Fetcher:
    return Fetcher(brokers, unpacker(), 1_000_000, given_up, RACK)


async def asked(brokers: Brokers) -> list[int]:
    """Returns which brokers are asked until the records are there."""
    fetcher = fetcher_of(brokers)
    fetcher.seek(PARTITION, FIRST)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (found := await fetcher.poll(10, 1.0)):
            pass
    await fetcher.close()
    assert [each.offset for each in found[PARTITION]] == [FIRST]
    return brokers.asked


@pytest.mark.parametrize(
    ("answer", "then"),
    [
        pytest.param((NoError, NOBODY, b""), REPLICA, id="nothing new: it stays so"),
        pytest.param(KafkaConnectionError(), LEADER, id="it does not answer"),
        pytest.param(NodeNotReadyError(), LEADER, id="no broker is known by this name"),
        pytest.param((OffsetOutOfRangeError, NOBODY, b""), LEADER, id="it does not have the position yet"),
        pytest.param((NotLeaderForPartitionError, NOBODY, b""), LEADER, id="it is no replica any more"),
    ],
)
async def test_the_replica_that_the_leader_names_is_asked_until_a_fault(answer: Answer | Exception, then: int) -> None:
    """That a replica does not have a position says nothing: it may not have received it yet."""
    assert await asked(Brokers(ASK_THE_REPLICA, answer, RECORDS)) == [LEADER, REPLICA, then]


async def test_the_leader_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica may have fallen behind, or another one is nearer."""
    monkeypatch.setattr(reader, "REPLICA_SECONDS", 0.0)
    assert await asked(Brokers(ASK_THE_REPLICA, RECORDS)) == [LEADER, LEADER]


async def test_while_records_are_applied_all_partitions_are_asked_for_what_comes_next() -> None:
    """Otherwise a record that comes meanwhile would wait for the answer of a request that does not ask for it."""
    broker = Brokers(RECORDS)
    fetcher = fetcher_of(broker)
    fetcher.seek(PARTITION, FIRST)
    fetcher.seek(Partition(PARTITION.topic, 1), FIRST)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert [*await fetcher.poll(10, PATIENCE_SECONDS)] == [PARTITION]
        await broker.silent.wait()
    await fetcher.close()
    assert broker.wanted == [{0: FIRST, 1: FIRST}, {0: FIRST + 1, 1: FIRST}]


class Mortal:
    """The client of aiokafka: of its brokers, those in `dead` are not there."""

    def __init__(self, brokers: Sequence[int], dead: Sequence[int]) -> None:
        self._brokers = brokers
        self._dead = dead
        self.cluster = self

    def brokers(self) -> list[BrokerMetadata]:
        return [BrokerMetadata(number, "localhost", 9092, None) for number in self._brokers]

    async def send(self, node: int, _request: object) -> MetadataResponse_v5:
        if node in self._dead:
            raise NodeNotReadyError
        return MetadataResponse_v5(0, [], None, 1, [(0, TOPIC, False, [(0, 0, node, [], [], [])])])


async def test_another_broker_is_asked_about_topics_if_one_is_not_there() -> None:
    """Its death may be too recent for the list of brokers. Chance decides who is asked first."""
    for _ in range(20):
        [found] = await present(Mortal([1, 2, 3], dead=[1, 3]), [TOPIC])
        assert (found.name, found.partitions) == (TOPIC, (PARTITION,))


@pytest.mark.parametrize("brokers", [pytest.param([1, 2], id="all are dead"), pytest.param([], id="none is known")])
async def test_topics_without_a_broker_are_unavailable(brokers: Sequence[int]) -> None:
    with pytest.raises(Unavailable):
        await present(Mortal(brokers, dead=brokers), [TOPIC])


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say in response to the first request that no request is known."""
    [size] = struct.unpack(">i", await reader.readexactly(4))
    request = await reader.readexactly(size)
    writer.write(struct.pack(">i4shi", 10, request[4:8], 0, 0))
    writer.close()


async def test_server_that_is_no_kafka_is_named() -> None:
    async with await asyncio.start_server(_answer, "127.0.0.1", 0) as server:
        at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"what answers at {at} is not Kafka 0.11 or later"):
            await describe(ProjectorSettings(kafka_bootstrap_servers=at), KINDS)
