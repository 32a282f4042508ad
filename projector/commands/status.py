"""The status of the projection: is all well, what is not, and how far every partition is.

Redis and Kafka are read here, and what projectors say about themselves comes from their heartbeats. So the status is
also right if no projector is alive, and if one of the servers is away: what cannot be measured then is None.
"""

import msgspec

from projector.ledger.control import ControlRecord, Position
from projector.ledger.writers import Writer
from projector.mapping import VERSION
from projector.operate.observe import Observation, observe
from projector.operate.problems import problems, unattended
from projector.operate.words import Said, headline, say
from projector.problem import Problem
from projector.record import Partition
from projector.redis.store import Store
from schemas import words
from schemas.control import GenerationId, in_order, number_of
from schemas.settings import ProjectorSettings


class PartitionStatus(msgspec.Struct, frozen=True):
    """`position` is the next offset to be applied, None if nothing has been applied yet.

    `log_start` is the first offset in Kafka, `head` the end offset. Ages are in seconds; `waiting_age` is that of the
    oldest record that is not applied yet, by Kafka's timestamp. What is not known is None.
    """

    topic: str
    partition: int
    position: int | None
    log_start: int | None
    head: int | None
    lag: int | None
    newest_event_age: float | None
    checkpoint_age: float | None
    waiting_age: float | None


class GenerationStatus(msgspec.Struct, frozen=True):
    """`state` is live, former (`rollback` returns to it), filling, complete (may be promoted), kept or dropping."""

    number: int
    state: str
    mapping: int | None
    created_at: str | None
    verified_at: str | None
    unattended: str = ""
    """What to do, if nobody fills this generation, or nobody writes it any more."""


class WriterStatus(msgspec.Struct, frozen=True):
    """A program that writes. `age` is that of its last heartbeat in seconds; it is alive if that is below 5."""

    id: str
    role: str
    alive: bool
    age: float
    mapping_version: int
    epoch: int
    lines: dict[str, str]
    problems: list[str]


class Status(msgspec.Struct, frozen=True):
    """The status of the projection. Of a server that cannot be read, everything is None or an empty list.

    `freshness` is the age in seconds of the oldest record that readers do not see yet, by Kafka's timestamp; 0 if there
    is none.
    """

    generation: int | None
    writing: list[int]
    mapping_version: int
    live_mapping_version: int | None
    rebuild_due: bool
    lag: int | None
    freshness: float | None
    dead_letters: int | None
    redis_used_memory: int | None
    redis_max_memory: int | None
    generations: list[GenerationStatus]
    partitions: list[PartitionStatus]
    epoch: int | None
    incomplete_shards: int | None
    """Shards that do not hold everything of the live generation. The API answers 503 for their organizations."""
    writers: list[WriterStatus]
    well: bool
    """Whether there is no problem."""
    problems: list[str]
    """What is not well, each with what to do."""
    notes: list[str]
    """What to do some time, although it does no harm yet."""
    projectors: int | None
    """How many projectors are alive."""
    verdict: str
    """In one line: `all is well`, or what is not."""


async def read(store: Store, settings: ProjectorSettings) -> Status:
    """Read the status from Redis and Kafka. It says what cannot be read."""
    return of(await observe(store, settings))


def said(found: Observation) -> tuple[list[Said], list[Said]]:
    """Returns the problems and the notes in words."""
    both = problems(found)
    wrong, notes = ([say(it) for it in both if it.severity == severity] for severity in ("problem", "note"))
    return wrong, notes


