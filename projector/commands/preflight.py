"""What a rebuild will cost, and what prevents it: checked and printed before it starts."""

from collections.abc import Iterator, Mapping

import msgspec
from rich.console import Console

from projector.errors import Unavailable
from projector.kafka.client import topic
from projector.kafka.topics import Topic
from projector.ledger import copies
from projector.ledger.control import ControlRecord, State
from projector.mapping import VERSION
from projector.operate.observe import Memory, observe
from projector.operate.problems import of_topics
from projector.operate.words import duration, mib, say
from projector.rebuild.replay import load, progress
from projector.record import Partition
from projector.redis.store import Store
from schemas.control import number_of
from schemas.resources import RESOURCES
from schemas.settings import ProjectorSettings

RATE = 20_000
"""Records a second that one process replays on a small machine: an estimate until the actual rate is known."""
_PATIENCE_SECONDS = 5.0
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
    """Read the state of the topics and of Redis. Raises Refused if Redis is empty, and Unavailable."""
    record = await copies.require(store)
    found = await observe(store, settings, _PATIENCE_SECONDS)
    if found.redis is None or found.kafka is None:
        raise Unavailable(found.redis_unknown or found.kafka_unknown)
    state, names = record.state, {topic(settings, resource) for resource in RESOURCES}
    topics = [it for it in found.kafka.topics if it.name in names]
    ranges = {at: span for at, span in found.kafka.ranges.items() if at.topic in names}
    records = sum(max(0, record.highest_offset(at) - first) for at, (first, _) in ranges.items())
    share = 1.0
    if state.next:
        rebuild = await load(store, settings, state.next)
        done = await progress(store, rebuild, [*names])
        records, share = done.left, done.left / max(1, done.total)
    needed, free, bound = _memory(found.redis.memories, state)
    needed = int(needed * share)
    live = state.generations.get(state.live)
    resumed = bool(state.next)
    problems = [*_of_topics(topics), *_lost(record, ranges)]
    if needed > _USABLE_SHARE * free and not resumed:
        problems.append(
            f"two generations do not fit: about {mib(needed)} more are needed, {mib(free)} are free of {bound}"
        )
    retention = [topic.retention for topic in topics if topic.exists]
    notes = [] if all(retention) else ["the brokers do not report how long the topics keep their records"]
    if behind := sum((found.lags or {}).get(at, 0) for at in ranges):
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


def _memory(memories: list[Memory], state: State) -> tuple[int, int, str]:
    """Returns the bytes that one more generation needs, the bytes that are free, and which limit they refer to."""
    used = sum(memory.used for memory in memories)
    needed = (used - sum(memory.at_start for memory in memories)) // len(state.written)
    if limit := sum(memory.limit for memory in memories):
        return needed, limit - used, "Redis's maxmemory"
    return needed, sum(memory.machine - memory.resident for memory in memories), "the machine's memory"


def _lost(record: ControlRecord, ranges: Mapping[Partition, tuple[int, int]]) -> Iterator[str]:
    """Yields which records Kafka has no more: a rebuild would miss documents."""
    begun = [(at, first) for at, (first, _) in sorted(ranges.items()) if first]
    for (name, partition), first in begun:
        yield (
            f"{name}:{partition} begins at offset {first}: earlier records are gone, and documents known only from "
            "them would be missing"
        )
    for at, first in begun:
        if (position := record.position(at)) and position.offset < first:
            gone = f"the offsets {position.offset} to {first - 1}"
            yield f"{at.topic}:{at.partition} lost {gone} before a projector read them"


def _of_topics(topics: list[Topic]) -> list[str]:
    """Returns what prevents a rebuild. A topic that is not compacted, and keeps everything, does not."""
    kept = [it if it.retention and it.retention.deletes else it._replace(retention=None) for it in topics]
    return [str(say(it)) for it in of_topics(kept)]


def show(preflight: Preflight, console: Console) -> None:
    """Print the cost of a rebuild, and what prevents it."""
    verb = "resumes" if preflight.resumed else "begins"
    console.print(
        f"[bold]rebuild[/] of generation [bold]{preflight.generation}[/] {verb}, mapping version {preflight.mapping} "
        f"(the live one: {preflight.live_mapping or 'unknown'})"
    )
    console.print(f"  records to replay   {preflight.records:,}, about {duration(preflight.seconds)} at {RATE:,}/s")
    console.print(
        f"  memory              about {mib(preflight.memory_needed)} more, "
        f"{mib(preflight.memory_free)} free of {preflight.memory_bound}"
    )
    for note in preflight.notes:
        console.print(f"  [yellow]note[/]              {note}")
    for problem in preflight.problems:
        console.print(f"  [red]problem[/]           {problem}")
