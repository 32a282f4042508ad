"""Reads ranges of offsets of some topics, outside any consumer group."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import TopicPartition

from projector.errors import Refused
from projector.kafka.client import FETCH_BYTES, consumer, errors, start, topic
from projector.kafka.topics import Topic, describe
from projector.kafka.unpacking import Unpacker
from projector.operate.words import say
from projector.problem import TopicMissing
from projector.record import Partition, Record
from schemas.resources import Kind
from schemas.settings import ProjectorSettings


class Reader:
    """Reads ranges of offsets without a consumer group: for redrive, reapply, rebuild, verify and status."""

    def __init__(self, settings: ProjectorSettings, kinds: Sequence[Kind], fetch_bytes: int = FETCH_BYTES) -> None:
        """`fetch_bytes` is what the brokers may return at once."""
        self._kinds = {topic(settings, kind): kind for kind in kinds}
        self._settings = settings
        self._unpacker = Unpacker(self._kinds, settings.max_record_bytes)
        self._consumer = consumer(settings, None, self._unpacker, fetch_bytes)

    async def start(self) -> None:
        """Connect. Raises Unavailable."""
        try:
            await start(self._consumer, self._settings)
        except BaseException:
            await self._consumer.stop()
            raise

    async def stop(self) -> None:
        await self._consumer.stop()

    def read_as(self, histories: Mapping[str, int]) -> None:
        """Give records the history of their topic (`Record.history`), which belongs to what is written to Redis."""
        self._unpacker.histories = histories

    @property
    def histories(self) -> Mapping[str, int]:
        """Which history of each topic is read; 0 for those that are absent."""
        return self._unpacker.histories

    async def partitions(self) -> list[Partition]:
        """Returns all partitions of the topics; a topic that does not exist has none. Raises Unavailable."""
        return [partition for topic in await self.topics() for partition in topic.partitions]

    async def existing_partitions(self) -> list[Partition]:
        """Returns all partitions of the topics. Raises Refused if one of the topics does not exist, and Unavailable."""
        topics = await self.topics()
        if missing := [topic.name for topic in topics if not topic.partitions]:
            raise Refused(f"{say(TopicMissing(tuple(missing)))}.")
        return [partition for topic in topics for partition in topic.partitions]

    async def topics(self) -> list[Topic]:
        """Returns what the brokers say about the topics. Raises Unavailable."""
        return await describe(self._settings, list(self._kinds.values()))

    async def range(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """Returns the first offset and the end offset of each partition. Raises Unavailable."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        if not wanted:
            return {}
        async with errors():
            begin = await self._consumer.beginning_offsets(wanted)
            end = await self._consumer.end_offsets(wanted)
        return {Partition(*p): (begin[p], end[p]) for p in wanted}

    async def first_times(self, ranges: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """Returns Kafka's timestamp, in ms since 1970, of the first record in each of these ranges [first, last).

        A range without records, because compaction has removed them, is left out. Raises Unavailable.
        """
        wanted = {partition: last for partition, (first, last) in ranges.items() if first < last}
        found: dict[Partition, int] = {}
        self._consumer.assign([TopicPartition(*partition) for partition in wanted])
        for partition in wanted:
            self._consumer.seek(TopicPartition(*partition), ranges[partition][0])
        while wanted:
            self._unpacker.begin()
            async with errors():
                polled = await self._consumer.getmany(
                    *(TopicPartition(*p) for p in wanted), timeout_ms=200, max_records=1
                )
            for at, records in polled.items():
                last = wanted.pop(Partition(*at))
                if records[0].offset < last:
                    found[Partition(*at)] = records[0].timestamp
                self._discard(Partition(*at), last)
            await self._close_finished(wanted)
        return found

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
                    self._discard(partition, open_ranges.pop(partition))

    def _discard(self, partition: Partition, last: int) -> None:
        """Read no more of a partition, and forget what was fetched and decompressed: it would count as fetched."""
        at = TopicPartition(*partition)
        self._consumer.pause(at)
        self._consumer.seek(at, last)


@asynccontextmanager
async def open_reader(
    settings: ProjectorSettings, kinds: Sequence[Kind], fetch_bytes: int = FETCH_BYTES
) -> AsyncIterator[Reader]:
    """Yields a connected reader of these topics, and closes it at the end. Raises Unavailable."""
    reader = Reader(settings, kinds, fetch_bytes)
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop()
