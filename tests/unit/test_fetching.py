"""Which broker is asked for records: the leader, or the replica in the same rack that the leader has named. What
answers may also be no broker at all.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    NoError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
)
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v11, FetchResponse_v11

from projector.errors import Unavailable
from projector.kafka import fetching
from projector.kafka.fetching import Fetcher, Unpacker
from projector.kafka.topics import describe
from projector.record import Partition
from schemas.limits import MAX_RECORD_BYTES
from schemas.resources import KINDS, LEAD
from schemas.settings import ProjectorSettings
from tests.harness.raw_batches import batch, record
from tests.harness.waiting import PATIENCE_SECONDS

AT = Partition("crm.leads", 0)
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
        self.cluster = self

    async def send(self, node: int, request: FetchRequest, **_group: int) -> FetchResponse_v11:
        if not self._answers:
            await asyncio.Event().wait()
        self.asked.append(node)
        sent: Any = request.build(FetchRequest_v11)
        assert sent.rack_id == RACK
        assert [(topic, [each[2] for each in partitions]) for topic, partitions in sent.topics] == [
            (AT.topic, [FIRST])
        ], "the position has not changed"
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        error, named, data = answer
        return FetchResponse_v11(0, 0, 0, [(AT.topic, [(AT.partition, error.errno, 9, 9, 0, [], named, data)])])

    def leader_for_partition(self, _partition: object) -> int:
        return LEADER

    def brokers(self) -> Sequence[int]:
        return LEADER, REPLICA

    def add_topic(self, _topic: str) -> None: ...

    def force_metadata_update(self) -> None: ...


async def asked(brokers: Brokers) -> list[int]:
    """Returns which brokers are asked until the records are there."""

    async def earliest(_partition: Partition) -> int:
        raise AssertionError("the position was given up")

    fetcher = Fetcher(brokers, Unpacker({AT.topic: LEAD}, MAX_RECORD_BYTES), 1_000_000, earliest, RACK)
    fetcher.seek(AT, FIRST)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (found := await fetcher.poll(10, 1.0)):
            pass
    await fetcher.close()
    assert [each.offset for each in found[AT]] == [FIRST]
    return brokers.asked


async def test_the_replica_that_the_leader_names_is_asked_and_stays_so() -> None:
    nothing = (NoError, NOBODY, b"")
    assert await asked(Brokers(ASK_THE_REPLICA, nothing, RECORDS)) == [LEADER, REPLICA, REPLICA]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(KafkaConnectionError(), id="it does not answer"),
        pytest.param(NodeNotReadyError(), id="no broker is known by this name"),
        pytest.param((OffsetOutOfRangeError, NOBODY, b""), id="it does not have the position yet"),
        pytest.param((NotLeaderForPartitionError, NOBODY, b""), id="it is no replica any more"),
    ],
)
async def test_after_any_fault_of_the_replica_the_leader_is_asked(fault: Answer | Exception) -> None:
    """That a replica does not have a position says nothing: it may not have received it yet."""
    assert await asked(Brokers(ASK_THE_REPLICA, fault, RECORDS)) == [LEADER, REPLICA, LEADER]


async def test_the_leader_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica may have fallen behind, or another one is nearer."""
    monkeypatch.setattr(fetching, "REPLICA_SECONDS", 0.0)
    assert await asked(Brokers(ASK_THE_REPLICA, RECORDS)) == [LEADER, LEADER]


class TwoPartitions(Brokers):
    """A broker that has a record of `AT`, and then nothing. It notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[dict[int, int]] = []
        self.waiting = asyncio.Event()

    async def send(self, node: int, request: FetchRequest, **_group: int) -> FetchResponse_v11:  # noqa: ARG002
        sent: Any = request.build(FetchRequest_v11)
        [(topic, partitions)] = sent.topics
        self.wanted.append({number: offset for number, _, offset, *_ in partitions})
        if len(self.wanted) > 1:
            self.waiting.set()
            await asyncio.Event().wait()
        _, _, data = RECORDS
        return FetchResponse_v11(0, 0, 0, [(topic, [(AT.partition, 0, 9, 9, 0, [], NOBODY, data)])])


async def test_while_records_are_applied_all_partitions_are_asked_for_what_comes_next() -> None:
    """Otherwise a record that comes meanwhile would wait for the answer of a request that does not ask for it."""

    async def earliest(_partition: Partition) -> int:
        raise AssertionError("the position was given up")

    broker = TwoPartitions()
    fetcher = Fetcher(broker, Unpacker({AT.topic: LEAD}, MAX_RECORD_BYTES), 1_000_000, earliest, RACK)
    fetcher.seek(AT, FIRST)
    fetcher.seek(Partition(AT.topic, 1), FIRST)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert [*await fetcher.poll(10, PATIENCE_SECONDS)] == [AT]
        await broker.waiting.wait()
    await fetcher.close()
    assert broker.wanted == [{0: FIRST, 1: FIRST}, {0: FIRST + 1, 1: FIRST}]


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say in response to the first request that no request is known."""
    [size] = struct.unpack(">i", await reader.readexactly(4))
    request = await reader.readexactly(size)
    writer.write(struct.pack(">i4shi", 10, request[4:8], 0, 0))
    writer.close()


async def test_it_knows_no_request_of_kafka() -> None:
    async with await asyncio.start_server(_answer, "127.0.0.1", 0) as server:
        at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"what answers at {at} is not Kafka 0.11 or later"):
            await describe(ProjectorSettings(kafka_bootstrap_servers=at), KINDS)
