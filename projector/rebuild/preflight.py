"""What a rebuild will cost, and whether it can be done at all: asked before anything is begun."""

from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Console

from projector.kafka.reader import Retention, open_reader
from projector.ledger import generations
from projector.ledger.generations import Registry
from projector.ledger.ledger import Ledger, lag
from projector.mapping import VERSION
from projector.rebuild.replay import load, progress
from projector.record import DOCUMENT_KINDS, Partition
from projector.redis.store import Store
from schemas.settings import ProjectorSettings

# What one process does on a small machine: an estimate until the replay's own rate is known.
_RATE = 20_000
_ROOM = 0.9


class Preflight(msgspec.Struct, frozen=True):
    """`memory_needed` and `memory_free` are bytes; `memory_bound` says free of what."""

    generation: int
    resumed: bool
    mapping: int
    live_mapping: int | None
    records: int
    seconds: float
    memory_needed: int
    memory_free: int
    memory_bound: str
    problems: list[str]
    notes: list[str]


async def check(store: Store, settings: ProjectorSettings) -> Preflight:
    """Look at topics and Redis. Raises Unavailable."""
    registry = await generations.read(store)
    async with open_reader(settings, DOCUMENT_KINDS) as reader:
        ranges = await reader.range(await reader.partitions())
        retention = await reader.retention()
    positions = await Ledger(store).positions(list(ranges))
    records = sum(max(0, (positions[p] or 0) - first) for p, (first, _) in ranges.items())
    share = 1.0
    if registry.next:
        begun = await load(store, settings, registry.next)
        done = await progress(store, begun, [partition.topic for partition in ranges])
        records, share = done.left, done.left / max(1, done.total)
    behind = await lag(store, ranges)
    needed, free, bound = _memory(_together(await store.memories()), registry)
    needed = int(needed * share)
    live = registry.descriptions.get(registry.live)
    resumed = bool(registry.next)
    problems = _missing(ranges) + _unread(ranges, positions) + _retention(retention or {})
    if needed > _ROOM * free and not resumed:
        problems.append(
            f"two generations do not fit: about {_mib(needed)} more are needed, {_mib(free)} are free of {bound}"
        )
    notes = [] if retention else ["the brokers do not say how long the topics keep their records"]
    if behind:
        notes.append(f"the live generation is {behind:,} records behind: a projector must be running")
    return Preflight(
        generation=registry.next or registry.highest + 1,
        resumed=resumed,
        mapping=VERSION,
        live_mapping=live.mapping if live else None,
        records=records,
        seconds=records / _RATE,
        memory_needed=needed,
        memory_free=free,
        memory_bound=bound,
        problems=problems,
        notes=notes,
    )


def _together(memories: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The sum of all shards."""
    names = ("used_memory", "used_memory_startup", "used_memory_rss", "maxmemory", "total_system_memory")
    return {name: sum(int(memory.get(name) or 0) for memory in memories) for name in names}


def _memory(memory: dict[str, int], registry: Registry) -> tuple[int, int, str]:
    """Bytes that one more generation needs, bytes that are free, and of what."""
    used = int(memory["used_memory"])
    documents = used - int(memory["used_memory_startup"])
    needed = documents // len(registry.writing)
    if memory.get("maxmemory"):
        return needed, int(memory["maxmemory"]) - used, "Redis's maxmemory"
    return needed, int(memory["total_system_memory"]) - int(memory["used_memory_rss"]), "the machine's memory"


def _missing(ranges: Mapping[Partition, tuple[int, int]]) -> list[str]:
    return [
        f"{topic}:{partition} begins at offset {first}: earlier records are gone, and what only they said would be lost"
        for (topic, partition), (first, _) in sorted(ranges.items())
        if first
    ]


def _unread(ranges: Mapping[Partition, tuple[int, int]], positions: Mapping[Partition, int | None]) -> list[str]:
    return [
        f"{topic}:{partition} lost the offsets {position} to {first - 1} before a projector had read them"
        for (topic, partition), (first, _) in sorted(ranges.items())
        if (position := positions[Partition(topic, partition)]) is not None and position < first
    ]


def _retention(found: Mapping[str, Retention]) -> list[str]:
    return [
        f"topic {topic} deletes old records (cleanup.policy={kept.policy}, retention.ms={kept.milliseconds}, "
        f"retention.bytes={kept.bytes}): what did not change since would be lost. Make it cleanup.policy=compact"
        for topic, kept in sorted(found.items())
        if "delete" in kept.policy and (kept.milliseconds >= 0 or kept.bytes >= 0)
    ]


def show(preflight: Preflight, console: Console) -> None:
    """Print what a rebuild will cost."""
    verb = "goes on" if preflight.resumed else "begins"
    console.print(
        f"[bold]rebuild[/] of generation [bold]{preflight.generation}[/] {verb}, mapping version {preflight.mapping} "
        f"(the live one: {preflight.live_mapping or 'unknown'})"
    )
    console.print(f"  records to replay   {preflight.records:,}, about {duration(preflight.seconds)} at {_RATE:,}/s")
    console.print(
        f"  memory              about {_mib(preflight.memory_needed)} more, "
        f"{_mib(preflight.memory_free)} free of {preflight.memory_bound}"
    )
    for note in preflight.notes:
        console.print(f"  [yellow]note[/]              {note}")
    for problem in preflight.problems:
        console.print(f"  [red]problem[/]           {problem}")


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _mib(count: int) -> str:
    return f"{count / 1048576:,.1f} MiB"
