"""Reads ranges of offsets of some topics, outside any consumer group."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import TopicPartition

from projector.errors import Refused
from projector.kafka.client import FETCH_BYTES, consumer, errors, fetcher, start, topic
from projector.kafka.fetching import Unpacker
from projector.kafka.topics import Topic, describe
from projector.operate.words import say
from projector.problem import TopicMissing
from projector.record import Partition, Record
from schemas.resources import Kind
from schemas.settings import ProjectorSettings

_POLL_SECONDS = 0.2


class Reader:
    """Reads ranges of offsets without a consumer group: for redrive, reapply, rebuild, verify and status."""

    def __init__(self, settings: ProjectorSettings, kinds: Sequence[Kind], fetch_bytes: int = FETCH_BYTES) -> None:
        """`fetch_bytes` is what the brokers may return at once."""
        self._kinds = {topic(settings, kind): kind for kind in kinds}
        self._settings = settings
        self._unpacker = Unpacker(self._kinds, settings.max_record_bytes)
        self._consumer = consumer(settings, None)
        self._fetcher = fetcher(self._consumer, self._unpacker, fetch_bytes)

    async def start(self) -> None:
        """Connect. Raises Unavailable."""
        try:
            await start(self._consumer, self._settings)
        except BaseException:
            await self._consumer.stop()
            raise

    async def stop(self) -> None:
        await self._fetcher.close()
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
        found: dict[Partition, int] = {}
        async for partition, records in self._read(ranges, 1):
            found[partition] = records[0].timestamp
            self._fetcher.forget([partition])
        return found

    async def read(self, ranges: Mapping[Partition, tuple[int, int]], most: int = 5000) -> AsyncIterator[list[Record]]:
        """Yields all records of these ranges [first, last), in order for each partition. Raises Unavailable."""
        async for _, records in self._read(ranges, most):
            yield records

    async def _read(
        self, ranges: Mapping[Partition, tuple[int, int]], most: int
    ) -> AsyncIterator[tuple[Partition, list[Record]]]:
        """Yields the records of each partition until it is read to its end, or forgotten."""
        self._fetcher.forget(self._fetcher.offsets)  # of a reading that was not finished
        for partition, (first, last) in ranges.items():
            if first < last:
                self._fetcher.seek(partition, first)
        while self._fetcher.offsets:
            async with errors():
                polled = await self._fetcher.poll(most, _POLL_SECONDS)
            # The position decides, not the last record: compaction may have removed the last records of a range.
            self._fetcher.forget([at for at, offset in self._fetcher.offsets.items() if offset >= ranges[at][1]])
            for partition, records in polled.items():
                if wanted := [record for record in records if record.offset < ranges[partition][1]]:
                    yield partition, wanted


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
