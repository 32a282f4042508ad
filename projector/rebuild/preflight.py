"""What a rebuild will cost, and what prevents it: checked before it starts."""

from collections.abc import Mapping, Sequence

import msgspec

from projector.kafka.reader import open_reader
from projector.kafka.topics import Topic
from projector.ledger import copies
from projector.ledger.control import State
from projector.ledger.ledger import lag
from projector.mapping import VERSION
from projector.rebuild.replay import load, progress
from projector.record import Partition
from projector.redis.store import Store
from schemas.control import number_of
from schemas.resources import RESOURCES
from schemas.settings import ProjectorSettings

RATE = 20_000
"""Records a second that one process replays on a small machine: an estimate until the actual rate is known."""
_USABLE_SHARE = 0.9


class Preflight(msgspec.Struct, frozen=True):
    """`memory_needed` and `memory_free` are in bytes; `memory_bound` names the limit that `memory_free` refers to.

    `problems` prevent a rebuild unless it is forced, `notes` do not.
    """

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
    """Read the state of the topics and of Redis. Raises Unavailable."""
    record = await copies.require(store)
    state = record.state
    async with open_reader(settings, RESOURCES) as reader:
        topics = await reader.topics()
        ranges = await reader.range([partition for topic in topics for partition in topic.partitions])
    stored = {partition: record.position(partition) for partition in ranges}
    positions = {partition: position.offset if position else None for partition, position in stored.items()}
    records = sum(max(0, record.highest_offset(p) - first) for p, (first, _) in ranges.items())
    share = 1.0
    if state.next:
        rebuild = await load(store, settings, state.next)
        done = await progress(store, rebuild, [partition.topic for partition in ranges])
        records, share = done.left, done.left / max(1, done.total)
    behind = await lag(store, ranges)
    needed, free, bound = _memory(_sum(await store.memories()), state)
    needed = int(needed * share)
    live = state.generations.get(state.live)
    resumed = bool(state.next)
    problems = _topics(topics) + _missing(ranges) + _unread(ranges, positions)
    if needed > _USABLE_SHARE * free and not resumed:
        problems.append(
            f"two generations do not fit: about {mib(needed)} more are needed, {mib(free)} are free of {bound}"
        )
    retention = [topic.retention for topic in topics if topic.exists]
    notes = [] if all(retention) else ["the brokers do not report how long the topics keep their records"]
    if behind:
        notes.append(f"the live generation is {behind:,} records behind: a projector must be running")
    return Preflight(
        generation=number_of(state.next) if state.next else state.next_number,
        resumed=resumed,
        mapping=VERSION,
        live_mapping=live.mapping if live else None,
        records=records,
        seconds=records / RATE,
        memory_needed=needed,
        memory_free=free,
        memory_bound=bound,
        problems=problems,
        notes=notes,
    )


def _sum(memories: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Returns the sums over all shards."""
    names = ("used_memory", "used_memory_startup", "used_memory_rss", "maxmemory", "total_system_memory")
    return {name: sum(int(memory.get(name) or 0) for memory in memories) for name in names}


def _memory(memory: dict[str, int], state: State) -> tuple[int, int, str]:
    """Returns the bytes that one more generation needs, the bytes that are free, and which limit they refer to."""
    used = int(memory["used_memory"])
    documents = used - int(memory["used_memory_startup"])
    needed = documents // len(state.written)
    if memory.get("maxmemory"):
        return needed, int(memory["maxmemory"]) - used, "Redis's maxmemory"
    return needed, int(memory["total_system_memory"]) - int(memory["used_memory_rss"]), "the machine's memory"


def _missing(ranges: Mapping[Partition, tuple[int, int]]) -> list[str]:
    return [
        f"{topic}:{partition} begins at offset {first}: earlier records are gone, and documents known only from them "
        "would be missing"
        for (topic, partition), (first, _) in sorted(ranges.items())
        if first
    ]


def _unread(ranges: Mapping[Partition, tuple[int, int]], positions: Mapping[Partition, int | None]) -> list[str]:
    return [
        f"{topic}:{partition} lost the offsets {position} to {first - 1} before a projector read them"
        for (topic, partition), (first, _) in sorted(ranges.items())
        if (position := positions[Partition(topic, partition)]) is not None and position < first
    ]


def _topics(topics: Sequence[Topic]) -> list[str]:
    absent = [
        f"topic {topic.name} is missing: nothing can be read from it. Create it, or correct LEADVIEW_TOPIC_PREFIX"
        for topic in topics
        if not topic.exists
    ]
    return absent + [
        f"topic {topic.name} deletes old records ({topic.retention}): documents that have not changed since would be "
        "missing. Set cleanup.policy=compact"
        for topic in topics
        if topic.retention and topic.retention.deletes
    ]


def duration(seconds: float) -> str:
    """Format a duration in seconds, such as `90 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def mib(count: int) -> str:
    """Format a number of bytes, such as `1.5 MiB`."""
    return f"{count / 1048576:,.1f} MiB"
