"""Fills the next generation while the live one is served and kept current.

As soon as a rebuild starts, every projector writes both generations in the same script calls: a checkpoint does not
cover a batch that missed one of them. So only the records covered before that moment have to be replayed: those of each
partition from its first offset to its target, the readable end at that time. After the replay both
generations receive the same writes, and a promotion changes only what the new mapping changes.

Any number of processes share the replay, and each of them may die at any time: positions and targets are stored in
Redis (`lv3{ledger}:rebuild:<generation>`), by the same code and under the same rules as those of the live line.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import msgspec

from operate.rebuild import generations
from projector.errors import Conflict, Refused, Unavailable
from projector.kafka.accepted import AcceptedRecords
from projector.kafka.client import topic
from projector.kafka.ends import USUAL_SECONDS
from projector.kafka.reader import Source, open_reader
from projector.ledger import copies, sweep
from projector.ledger.control import ControlRecord
from projector.ledger.ledger import Ledger, check_written, lag, read_rebuild
from projector.ledger.writers import Writing
from projector.line.line import Line
from projector.line.pace import Pacer
from projector.line.policy import Policy
from projector.mapping import VERSION
from projector.record import Partition
from projector.redis.store import Store
from projector.stop import Stop
from schemas import names
from schemas.control import GenerationId, number_of
from schemas.resources import RESOURCES, Kind
from schemas.settings import ProjectorSettings

_CHECK_SECONDS = 0.25
_CATCH_UP_SECONDS = 60.0


class Progress(msgspec.Struct, frozen=True):
    """The progress of a replay in offsets, summed over all partitions and processes."""

    done: int
    total: int

    @property
    def left(self) -> int:
        return self.total - self.done

    @property
    def finished(self) -> bool:
        return self.done >= self.total


class Rebuild(msgspec.Struct, frozen=True):
    """A rebuild that was started: `ranges` are the offsets [first, target) to replay of each partition."""

    generation: GenerationId
    ranges: dict[Partition, tuple[int, int]]


async def begin(store: Store, settings: ProjectorSettings) -> Rebuild:
    """Start the next generation, or resume the one that was started. Raises Refused or Unavailable."""
    await copies.require(store)
    record = await copies.current(store)
    if not record.state.next:
        record = await add_next(store, record)
    generation = cast(GenerationId, record.state.next)
    if (started_with := record.state.generations[generation].mapping) != VERSION:
        raise Refused(
            f"Generation {number_of(generation)} was started with mapping version {started_with}, this program has "
            f"{VERSION}. Resume the rebuild with that program, or `drop {number_of(generation)}` and start a new one."
        )
    return await load(store, settings, generation)


async def add_next(store: Store, record: ControlRecord) -> ControlRecord:
    """Add the next generation to this record, unless another `rebuild` has added it since the record was read.

    Raises Refused and Unavailable.
    """
    try:
        return await generations.add(store, record)
    except Conflict:
        record = await copies.current(store)
        if not record.state.next:
            raise
        return record


async def load(store: Store, settings: ProjectorSettings, generation: GenerationId) -> Rebuild:
    """Read a rebuild that was started, and store its targets unless they are stored already.

    A target is the readable end of a partition, read when no program could write the live generation alone any more: so
    the replay contains everything that readers may have seen. Raises Unavailable.
    """
    key = names.rebuild(generation)
    async with open_reader(settings, RESOURCES) as reader:
        partitions = await reader.partitions()
        state = (await copies.current(store)).state
        reader.read_as(state.histories, state.cluster)
        fields = [names.target(*partition) for partition in partitions]
        # The first process to ask stores the targets, and all processes use these. If they are lost, later and higher
        # ones take their place: to replay more than necessary is harmless.
        while None in (targets := await store.ask_one(b"HMGET", key, *fields)):
            record = await copies.current(store)
            check_written(record, generation)
            await sweep.stop_writers(store, record.stamp)
            ends = {partition: end for partition, (_, end) in (await reader.range(partitions)).items()}
            await copies.store_targets(store, record, generation, ends)
        available = await reader.range(partitions)
    ranges = {
        partition: (available[partition][0], max(available[partition][0], int(target)))
        for partition, target in zip(partitions, targets, strict=True)
    }
    return Rebuild(generation, ranges)


async def progress(
    store: Store, rebuild: Rebuild, topics: Sequence[str], record: ControlRecord | None = None
) -> Progress:
    """Read the progress of the replay of these topics. Without a `record` it is read as well. Raises Unavailable."""
    ranges = {partition: range_ for partition, range_ in rebuild.ranges.items() if partition.topic in topics}
    positions = await read_rebuild(store, record or await copies.current(store), rebuild.generation, list(ranges))
    done = 0
    for partition, (first, target) in ranges.items():
        position = positions[partition]
        done += min(max(position.offset - first, 0), target - first) if position else 0
    return Progress(done, sum(target - first for first, target in ranges.values()))


async def replay(writing: Writing, settings: ProjectorSettings, rebuild: Rebuild, pacer: Pacer, stop: Stop) -> None:
    """Take part in the replay until the generation is complete or `stop` is set.

    Raises Unavailable, Refused or LineStopped.
    """
    store, topics = writing.store, [topic(settings, kind) for kind in RESOURCES]
    while not stop.is_set():
        with await writing.sessions.open_rebuild(rebuild.generation) as session:
            record = session.record
        if record.is_complete(rebuild.generation):
            return
        # This loop repeats if Redis loses writes of a topic after its replay, while another topic is replayed.
        while not stop.is_set() and not (await progress(store, rebuild, topics)).finished:
            for kind in RESOURCES:
                await _replay_kind(writing, settings, rebuild, kind, pacer, stop)
        if not stop.is_set():
            await _note_filled(store, await copies.current(store), rebuild)
            await stop.sleep(_CHECK_SECONDS)


async def _note_filled(store: Store, record: ControlRecord, rebuild: Rebuild) -> None:
    """Note which shards hold the whole generation: those whose own positions of the replay have reached the targets.

    Shards that were emptied since the generation was added are filled by the live lines, and a keeper notes when they
    are complete.
    """
    generation = rebuild.generation
    needed = {partition: target for partition, (first, target) in rebuild.ranges.items() if target > first}
    await copies.mark_filled(store, record, record.copies, (generation,), needed, rebuild=generation)


async def _replay_kind(
    writing: Writing, settings: ProjectorSettings, rebuild: Rebuild, kind: Kind, pacer: Pacer, stop: Stop
) -> None:
    """Replay this process's share of one topic, then wait until the other processes have done theirs."""
    if (await progress(writing.store, rebuild, [topic(settings, kind)])).finished:
        return
    done = Stop()
    line = _line(writing, settings, rebuild, kind, pacer)
    running = asyncio.create_task(line.run(done))
    try:
        while not stop.is_set() and not running.done():
            with suppress(Unavailable):  # the line logs it and retries
                if (await progress(writing.store, rebuild, [topic(settings, kind)])).finished:
                    break
            await stop.sleep(_CHECK_SECONDS)
    finally:
        done.set()
        await running


