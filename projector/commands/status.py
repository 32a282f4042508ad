"""Reads the status of the projection: lag and age of each partition, generations, dead letters, memory.

Everything is read from Redis and Kafka, nothing from a projector, so it is also correct if no projector is running.
"""

import time
from collections.abc import Mapping

import msgspec

from projector.kafka.reader import open_reader
from projector.ledger import copies, writers
from projector.ledger.checkpoint import Position
from projector.ledger.control import ControlRecord
from projector.ledger.writers import Writer
from projector.mapping import VERSION
from projector.record import Partition
from projector.redis.store import Store
from schemas import names
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings


class PartitionStatus(msgspec.Struct, frozen=True):
    """`position` is the next offset to be applied, None if nothing has been applied yet.

    `log_start` is the first offset in Kafka, `head` the end offset. Ages are in seconds.
    """

    topic: str
    partition: int
    position: int | None
    log_start: int
    head: int
    lag: int
    newest_event_age: float | None
    checkpoint_age: float | None


class GenerationStatus(msgspec.Struct, frozen=True):
    """`state` is live, former (`rollback` returns to it), filling, complete (may be promoted), kept or dropping."""

    number: int
    state: str
    mapping: int | None
    created_at: str | None
    verified_at: str | None


class WriterStatus(msgspec.Struct, frozen=True):
    """A program that writes. `age` is that of its last heartbeat in seconds; it is alive if that is below 5."""

    id: str
    role: str
    alive: bool
    age: float
    mapping_version: int
    epoch: int
    lines: dict[str, str]


class Status(msgspec.Struct, frozen=True):
    """The status of the projection. `freshness` is the age in seconds of the oldest state that a reader may see."""

    generation: int | None
    writing: list[int]
    mapping_version: int
    live_mapping_version: int | None
    rebuild_due: bool
    lag: int
    freshness: float
    dead_letters: int
    redis_used_memory: int
    redis_max_memory: int
    generations: list[GenerationStatus]
    partitions: list[PartitionStatus]
    epoch: int
    incomplete_shards: int
    """Shards that do not hold everything of the live generation. The API answers 503 for their organizations."""
    writers: list[WriterStatus]


async def read(store: Store, settings: ProjectorSettings) -> Status:
    """Read the status from Redis and Kafka. Raises Refused if Redis is empty, and Unavailable."""
    async with open_reader(settings, KINDS) as reader:
        # Read before the positions: otherwise records that are published in between would count as lag.
        ranges = await reader.range(await reader.partitions())
    record = await copies.require(store)
    stored = {partition: record.position(partition) for partition in ranges}
    memories = await store.memories()
    dead_letters = await store.ask_one(b"HLEN", names.DEAD_LETTERS)
    partitions = _partitions(ranges, stored, time.time() * 1000)
    state = record.state
    live = state.generations.get(state.live)
    return Status(
        generation=state.live if record.serves else None,
        writing=list(state.written),
        mapping_version=VERSION,
        live_mapping_version=live.mapping if live else None,
        rebuild_due=record.rebuild_due(),
        lag=sum(partition.lag for partition in partitions),
        freshness=max([_staleness(partition) for partition in partitions], default=0.0),
        dead_letters=dead_letters,
        redis_used_memory=sum(int(memory["used_memory"]) for memory in memories),
        redis_max_memory=sum(int(memory.get("maxmemory") or 0) for memory in memories),
        generations=_generations(record),
        partitions=partitions,
        epoch=record.stamp.epoch,
        incomplete_shards=sum(not (copy and copy.serves) for copy in record.copies.values()),
        writers=[_writer(writer) for writer in await writers.read(store)],
    )


def _writer(writer: Writer) -> WriterStatus:
    heartbeat = writer.heartbeat
    return WriterStatus(
        id=writer.id,
        role=heartbeat.role,
        alive=writer.alive,
        age=writer.age_ms / 1000,
        mapping_version=heartbeat.mapping,
        epoch=heartbeat.acknowledged.epoch,
        lines=heartbeat.lines,
    )


def _generations(record: ControlRecord) -> list[GenerationStatus]:
    statuses = []
    for number in sorted(record.state.known):
        known = record.state.generations.get(number)
        statuses.append(
            GenerationStatus(
                number,
                _state(record, number),
                known.mapping if known else None,
                known.created_at if known else None,
                known.verified_at if known else None,
            )
        )
    return statuses


def _state(record: ControlRecord, number: int) -> str:
    state = record.state
    if number in state.dropping:
        return "dropping"
    if number == state.live:
        return "live" if record.serves else "filling"
    if number == state.previous:
        return "former"
    if not record.is_complete(number):
        return "filling"
    return "complete" if number == state.next else "kept"


def _partitions(
    ranges: Mapping[Partition, tuple[int, int]], stored: Mapping[Partition, Position | None], now: float
) -> list[PartitionStatus]:
    statuses = []
    for partition, (first, last) in sorted(ranges.items()):
        position = stored.get(partition)
        at = max(position.offset if position else first, first)
        statuses.append(
            PartitionStatus(
                topic=partition.topic,
                partition=partition.partition,
                position=position.offset if position else None,
                log_start=first,
                head=last,
                lag=max(0, last - at),
                newest_event_age=_age(position.event_time, now) if position else None,
                checkpoint_age=_age(position.stored_at, now) if position else None,
            )
        )
    return statuses


def _age(time_ms: int, now_ms: float) -> float | None:
    return max(0.0, round((now_ms - time_ms) / 1000, 3)) if time_ms else None


def _staleness(partition: PartitionStatus) -> float:
    """Returns the age of a partition's state: 0 without lag, however old its last event is."""
    if not partition.lag:
        return 0.0
    return partition.newest_event_age or partition.checkpoint_age or 0.0
