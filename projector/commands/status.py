"""Reads the status of the projection: lag and age of each partition, generations, dead letters, memory.

Everything is read from Redis and Kafka, nothing from a projector, so it is also correct if no projector is running.
"""

import time
from collections.abc import Mapping

import msgspec

from projector.kafka.reader import open_reader
from projector.ledger import generations
from projector.ledger.checkpoint import Position
from projector.ledger.generations import Registry
from projector.ledger.ledger import read_stored
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


async def read(store: Store, settings: ProjectorSettings) -> Status:
    """Read the status from Redis and Kafka. Raises Unavailable."""
    async with open_reader(settings, KINDS) as reader:
        # Read before the positions: otherwise records that are published in between would count as lag.
        ranges = await reader.range(await reader.partitions())
    registry = await generations.read(store)
    stored = await read_stored(store, list(ranges))
    memories = await store.memories()
    dead_letters = await store.ask_one(b"HLEN", names.DEAD_LETTERS)
    partitions = _partitions(ranges, stored, time.time() * 1000)
    live = registry.descriptions.get(registry.live)
    return Status(
        generation=registry.live or None,
        writing=list(registry.written_generations),
        mapping_version=VERSION,
        live_mapping_version=live.mapping if live else None,
        rebuild_due=registry.rebuild_due(),
        lag=sum(partition.lag for partition in partitions),
        freshness=max([_staleness(partition) for partition in partitions], default=0.0),
        dead_letters=dead_letters,
        redis_used_memory=sum(int(memory["used_memory"]) for memory in memories),
        redis_max_memory=sum(int(memory.get("maxmemory") or 0) for memory in memories),
        generations=_generations(registry),
        partitions=partitions,
    )


def _generations(registry: Registry) -> list[GenerationStatus]:
    statuses = []
    for number in sorted({*registry.written_generations, *registry.descriptions, *registry.dropping}):
        known = registry.descriptions.get(number)
        statuses.append(
            GenerationStatus(
                number,
                _state(registry, number),
                known.mapping if known else None,
                known.created_at if known else None,
                known.verified_at if known else None,
            )
        )
    return statuses


def _state(registry: Registry, number: int) -> str:
    if number in registry.dropping:
        return "dropping"
    if number == registry.live:
        return "live"
    if number == registry.previous:
        return "former"
    known = registry.descriptions.get(number)
    if known and not known.complete:
        return "filling"
    return "complete" if number == registry.next else "kept"


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
