"""The topics as far as the projectors have applied them: what Redis is compared with, and what may still change.

All records before the positions have been written. The head of a stored value names the newest event that was applied.
If that event comes after those positions, the value is newer than what was read, and is looked at again. A value
without a newer event that differs from the topics is wrong.
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
from projector.record import Partition, Record
from projector.redis.store import Store
from projector.reference import Entity, Reference
from projector.verify.stored import Stored
from schemas.layouts import HEAD, read_head
from schemas.resources import CONTACT, KINDS, ORGANIZATION, Kind
from schemas.settings import ProjectorSettings

_NOTICED_SECONDS = 30.0
"""Projectors look at the topics every few seconds."""
_NOTICED_PAUSE_SECONDS = 0.3

Ranges = Mapping[Partition, tuple[int, int]]
T = TypeVar("T")


class Topics:
    """What is compared with: `covered` are the offsets [first, position) that had been written at the last `look`."""

    def __init__(self, store: Store, settings: ProjectorSettings, reader: Reader, kinds: Sequence[Kind]) -> None:
        self.reader = reader
        self.covered: Ranges = {}
        self._available: Ranges = {}
        self._store = store
        self._topics = {kind: topic(settings, kind) for kind in kinds}

    async def look(self, partitions: Sequence[Partition] | None = None) -> Ranges:
        """Read what these partitions have, or all of them, and how far it was written. Returns `covered`. Raises
        Unavailable.
        """
        if partitions is None:
            partitions = await self.reader.partitions()
        record = await copies.require(self._store)
        self.reader.read_as(record.state.histories, record.state.cluster)
        stored = {partition: record.position(partition) for partition in partitions}
        positions = {partition: position.offset if position else 0 for partition, position in stored.items()}
        self._available = await self.reader.range(partitions)
        self.covered = {p: (first, min(last, max(first, positions[p]))) for p, (first, last) in self._available.items()}
        return self.covered

    async def add_to(self, references: Iterable[Reference], wanted: Callable[[Record], bool]) -> None:
        """Add the covered records that are wanted to each of these references. Raises Unavailable."""
        async for records in self.reader.read(self.covered):
            for record in filter(wanted, records):
                for reference in references:
                    reference.add(record)

    async def notes(self) -> list[str]:
        """Returns what limits a comparison with these offsets of the topics, in words."""
        found = [
            f"{at.topic}:{at.partition} begins at offset {first}: documents of earlier records count as extra"
            for at, (first, _) in self.covered.items()
            if first
        ]
        if behind := await lag(self._store, await self.reader.whole_range(list(self.covered))):
            found.append(f"the projectors are {behind:,} records behind: those records are not compared")
        return found

    async def changing(self, found: Mapping[Entity, Stored]) -> set[Entity]:
        """Returns those of which a value has a newer event than was covered, or whose organization has a job due.
        Raises Unavailable.
        """
        self._available = await self.reader.range(list(self.covered))  # whatever was written is before these offsets
        return {entity for entity, stored in found.items() if stored.waits_for_job or self._is_newer(entity, stored)}

    def _is_newer(self, entity: Entity, stored: Stored) -> bool:
        """An event from a former history of its topic is not newer, whatever its offset."""
        for kind, value in ((ORGANIZATION, stored.organization), (entity[0], stored.value), (CONTACT, stored.contact)):
            if len(value) < HEAD:
                continue
            head = read_head(value)
            partition = Partition(self._topics[kind], head.partition)
            if head.history != self.reader.histories.get(partition.topic, 0):
                continue
            # If the offset is not below the end offset of its partition, the value is corrupted.
            if partition in self.covered and self.covered[partition][1] <= head.offset < self._available[partition][1]:
                return True
        return False


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
                raise Refused(
                    f"{', '.join(it.topic for it in found)} was created again, and no projector has noticed it yet, "
                    "so nothing can be verified: see `status`, and try again when projectors are running."
                )
            await asyncio.sleep(_NOTICED_PAUSE_SECONDS)


@asynccontextmanager
async def open_topics(store: Store, settings: ProjectorSettings, kinds: Sequence[Kind]) -> AsyncIterator[Topics]:
    """Yields these topics. Raises Refused if one of them does not exist, and Unavailable."""
    async with open_reader(settings, kinds) as reader:
        topics = Topics(store, settings, reader, kinds)
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
