"""Reads ranges of offsets of some topics, outside any consumer group."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from projector.errors import Unavailable
from projector.kafka.client import connection, consumer, errors, topic
from projector.kafka.unpacking import Unpacker
from projector.record import Partition, Record
from schemas.resources import Kind
from schemas.settings import ProjectorSettings


class Retention(NamedTuple):
    """How long a topic keeps its records.

    `policy` is `compact`, `delete` or `compact,delete`. The other two limit what `delete` keeps; -1 means no limit.
    """

    policy: str
    milliseconds: int
    bytes: int


class Reader:
    """Reads ranges of offsets without a consumer group: for redrive, reapply, rebuild, verify and status."""

    def __init__(self, settings: ProjectorSettings, kinds: Sequence[Kind]) -> None:
        self._kinds = {topic(settings, kind): kind for kind in kinds}
        self._connection = connection(settings)
        self._unpacker = Unpacker(self._kinds, settings.max_record_bytes)
        self._consumer = consumer(settings, None, self._unpacker)

    async def start(self) -> None:
        """Connect. Raises Unavailable."""
        try:
            async with errors():
                await self._consumer.start()
        except Unavailable:
            await self._consumer.stop()
            raise

    async def stop(self) -> None:
        await self._consumer.stop()

    async def partitions(self) -> list[Partition]:
        """Returns all partitions of the topics; a topic that does not exist has none. Raises Unavailable."""
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
        """Returns how long each topic keeps its records; None if the brokers do not report it (embedded ones)."""
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
        """Returns the first offset and the end offset of each partition. Raises Unavailable."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        if not wanted:
            return {}
        async with errors():
            begin = await self._consumer.beginning_offsets(wanted)
            end = await self._consumer.end_offsets(wanted)
        return {Partition(*p): (begin[p], end[p]) for p in wanted}

    async def read(self, ranges: Mapping[Partition, tuple[int, int]], most: int = 5000) -> AsyncIterator[list[Record]]:
        """Yields all records of these ranges [first, last), in order for each partition. Raises Unavailable."""
        open_ranges = {p: last for p, (first, last) in ranges.items() if first < last}
        self._consumer.assign([TopicPartition(*p) for p in open_ranges])
        for partition in open_ranges:
            self._consumer.seek(TopicPartition(*partition), ranges[partition][0])
        while open_ranges:
            self._unpacker.begin()
            async with errors():
                polled = await self._consumer.getmany(
                    *(TopicPartition(*p) for p in open_ranges), timeout_ms=200, max_records=most
                )
            for at, records in polled.items():
                last = open_ranges[Partition(*at)]
                if found := [record for record in records if record.offset < last]:
                    yield found
            await self._close_finished(open_ranges)

    async def _close_finished(self, open_ranges: dict[Partition, int]) -> None:
        # The position decides, not the last record: compaction may have removed the last records of a range.
        for partition, last in list(open_ranges.items()):
            async with errors():
                if await self._consumer.position(TopicPartition(*partition)) >= last:
                    del open_ranges[partition]


@asynccontextmanager
async def open_reader(settings: ProjectorSettings, kinds: Sequence[Kind]) -> AsyncIterator[Reader]:
    """Yields a connected reader of these topics, and closes it at the end. Raises Unavailable."""
    reader = Reader(settings, kinds)
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop()
