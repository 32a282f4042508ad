"""How far the projection is: lag and freshness of each partition, generation, dead letters, memory.

Everything comes from Redis and Kafka, nothing from a projector: it says the truth also when none is running.
"""

import time
from collections.abc import Mapping

import msgspec
from rich.console import Console
from rich.table import Table

from projector.kafka.reader import open_reader
from projector.ledger import generations
from projector.ledger.checkpoint import Position
from projector.ledger.generations import Registry
from projector.ledger.ledger import read_stored
from projector.mapping import VERSION
from projector.record import Kind, Partition
from projector.redis.store import Store
from schemas import names
from schemas.settings import ProjectorSettings


class PartitionStatus(msgspec.Struct, frozen=True):
    """`position` is the next offset to be applied, None where nothing was yet; ages are in seconds."""

    topic: str
    partition: int
    position: int | None
    log_start: int
    head: int
    lag: int
    newest_event_age: float | None
    checkpoint_age: float | None


class GenerationStatus(msgspec.Struct, frozen=True):
    """`state` is live, former (what `rollback` serves again), filling, complete (may be promoted), kept or dropping."""

    number: int
    state: str
    mapping: int | None
    created_at: str | None
    verified_at: str | None


class Status(msgspec.Struct, frozen=True):
    """The whole picture. `freshness` is the age, in seconds, of the oldest state that a reader may see."""

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


async def look(store: Store, settings: ProjectorSettings) -> Status:
    """Ask Redis and Kafka. Raises Unavailable."""
    async with open_reader(settings, list(Kind)) as reader:
        # Right before the positions: what is published in between would look like lag.
        ranges = await reader.range(await reader.partitions())
    registry = await generations.read(store)
    stored = await read_stored(store, list(ranges))
    memories = await store.memories()
    [letters] = await store.ask([(b"HLEN", names.DEAD_LETTERS)])
    partitions = _partitions(ranges, stored, time.time() * 1000)
    live = registry.descriptions.get(registry.live)
    return Status(
        generation=registry.live or None,
        writing=list(registry.writing),
        mapping_version=VERSION,
        live_mapping_version=live.mapping if live else None,
        rebuild_due=registry.rebuild_due(),
        lag=sum(partition.lag for partition in partitions),
        freshness=max([_staleness(partition) for partition in partitions], default=0.0),
        dead_letters=letters,
        redis_used_memory=sum(int(memory["used_memory"]) for memory in memories),
        redis_max_memory=sum(int(memory.get("maxmemory") or 0) for memory in memories),
        generations=_generations(registry),
        partitions=partitions,
    )


def _generations(registry: Registry) -> list[GenerationStatus]:
    found = []
    for number in sorted({*registry.writing, *registry.descriptions, *registry.dropping}):
        known = registry.descriptions.get(number)
        found.append(
            GenerationStatus(
                number,
                _state(registry, number),
                known.mapping if known else None,
                known.created_at if known else None,
                known.verified_at if known else None,
            )
        )
    return found


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
    found = []
    for partition, (first, last) in sorted(ranges.items()):
        position = stored.get(partition)
        at = max(position.offset if position else first, first)
        found.append(
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
    return found


def _age(time_ms: int, now_ms: float) -> float | None:
    return max(0.0, round((now_ms - time_ms) / 1000, 3)) if time_ms else None


def _staleness(partition: PartitionStatus) -> float:
    """A partition without lag is as fresh as can be, however long ago its last event was."""
    if not partition.lag:
        return 0.0
    return partition.newest_event_age or partition.checkpoint_age or 0.0


def show(status: Status, console: Console) -> None:
    """Print a status for people."""
    live = "none yet: the first projection is not complete" if status.generation is None else status.generation
    console.print(
        f"[bold]Leadview[/]  generation [bold]{live}[/]  mapping version {status.live_mapping_version or '-'}"
    )
    if status.rebuild_due:
        console.print(f"[yellow]rebuild due:[/] this program maps with version {status.mapping_version}")
    if len(status.generations) > 1:
        console.print(_generation_table(status))
    console.print(_table(status))
    letters = f"[red]{status.dead_letters}[/]" if status.dead_letters else "0"
    console.print(
        f"lag {status.lag:,}   freshness {_seconds(status.freshness)}   dead letters {letters}   {_memory(status)}"
    )


def _generation_table(status: Status) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("generation", "state", "mapping", "begun", "verified"):
        table.add_column(column)
    for generation in status.generations:
        table.add_row(
            str(generation.number),
            generation.state,
            str(generation.mapping or "-"),
            generation.created_at or "-",
            generation.verified_at or "-",
        )
    return table


def _table(status: Status) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("topic")
    for column in ("partition", "position", "head", "lag", "newest event", "checkpoint"):
        table.add_column(column, justify="right")
    for partition in status.partitions:
        table.add_row(
            partition.topic,
            str(partition.partition),
            "-" if partition.position is None else f"{partition.position:,}",
            f"{partition.head:,}",
            f"[yellow]{partition.lag:,}[/]" if partition.lag else "0",
            _seconds(partition.newest_event_age, " ago"),
            _seconds(partition.checkpoint_age, " ago"),
        )
    return table


def _seconds(age: float | None, suffix: str = "") -> str:
    if age is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if age >= 2 * size:
            return f"{age / size:.0f} {unit}{suffix}"
    return f"{age:.1f} s{suffix}" if age < 10 else f"{age:.0f} s{suffix}"


def _memory(status: Status) -> str:
    used = f"Redis {status.redis_used_memory / 1048576:,.1f} MiB"
    if not status.redis_max_memory:
        return used
    return (
        f"{used} of {status.redis_max_memory / 1048576:,.0f} ({status.redis_used_memory / status.redis_max_memory:.0%})"
    )