def of(found: Observation) -> Status:
    """Returns the status that follows from what was observed."""
    redis, record = found.redis, found.redis.record if found.redis else None
    live = record.state.generations.get(record.state.live) if record else None
    wrong, notes = said(found)
    return Status(
        generation=number_of(record.state.live) if record and record.serves else None,
        writing=[number_of(each) for each in record.state.written] if record else [],
        mapping_version=VERSION,
        live_mapping_version=live.mapping if live else None,
        rebuild_due=bool(record and record.rebuild_due()),
        lag=found.lag,
        freshness=_freshness(found),
        dead_letters=redis.dead_letters if redis else None,
        redis_used_memory=sum(memory.used for memory in redis.memories) if redis else None,
        redis_max_memory=sum(memory.limit for memory in redis.memories) if redis else None,
        generations=_generations(record, unattended(redis), living=bool(redis.living)) if redis and record else [],
        partitions=_partitions(found),
        epoch=record.stamp.epoch if record else None,
        incomplete_shards=len(redis.incomplete) if redis else None,
        writers=[_writer(writer) for writer in redis.writers] if redis else [],
        well=not wrong,
        problems=[str(problem) for problem in wrong],
        notes=[str(note) for note in notes],
        projectors=len(redis.living) if redis else None,
        verdict=headline(wrong),
    )


def _freshness(found: Observation) -> float | None:
    """Returns None also if the brokers did not return the oldest record in time, or if it has no time."""
    ages = found.ages
    return None if ages is None or (found.waiting and not ages) else round(max(ages.values(), default=0.0), 3)


def _writer(writer: Writer) -> WriterStatus:
    heartbeat = writer.heartbeat
    return WriterStatus(
        id=writer.id,
        role=heartbeat.role,
        alive=writer.alive,
        age=writer.age_ms / 1000,
        mapping_version=heartbeat.mapping,
        epoch=heartbeat.acknowledged.epoch,
        lines={line: words.line_state(state, heartbeat.troubles.get(line)) for line, state in heartbeat.lines.items()},
        problems=heartbeat.problems,
    )


def _generations(record: ControlRecord, hint: Problem | None = None, *, living: bool = True) -> list[GenerationStatus]:
    """`hint` is about the newest generation. `living`: a projector is alive."""
    nobody = {record.state.next: str(say(hint))} if hint else {}
    if not living and not record.serves:
        nobody[record.state.live] = "no projector is running that fills it: start one"
    statuses = []
    for generation in in_order(record.state.known):
        known = record.state.generations.get(generation)
        statuses.append(
            GenerationStatus(
                number_of(generation),
                _state(record, generation),
                known.mapping if known else None,
                known.created_at if known else None,
                known.verified_at if known else None,
                nobody.get(generation, ""),
            )
        )
    return statuses


def _state(record: ControlRecord, generation: GenerationId) -> str:
    state = record.state
    if generation in state.dropping:
        return "dropping"
    if generation == state.live:
        return "live" if record.serves else "filling"
    if generation == state.previous:
        return "former"
    if not record.is_complete(generation):
        return "filling"
    return "complete" if generation == state.next else "kept"


def _partitions(found: Observation) -> list[PartitionStatus]:
    """Returns those that Kafka has, or those with positions if Kafka cannot be read."""
    stored = found.redis.record.present if found.redis and found.redis.record else []
    partitions = found.kafka.ranges if found.kafka else {partition for copy in stored for partition in copy.positions}
    lags, ages = found.lags or {}, found.ages or {}
    return [_partition(at, found, lags.get(at), ages.get(at)) for at in sorted(partitions)]


def _partition(partition: Partition, found: Observation, lag: int | None, age: float | None) -> PartitionStatus:
    position: Position | None = found.redis.position(partition) if found.redis else None
    first, last = found.kafka.ranges[partition] if found.kafka else (None, None)
    return PartitionStatus(
        topic=partition.topic,
        partition=partition.partition,
        position=position.offset if position else None,
        log_start=first,
        head=last,
        lag=lag,
        newest_event_age=_age(position.event_time, found.at) if position else None,
        checkpoint_age=_age(position.stored_at, found.at) if position else None,
        waiting_age=None if age is None else round(age, 3),
    )


def _age(time_ms: int, now_ms: float) -> float | None:
    return max(0.0, round((now_ms - time_ms) / 1000, 3)) if time_ms else None
