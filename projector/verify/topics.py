"""The topics as far as they can be read, and as far as the projectors have applied them.

All records before the positions have been written. The head of a stored value names the newest event that was applied.
If that event comes after what was read, the value is newer than what was read, and is looked at again. A value without
a newer event that differs from the topics is wrong.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from projector.errors import Refused
from projector.kafka.client import topic
from projector.kafka.reader import Reader, open_reader
from projector.ledger import copies
from projector.ledger.breaks import recreated
from projector.ledger.control import ControlRecord
from projector.ledger.ledger import lag
from projector.reason import TopicReason
from projector.record import Partition, Record
from projector.redis.store import Store
from projector.reference import Entity
from projector.verify.stored import Stored
from schemas.layouts import HEAD, Head, read_head
from schemas.resources import CONTACT, KINDS, ORGANIZATION, Kind
from schemas.settings import ProjectorSettings

_NOTICED_SECONDS = 30.0
"""Projectors look at the topics every few seconds."""
_NOTICED_PAUSE_SECONDS = 0.3
_SINGLE_FETCH_BYTES = 131_072
"""What is fetched at once to read single records."""
_NEAR = 200
"""Records that are nearer than this number of offsets are read together, with those between them."""

Ranges = Mapping[Partition, tuple[int, int]]
Place = tuple[Partition, int]
"""A partition and an offset: the coordinates of a record."""
T = TypeVar("T")


class Topics:
    """What is compared with: `covered` are the offsets [first, position) that had been written at the last `look`."""

    def __init__(
        self, store: Store, settings: ProjectorSettings, reader: Reader, single: Reader, kinds: Sequence[Kind]
    ) -> None:
        self.reader = reader
        self.covered: Ranges = {}
        self.available: Ranges = {}
        """What Kafka had when it was asked last: whatever was read in Redis before that is from before these ends."""
        self._single = single
        self._store = store
        self._topics = {kind: topic(settings, kind) for kind in kinds}

    def partition(self, kind: Kind, number: int) -> Partition:
        """Returns the partition with this number in the topic of a kind."""
        return Partition(self._topics[kind], number)

    async def look(self, partitions: Sequence[Partition] | None = None) -> Ranges:
        """Read what these partitions have, or all of them, and how far it was written. Returns `covered`. Raises
        Unavailable.
        """
        if partitions is None:
            partitions = await self.reader.partitions()
        record = await self.record()
        stored = {partition: record.position(partition) for partition in partitions}
        positions = {partition: position.offset if position else 0 for partition, position in stored.items()}
        self.available = await self.reader.range(partitions)
        self.covered = {p: (first, min(last, max(first, positions[p]))) for p, (first, last) in self.available.items()}
        return self.covered

    async def look_again(self) -> None:
        """Read what Kafka has now. Raises Unavailable."""
        self.available = await self.reader.range(list(self.available))

    async def record(self) -> ControlRecord:
        """Returns the control record. Records that are read from now on are of the histories that it knows. Raises
        Refused if Redis is empty, and Unavailable.
        """
        record = await copies.require(self._store)
        for reader in (self.reader, self._single):
            reader.read_as(record.state.histories, record.state.cluster)
        return record

    async def read_at(self, places: Iterable[Place]) -> AsyncIterator[Record]:
        """Yields the records with these coordinates, as far as Kafka still has them. Raises Unavailable."""
        wanted = set(places)
        ranges: dict[Partition, list[tuple[int, int]]] = {}
        for partition, offset in sorted(wanted):
            of_partition = ranges.setdefault(partition, [])
            if of_partition and offset - of_partition[-1][1] < _NEAR:
                of_partition[-1] = of_partition[-1][0], offset + 1
            else:
                of_partition.append((offset, offset + 1))
        while ranges:
            available = await self._single.range(list(ranges))
            now = {partition: of_partition.pop(0) for partition, of_partition in ranges.items()}
            ranges = {partition: of_partition for partition, of_partition in ranges.items() if of_partition}
            some = {
                at: (max(first, available[at][0]), min(last, available[at][1])) for at, (first, last) in now.items()
            }
            async for records in self._single.read(some):
                for record in records:
                    if (Partition(record.topic, record.partition), record.offset) in wanted:
                        yield record

    async def notes(self) -> list[str]:
        """Returns what limits a comparison with these offsets of the topics, in words."""
        found = [
            f"{at.topic}:{at.partition} begins at offset {first}: documents of earlier records count as extra"
            for at, (first, _) in self.available.items()
            if first
        ]
        if behind := await lag(self._store, await self.reader.whole_range(list(self.available))):
            found.append(f"the projectors are {behind:,} records behind: those records are not compared")
        return found

    def is_newer(self, entity: Entity, stored: Stored, ends: Mapping[Partition, int], *, alone: bool = False) -> bool:
        """Returns whether a value has a newer event than the records before these ends. `alone`: whatever the contact
        of a lead has.

        An event from a former history of its topic is not newer, whatever its offset.
        """
        values = [(ORGANIZATION, stored.organization), (entity[0], stored.value)]
        for kind, value in values if alone else [*values, (CONTACT, stored.contact)]:
            if len(value) >= HEAD and self.is_after(kind, read_head(value), ends):
                return True
        return False

    def is_after(self, kind: Kind, head: Head, ends: Mapping[Partition, int]) -> bool:
        """Returns whether an event comes after the records before these ends."""
        at = self.partition(kind, head.partition)
        if head.history != self.reader.histories.get(at.topic, 0):
            return False
        # If the offset is not below the end offset of its partition, the value is corrupted.
        return at in ends and ends[at] <= head.offset < self.available[at][1]


async def noticed(store: Store, settings: ProjectorSettings) -> ControlRecord:
    """Returns the control record, as soon as all positions in it are of the topics that exist now.

    The offsets of a former topic say nothing about what of the present one was applied. What is verified under them
    confirms nothing either: that the topic was created again would be noted afterwards. Raises Refused if no projector
    notices it, and Unavailable.
    """
    async with open_reader(settings, KINDS) as reader:
        deadline = time.monotonic() + _NOTICED_SECONDS
        while True:
            ids = await reader.topic_ids()  # first: so the positions are not older
            record = await copies.require(store)
            reader.read_as(record.state.histories, record.state.cluster)
            found = recreated(record, record.stored(), ids)
            if not found:
                return record
            if time.monotonic() > deadline:
                raise Refused(TopicReason("recreated_unnoticed", tuple(it.topic for it in found)))
            await asyncio.sleep(_NOTICED_PAUSE_SECONDS)


@asynccontextmanager
async def open_topics(store: Store, settings: ProjectorSettings, kinds: Sequence[Kind]) -> AsyncIterator[Topics]:
    """Yields these topics. Raises Refused if one of them does not exist, and Unavailable."""
    async with (
        open_reader(settings, kinds) as reader,
        open_reader(settings, kinds, _SINGLE_FETCH_BYTES) as single,
    ):
        topics = Topics(store, settings, reader, single, kinds)
        await reader.existing_partitions()
        yield topics


async def settle(
    suspects: T,
    look: Callable[[T], Awaitable[T]],
    *,
    rounds: int = 5,
    pause: float = 0.3,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Look at suspects again, because they may only have changed while they were compared.

    `look` returns those that have to be looked at once more. Returns those that are left after this many rounds.
    """
    for _ in range(rounds):
        if not suspects:
            break
        await sleep(pause)
        suspects = await look(suspects)
    return suspects
