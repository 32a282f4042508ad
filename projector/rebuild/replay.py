"""A rebuild: the next generation is filled beside the live one, which stays served and current.

From the moment that it begins, every projector writes both generations in the same script calls (no checkpoint covers a
batch that missed one). So only what was covered before is left to replay: each partition from its beginning to the
position that it had then, its target. After the replay both generations move as one, and a promotion changes nothing
that a reader could see, but for what the mapping changed.

Any number of processes share the replay, and each may die at any time: positions and targets stand in Redis
(`lv:{ledger}:rebuild:<generation>`), written by the same code and rules as the live ones.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from projector.errors import LineStopped, Refused, Unavailable
from projector.kafka.client import topic
from projector.kafka.reader import open_reader
from projector.ledger import generations
from projector.ledger.generations import Description, Registry
from projector.ledger.ledger import Ledger
from projector.line.line import Line
from projector.line.pace import Burst
from projector.mapping import VERSION
from projector.rebuild.throttle import Throttle
from projector.record import DOCUMENT_KINDS, Kind, Partition
from projector.redis.store import Store
from projector.stop import Stop
from schemas import names
from schemas.settings import ProjectorSettings

_LOOK_SECONDS = 0.25
# Contacts first: their leads are then written once, with the summary in place.
_ORDER = (Kind.CONTACT, Kind.LEAD)


class Progress(msgspec.Struct, frozen=True):
    """How far a replay is, over all processes, in offsets."""

    done: int
    total: int

    @property
    def left(self) -> int:
        return self.total - self.done

    @property
    def finished(self) -> bool:
        return self.done >= self.total


class Rebuild(msgspec.Struct, frozen=True):
    """A rebuild that has begun: `ranges` are the offsets [first, target) that each partition's replay reads."""

    generation: int
    ranges: dict[Partition, tuple[int, int]]


async def begin(store: Store, settings: ProjectorSettings) -> Rebuild:
    """Begin the next generation, or go on with the one that was begun. Raises Refused or Unavailable."""
    registry = await generations.read(store)
    while not registry.next:
        if not registry.live:
            raise Refused("Nothing is served yet: the first projection fills generation 1 by itself.")
        await _add_generation(store, registry)
        registry = await generations.read(store)
    generation = registry.next
    if (begun_with := registry.descriptions[generation].mapping) != VERSION:
        raise Refused(
            f"Generation {generation} was begun with mapping version {begun_with}, this program has {VERSION}. "
            f"Go on with that program, or `drop {generation}` and begin again."
        )
    return await load(store, settings, generation)


async def _add_generation(store: Store, registry: Registry) -> None:
    """Let all projectors write one more generation from now on; unless somebody else has just changed which."""
    generation = await generations.new_number(store, registry)
    await generations.describe(store, generation, Description(VERSION, generations.now()))
    await store.ask_one(b"HSET", names.rebuild(generation), b"writing", generation)
    if not await generations.change_writing(store, registry.writing, (*registry.writing, generation)):
        await generations.forget(store, generation)
        await Ledger(store, names.rebuild(generation)).drop()


async def load(store: Store, settings: ProjectorSettings, generation: int) -> Rebuild:
    """A rebuild that has begun; its targets are fixed now at the latest. Raises Unavailable."""
    async with open_reader(settings, DOCUMENT_KINDS) as reader:
        found = await reader.range(await reader.partitions())
    live = await Ledger(store).positions(list(found))
    ranges = {}
    for partition, (first, _) in found.items():
        target = await _target(store, generation, partition, live[partition] or 0)
        ranges[partition] = (first, max(first, target))
    return Rebuild(generation, ranges)


async def _target(store: Store, generation: int, partition: Partition, position: int) -> int:
    """Where the replay of a partition ends: fixed by whoever asks first, so that all processes agree."""
    key, field = names.rebuild(generation), names.target(*partition)
    await store.ask_one(b"HSETNX", key, field, position)
    return int(await store.ask_one(b"HGET", key, field) or 0)


async def progress(store: Store, rebuild: Rebuild, topics: Sequence[str]) -> Progress:
    """How far the replay of these topics is. Raises Unavailable."""
    ranges = {partition: both for partition, both in rebuild.ranges.items() if partition.topic in topics}
    positions = await Ledger(store, names.rebuild(rebuild.generation)).positions(list(ranges))
    done = sum(
        min(max((positions[partition] or 0) - first, 0), target - first)
        for partition, (first, target) in ranges.items()
    )
    return Progress(done, sum(target - first for first, target in ranges.values()))


async def replay(store: Store, settings: ProjectorSettings, rebuild: Rebuild, throttle: Throttle, stop: Stop) -> None:
    """Take part in the replay until all of it is done, or `stop` is set. Raises Unavailable, Refused, LineStopped."""
    for kind in _ORDER:
        await _replay_kind(store, settings, rebuild, kind, throttle, stop)
    if not stop.is_set():
        registry = await generations.read(store)
        description = registry.descriptions.get(rebuild.generation)
        if not description or not await generations.amend(
            store, rebuild.generation, msgspec.structs.replace(description, complete=True)
        ):
            raise _gone(rebuild.generation)


async def _replay_kind(
    store: Store, settings: ProjectorSettings, rebuild: Rebuild, kind: Kind, throttle: Throttle, stop: Stop
) -> None:
    """Replay one topic: this process's share, and then the others' until theirs is done as well."""
    if (await progress(store, rebuild, [topic(settings, kind)])).finished:
        return
    done = Stop()
    line = ReplayLine(store, settings, rebuild, kind, throttle)
    running = asyncio.create_task(line.run(done))
    try:
        while not stop.is_set() and not running.done():
            with suppress(Unavailable):  # the line says so, and tries again
                if (await progress(store, rebuild, [topic(settings, kind)])).finished:
                    break
            await stop.sleep(_LOOK_SECONDS)
    finally:
        done.set()
        await running


def _gone(generation: int) -> Refused:
    return Refused(f"Generation {generation} is gone: it was dropped while it was being filled, or Redis was emptied.")


class ReplayLine(Line):
    """A line that writes one generation only, parks nothing, and gives up where a live line would stand still."""

    def __init__(
        self, store: Store, settings: ProjectorSettings, rebuild: Rebuild, kind: Kind, throttle: Throttle
    ) -> None:
        group_id = f"{settings.group_id}.rebuild.{rebuild.generation}.{kind}"
        # Where the ledger is gone, nothing is to be written.
        ledger = Ledger(store, names.rebuild(rebuild.generation), first=(), parks=False)
        super().__init__("rebuild", settings, [kind], group_id, store, ledger)
        self._throttle = throttle
        self._generation = rebuild.generation

    async def _burst(self) -> Burst:
        return await self._throttle.burst()

    async def _pace(self) -> None:
        await self._throttle.wait()

    def _generations_changed(self) -> None:
        raise _gone(self._generation)

    async def _stand_still(self, error: LineStopped, stop: Stop) -> None:  # noqa: ARG002
        raise error