async def catch_up(store: Store, settings: ProjectorSettings, stop: Stop) -> int:
    """Wait until the projectors are less than a second behind the end offsets, or `stop` is set. Returns 0 then.

    Returns how many records they are behind if this takes longer than a minute, or if nothing holds them back but a
    transaction that has been open for longer than usual. Raises Unavailable.
    """
    at_readable_end: float | None = None
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    async with open_reader(settings, RESOURCES) as reader:
        partitions = await reader.partitions()
        while not stop.is_set():
            asked_at, ranges = time.monotonic(), await reader.whole_range(partitions)
            while (behind := await lag(store, ranges)) and time.monotonic() < asked_at + 1.0:
                await stop.sleep(0.1)
            if not behind or time.monotonic() > deadline:
                return behind
            is_held = not await lag(store, await reader.range(partitions))
            at_readable_end = (at_readable_end or asked_at) if is_held else None
            if at_readable_end and time.monotonic() > at_readable_end + USUAL_SECONDS:
                return behind
    return 0


def _line(writing: Writing, settings: ProjectorSettings, rebuild: Rebuild, kind: Kind, pacer: Pacer) -> Line:
    """Returns a line that writes this generation only, parks no dead letters, and ends where a live one would halt or
    retry."""
    group_id = f"{settings.group_id}.rebuild.{rebuild.generation}.{kind.topic}"
    ledger = Ledger(writing.store, writing.sessions, rebuild=rebuild.generation)
    source, accepted = Source(settings, [kind], group_id), AcceptedRecords(settings, writing.store)
    return Line("rebuild", source, accepted, writing.store, ledger, Policy.of(settings), pacer, ends=True)
