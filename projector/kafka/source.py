"""The records of some topics, as a member of a consumer group."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from projector.kafka.client import consumer, errors, records, topic
from projector.record import Kind, Partition, Record
from schemas.settings import ProjectorSettings

logger = logging.getLogger(__name__)


class Source:
    """The records of some topics, shared with every other member of the group.

    Where to read from is the caller's to say, for each partition that it is given: until `place`, `poll` returns
    nothing of it. `on_revoked` is awaited before partitions are let go.
    """

    def __init__(
        self,
        settings: ProjectorSettings,
        kinds: Sequence[Kind],
        group_id: str,
        on_revoked: Callable[[], Awaitable[None]],
    ) -> None:
        self._kinds = {topic(settings, kind): kind for kind in kinds}
        self._consumer = consumer(settings, group_id)
        self._listener = _Listener(self, on_revoked)
        self._positioned: set[Partition] = set()

    async def start(self) -> None:
        """Join the group. Raises Unavailable while no broker can be reached."""
        async with errors():
            await self._consumer.start()
        self.join()

    async def stop(self) -> None:
        await self._consumer.stop()

    def join(self) -> None:
        """Ask for a share of the partitions."""
        self._consumer.subscribe(list(self._kinds), listener=self._listener)

    def leave(self) -> None:
        """Leave all partitions to the others, until `join`."""
        self._positioned.clear()
        self._consumer.unsubscribe()

    def assigned(self) -> set[Partition]:
        """The partitions that are this member's now."""
        return {Partition(*partition) for partition in self._consumer.assignment()}

    def unpositioned(self) -> list[Partition]:
        """Assigned partitions that wait for `place`."""
        return sorted(self.assigned() - self._positioned)

    def reset(self, partitions: Iterable[Partition]) -> None:
        """Return nothing more of these partitions until `place`."""
        self._positioned.difference_update(partitions)

    async def seek(self, offsets: Mapping[Partition, int | None]) -> dict[Partition, int]:
        """Read on from these offsets, from the beginning where one is None; where that is. Raises Unavailable.

        An offset outside of what the topic holds is said in the log, and becomes the beginning.
        """
        wanted = [TopicPartition(*partition) for partition in offsets]
        async with errors():
            begin = await self._consumer.beginning_offsets(wanted)
            end = await self._consumer.end_offsets(wanted)
        placed = {}
        for partition, offset in offsets.items():
            at = TopicPartition(*partition)
            placed[partition] = _inside(partition, offset, begin[at], end[at])
            async with errors():
                self._consumer.seek(at, placed[partition])
        self._positioned.update(offsets)
        return placed

    async def poll(self, most: int, wait: float) -> dict[Partition, list[Record]]:
        """Up to `most` records, in order for each partition; waits so many seconds for one. Raises Unavailable."""
        placed = frozenset(self._positioned)
        async with errors():
            polled = await self._consumer.getmany(timeout_ms=int(wait * 1000), max_records=most)
        # What was fetched before it was placed, or meanwhile, is not from where the caller wants it.
        return {
            Partition(*partition): records(messages, self._kinds[partition.topic])
            for partition, messages in polled.items()
            if messages and Partition(*partition) in placed & self._positioned
        }

    def pause(self) -> None:
        """Fetch nothing more, and stay a member of the group."""
        self._consumer.pause(*self._consumer.assignment())

    async def position(self, partition: Partition) -> int | None:
        """The next offset that would be read: past markers that are no records. None when not assigned."""
        try:
            return int(await self._consumer.position(TopicPartition(*partition)))
        except KafkaError:
            return None

    async def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset after the last record of each partition. Raises Unavailable."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        async with errors():
            found = await self._consumer.end_offsets(wanted) if wanted else {}
        return {Partition(*partition): offset for partition, offset in found.items()}

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Tell Kafka how far we are, for lag tools; we never resume from it. Raises Unavailable."""
        owned = self.assigned()
        wanted = {TopicPartition(*p): offset for p, offset in offsets.items() if p in owned}
        if wanted:
            async with errors():
                await self._consumer.commit(wanted)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, source: Source, on_revoked: Callable[[], Awaitable[None]]) -> None:
        self._source = source
        self._on_revoked = on_revoked

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        if revoked:
            await self._on_revoked()
        self._source.reset([Partition(*partition) for partition in revoked])

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._source.reset([Partition(*partition) for partition in assigned])


def _inside(partition: Partition, offset: int | None, begin: int, end: int) -> int:
    if offset is None or begin <= offset <= end:
        return begin if offset is None else offset
    what = "records in between are gone" if offset < begin else "the topic was made again"
    logger.warning(
        "the position is outside of the topic (%s): reading it from the beginning",
        what,
        extra={"partition": list(partition), "position": offset, "begin": begin, "end": end},
    )
    return begin
