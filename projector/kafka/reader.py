"""Reads any offsets of some topics, outside of any consumer group."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from projector.errors import Unavailable
from projector.kafka.client import connection, consumer, errors, records, topic
from projector.record import Kind, Partition, Record
from schemas.settings import ProjectorSettings


class Retention(NamedTuple):
    """`policy` is `compact`, `delete` or `compact,delete`; the others bound what `delete` leaves, -1 for no bound."""

    policy: str
    milliseconds: int
    bytes: int


class Reader:
    """Reads any offsets of some topics, without a group: for redrive, replay and status."""

    def __init__(self, settings: ProjectorSettings, kinds: Sequence[Kind]) -> None:
        self._kinds = {topic(settings, kind): kind for kind in kinds}
        self._connection = connection(settings)
        self._consumer = consumer(settings, None)

    async def start(self) -> None:
        """Raises Unavailable where no broker can be reached."""
        try:
            async with errors():
                await self._consumer.start()
        except Unavailable:
            await self._consumer.stop()
            raise

    async def stop(self) -> None:
        await self._consumer.stop()

    async def partitions(self) -> list[Partition]:
        """All partitions of the topics; none of a topic that does not exist. Raises Unavailable."""
        admin = AIOKafkaAdminClient(**self._connection)
        async with errors():
            await admin.start()
            try:
                topics = await admin.describe_topics(list(self._kinds))
            finally:
                await admin.close()
        return [
            Partition(topic["topic"], partition["partition"])
            for topic in topics
            for partition in sorted(topic["partitions"], key=lambda partition: partition["partition"])
        ]

    async def retention(self) -> dict[str, Retention] | None:
        """How long each topic keeps its records. None where the brokers do not say (the embedded ones cannot)."""
        admin = AIOKafkaAdminClient(**self._connection)
        wanted = [ConfigResource(ConfigResourceType.TOPIC, name) for name in self._kinds]
        try:
            async with errors():
                await admin.start()
                answers = await admin.describe_configs(wanted)
        except Unavailable:
            return None
        finally:
            await admin.close()
        found = {}
        for answer in answers:
            for _, _, _, name, configs in answer.resources:
                values = {config[0]: config[1] for config in configs}
                found[name] = Retention(
                    values["cleanup.policy"], int(values["retention.ms"]), int(values["retention.bytes"])
                )
        return found

    async def range(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """The first offset that is still there, and the one after the last. Raises Unavailable."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        if not wanted:
            return {}
        async with errors():
            begin = await self._consumer.beginning_offsets(wanted)
            end = await self._consumer.end_offsets(wanted)
        return {Partition(*p): (begin[p], end[p]) for p in wanted}

    async def read(self, ranges: Mapping[Partition, tuple[int, int]], most: int = 5000) -> AsyncIterator[list[Record]]:
        """All records of these ranges [first, last), in order for each partition. Raises Unavailable."""
        open_ranges = {p: last for p, (first, last) in ranges.items() if first < last}
        self._consumer.assign([TopicPartition(*p) for p in open_ranges])
        for partition in open_ranges:
            self._consumer.seek(TopicPartition(*partition), ranges[partition][0])
        while open_ranges:
            async with errors():
                polled = await self._consumer.getmany(
                    *(TopicPartition(*p) for p in open_ranges), timeout_ms=200, max_records=most
                )
            for at, messages in polled.items():
                partition = Partition(*at)
                last = open_ranges[partition]
                found = records([message for message in messages if message.offset < last], self._kinds[at.topic])
                if found:
                    yield found
            await self._close_finished(open_ranges)

    async def _close_finished(self, open_ranges: dict[Partition, int]) -> None:
        # The position, not the last record, says that a range is done: compaction leaves gaps at its end too.
        for partition, last in list(open_ranges.items()):
            async with errors():
                if await self._consumer.position(TopicPartition(*partition)) >= last:
                    del open_ranges[partition]


@asynccontextmanager
async def open_reader(settings: ProjectorSettings, kinds: Sequence[Kind]) -> AsyncIterator[Reader]:
    """A started reader of these topics. Raises Unavailable."""
    reader = Reader(settings, kinds)
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop()
