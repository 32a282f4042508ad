"""Reads the records of some topics: as a member of a consumer group, or ranges of offsets outside any group."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import ConsumerRebalanceListener, TopicPartition

from projector.errors import Refused, Unavailable
from projector.kafka import topics
from projector.kafka.client import client_of, consumer, errors, start, topic
from projector.kafka.fetching import Fetcher, Unpacker
from projector.kafka.topics import UNKNOWN_EPOCH, Fork, Topic, describe
from projector.operate.words import say
from projector.problem import TopicMissing
from projector.record import Partition, Record
from schemas.layouts import MAX_PARTITIONS
from schemas.resources import Kind
from schemas.settings import ProjectorSettings

_FETCH_BYTES = 8 * 1_048_576
"""What the brokers may return at once, compressed. Only a single batch may exceed it."""
_COMMIT_SECONDS = 5.0
_POLL_SECONDS = 0.2

logger = logging.getLogger(__name__)


class _Fetching:
    """The topics of some kinds, a consumer that knows their brokers, and what fetches their records."""

    def __init__(
        self, settings: ProjectorSettings, kinds: Sequence[Kind], group_id: str | None, fetch_bytes: int = _FETCH_BYTES
    ) -> None:
        self._settings = settings
        self._kinds = {topic(settings, kind): kind for kind in kinds}
        self._unpacker = Unpacker(self._kinds, settings.max_record_bytes)
        self._consumer = consumer(settings, group_id)
        rack = settings.kafka_client_rack or ""
        self._fetcher = Fetcher(client_of(self._consumer), self._unpacker, fetch_bytes, self._earliest, rack)

    async def stop(self) -> None:
        """Close all connections."""
        await self._fetcher.close()
        # aiokafka cancels its tasks and waits for them. One that has not begun yet would raise CancelledError.
        await asyncio.sleep(0)
        await self._consumer.stop()

    def read_as(self, histories: Mapping[str, int]) -> None:
        """Give records the history of their topic (`Record.history`), which belongs to what is written to Redis."""
        self._unpacker.histories = histories

    async def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the end offset of each partition. Raises Unavailable."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        async with errors():
            found = await self._consumer.end_offsets(wanted) if wanted else {}
        return {Partition(*partition): offset for partition, offset in found.items()}

    async def _earliest(self, partition: Partition) -> int:
        [offset] = (await self._consumer.beginning_offsets([TopicPartition(*partition)])).values()
        return int(offset)


class Source(_Fetching, ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """A member of a consumer group, which shares the partitions of some topics with the other members.

    The caller decides from which offset each assigned partition is read: `poll` returns no records of a partition
    before `seek` has been called for it. `on_revoked` is awaited before partitions are revoked.
    """

    def __init__(
        self,
        settings: ProjectorSettings,
        kinds: Sequence[Kind],
        group_id: str,
        on_revoked: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(settings, kinds, group_id)
        self._on_revoked = on_revoked
        self.paused = False
        """Return no records, but stay a member of the group."""
        self.topics = frozenset(self._kinds)

    async def start(self) -> None:
        """Connect and join the group. Raises Unavailable."""
        await start(self._consumer, self._settings)
        self.join()

    def join(self) -> None:
        """Ask the group for partitions."""
        self._consumer.subscribe(list(self._kinds), listener=self)

    def leave(self) -> None:
        """Leave all partitions to the other members, until `join`."""
        self.reset(self._fetcher.offsets)
        self._consumer.unsubscribe()

    def assigned(self) -> set[Partition]:
        """Returns the partitions that are assigned to this member now."""
        return {Partition(*partition) for partition in self._consumer.assignment()}

    def unpositioned(self) -> list[Partition]:
        """Returns the assigned partitions that wait for `seek`."""
        return sorted(self.assigned() - self._fetcher.offsets.keys())

    def reset(self, partitions: Iterable[Partition]) -> None:
        """Return no records of these partitions until the next `seek`."""
        self._fetcher.forget(partitions)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Called by aiokafka."""
        if revoked:
            await self._on_revoked()
        self.reset([Partition(*partition) for partition in revoked])

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:  # noqa: ARG002 - of aiokafka
        """Called by aiokafka."""
        self._consumer.pause(*self._consumer.assignment())  # so that aiokafka's consumer fetches nothing
        # Also those that another member has now: until here they counted as assigned, and may have been sought again.
        self.reset(self._fetcher.offsets)

    async def seek(
        self, offsets: Mapping[Partition, int | None], epochs: Mapping[Partition, int] | None = None
    ) -> dict[Partition, int]:
        """Seek each partition (None: earliest). Returns the offsets used. Raises Unavailable.

        An offset that the partition does not contain is logged, and the earliest one is used instead. `epochs` are the
        leader epochs of the batches before these offsets, as far as they are known.
        """
        if wide := [topic for topic, number in offsets if number >= MAX_PARTITIONS]:
            raise Refused(f"topic {wide[0]} has more than {MAX_PARTITIONS:,} partitions, which Leadview cannot read")
        wanted = [TopicPartition(*partition) for partition in offsets]
        async with errors():
            begin = await self._consumer.beginning_offsets(wanted)
            end = await self._consumer.end_offsets(wanted)
        if lost := offsets.keys() - self.assigned():  # a rebalance may have come meanwhile
            raise Unavailable(f"Kafka: {len(lost)} partitions were revoked before they were sought")
        used = {}
        for partition, offset in offsets.items():
            at = TopicPartition(*partition)
            used[partition] = _existing(partition, offset, begin[at], end[at])
            self._fetcher.seek(partition, used[partition])
            self._unpacker.epochs.pop(partition, None)
            if epochs and partition in epochs:
                self._unpacker.epochs[partition] = epochs[partition]
        return used

    def epoch(self, partition: Partition) -> int:
        """Returns the epoch of the leader that has written the last batch that was polled; `UNKNOWN_EPOCH` if it is not
        known.
        """
        return self._unpacker.epochs.get(partition, UNKNOWN_EPOCH)

    async def topic_ids(self) -> dict[str, str]:
        """Returns the id of each topic, as far as the brokers say it. Raises Unavailable."""
        return await topics.topic_ids(client_of(self._consumer), self.topics)

    async def forks(self, epochs: Mapping[Partition, int]) -> dict[Partition, Fork]:
        """Returns up to where each partition is one that had these leaders, if it is known. Raises Unavailable."""
        return await topics.forks(client_of(self._consumer), epochs) if epochs else {}

    async def was_cut_off(self) -> bool:
        """Returns whether the last poll came upon a new leader that has not all that the leader before it had, so that
        what was polled does not follow on what was read before. Raises Unavailable.
        """
        if not (new_leaders := self._unpacker.new_leaders):
            return False
        found = await self.forks({Partition(*at): epoch for at, (_, epoch) in new_leaders.items()})
        return any(fork.offset < new_leaders[at][0] for at, fork in found.items())

    async def poll(self, most: int, wait: float) -> dict[Partition, list[Record]]:
        """Returns up to `most` records, in order for each partition; fewer if they are large or take long to unpack.

        Waits up to `wait` seconds. Raises Unavailable.
        """
        async with errors():
            await self._consumer.getmany(timeout_ms=0)  # everything is paused there, but a member has to poll
            if not self.paused:
                return await self._fetcher.poll(most, wait)
        return {}

    async def more(self, most: int, wait: float) -> dict[Partition, list[Record]]:
        """Returns what comes behind the last poll, as `poll` does. It does not wait while the group rebalances: this
        member may still have to finish what it was about before its partitions are revoked. Raises Unavailable.
        """
        async with errors():
            return await self._fetcher.poll(most, wait)

    def position(self, partition: Partition) -> int | None:
        """Returns the next offset to be read, after any transaction markers; None if the partition waits for `seek`.

        Until then, what was read of it before a rebalance may not have been applied, and what the group has committed
        may have been lost in Redis.
        """
        return self._fetcher.offsets.get(partition)

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets to the group, for lag tools only: nothing resumes from them. Raises Unavailable."""
        owned = self.assigned()
        wanted = {TopicPartition(*p): offset for p, offset in offsets.items() if p in owned}
        if wanted:
            # Without a limit, aiokafka waits until the group has a coordinator again, and no record is read meanwhile.
            async with errors(), asyncio.timeout(_COMMIT_SECONDS):
                await self._consumer.commit(wanted)


class Reader(_Fetching):
    """Reads ranges of offsets without a consumer group: for redrive, reapply, verify and status. A rebuild asks it for
    offsets only, because its replay is a `Line`.
    """

    def __init__(self, settings: ProjectorSettings, kinds: Sequence[Kind], fetch_bytes: int = _FETCH_BYTES) -> None:
        """`fetch_bytes` is what the brokers may return at once."""
        super().__init__(settings, kinds, None, fetch_bytes)

    async def start(self) -> None:
        """Connect. Raises Unavailable."""
        try:
            await start(self._consumer, self._settings)
        except BaseException:
            await self._consumer.stop()
            raise

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

    async def present(self) -> list[Topic]:
        """Returns what any broker says about the topics, without their retention. Raises Unavailable."""
        return await topics.present(client_of(self._consumer), self._kinds)

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
    settings: ProjectorSettings, kinds: Sequence[Kind], fetch_bytes: int = _FETCH_BYTES
) -> AsyncIterator[Reader]:
    """Yields a connected reader of these topics, and closes it at the end. Raises Unavailable."""
    reader = Reader(settings, kinds, fetch_bytes)
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop()


def _existing(partition: Partition, offset: int | None, begin: int, end: int) -> int:
    """Returns the offset if the partition contains it, otherwise the earliest one."""
    if offset is None or begin <= offset <= end:
        return begin if offset is None else offset
    reason = "the records after it were deleted" if offset < begin else "the partition ends before it"
    logger.warning(
        "the topic does not contain the stored position (%s); reading it from the beginning",
        reason,
        extra={"partition": list(partition), "position": offset, "begin": begin, "end": end},
    )
    return begin
