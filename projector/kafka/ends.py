"""Asks the leaders of partitions where these begin and end. A partition has two ends:

- Its *end offset* is behind the last record that Kafka has acknowledged (the high watermark).
- Its *readable end* is where a reader of committed records stops (the last stable offset): at the first record of the
  oldest transaction that is open. What other producers publish behind that record is acknowledged, and nobody gets it
  until the transaction has ended.

Code that claims that everything is there has to ask for the end offset. Code that reads stops at the readable end.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, LeaderNotAvailableError, NoError, StaleMetadata, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest

from projector.kafka.record_batch import RecordBatch, whole_batches
from projector.record import Partition

_READ_UNCOMMITTED, READ_COMMITTED = 0, 1
_EARLIEST, _LATEST = -2, -1
_ANY_REPLICA = -1
_RETRY_SECONDS = 0.1
_PATIENCE_SECONDS = 40.0
"""The time for which a leader is looked for, as in aiokafka."""


USUAL_SECONDS = 5.0
"""A transaction that has been open for longer than this is not of the usual length."""


class OldestTransaction(NamedTuple):
    """The oldest transaction that is open in a partition.

    `first` is the offset of its first record, and `end` the end offset of the partition. `began_at` is the time of that
    record, in ms since 1970: Kafka's, or that of the producer; None if it is not known.
    """

    first: int
    end: int
    began_at: int | None

    @property
    def records(self) -> int:
        """The number of offsets behind its beginning: its own records, and those of others that wait for its end."""
        return self.end - self.first


async def first_offsets(client: Any, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Returns the first offset of each partition, with an AIOKafkaClient. Raises KafkaError."""
    return await _offsets(client, partitions, _EARLIEST, READ_COMMITTED)


async def end_offsets(client: Any, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Returns the end offset of each partition. Raises KafkaError."""
    return await _offsets(client, partitions, _LATEST, _READ_UNCOMMITTED)


async def readable_ends(client: Any, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Returns the readable end of each partition. Raises KafkaError."""
    return await _offsets(client, partitions, _LATEST, READ_COMMITTED)


async def open_transaction(client: Any, partition: Partition, first: int, end: int) -> OldestTransaction:
    """Returns the transaction that is open between the readable end of a partition, `first`, and its end offset. Raises
    KafkaError.
    """
    request = FetchRequest(0, 1, 1, _READ_UNCOMMITTED, [(partition.topic, [(partition.partition, first, 1)])], "")
    answer = await client.send(_leader(client, partition), request)
    for _, partitions in answer.topics:
        for _, code, *_, data in partitions:
            _check(partition, code)
            batch = next(map(RecordBatch, whole_batches(data or b"")), None)
            if batch and batch.first == first and batch.is_transactional and not batch.is_control:
                return OldestTransaction(first, end, batch.first_time)
    return OldestTransaction(first, end, None)


async def _offsets(client: Any, partitions: Iterable[Partition], time: int, isolation: int) -> dict[Partition, int]:
    """Asks each leader once, and again while leaders change."""
    wanted = list(partitions)
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            try:
                return await _ask_leaders(client, wanted, time, isolation)
            except KafkaError as error:
                if not error.retriable:
                    raise
                client.force_metadata_update()
                await asyncio.sleep(_RETRY_SECONDS)


async def _ask_leaders(client: Any, partitions: Iterable[Partition], time: int, isolation: int) -> dict[Partition, int]:
    by_leader: dict[int, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for partition in partitions:
        by_leader[_leader(client, partition)][partition.topic].append((partition.partition, time))
    requests = {
        leader: OffsetRequest(_ANY_REPLICA, isolation, list(asked.items())) for leader, asked in by_leader.items()
    }
    answers = await asyncio.gather(*(client.send(leader, request) for leader, request in requests.items()))
    offsets = {}
    for answer in answers:
        for topic, asked in answer.topics:
            for number, code, _, offset in asked:
                partition = Partition(topic, number)
                _check(partition, code)
                offsets[partition] = offset
    return offsets


def _leader(client: Any, partition: Partition) -> int:
    leader: int | None = client.cluster.leader_for_partition(TopicPartition(*partition))
    if leader is None:
        client.add_topic(partition.topic)
        raise StaleMetadata(f"{partition.topic}:{partition.partition}")
    if leader < 0:
        raise LeaderNotAvailableError(f"{partition.topic}:{partition.partition}")
    return leader


def _check(partition: Partition, code: int) -> None:
    if (error := for_code(code)) is not NoError:
        raise error(f"{partition.topic}:{partition.partition}")
