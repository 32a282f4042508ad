"""The status of the projection: is all well, what is not, and how far every partition is.

Redis and Kafka are read here, and what projectors say about themselves comes from their heartbeats. So the status is
also right if no projector is alive, and if one of the servers is away: what cannot be measured then is None.
"""

import argparse
import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import groupby

import msgspec
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from operate.api_figures import ApiMetrics
from operate.commands.operator import Operator, table
from projector.health.judge import STALE_SECONDS, problems, unattended
from projector.health.observe import Observation, observe
from projector.ledger import acts
from projector.ledger.acts import Act
from projector.ledger.control import ControlRecord, Position
from projector.ledger.writers import Writer
from projector.mapping import VERSION
from projector.problem import Problem
from projector.record import Partition
from projector.redis.store import Store
from projector.words import duration, headline, mib, program_of, say
from schemas import words
from schemas.control import GenerationId, in_order, number_of
from schemas.settings import ProjectorSettings
from schemas.words import utc

WATCH_SECONDS = 2.0
_MOST_ROWS = 20
"""Of programs, and of partitions with which something is wrong. More are counted, so that all fits on a screen."""


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
    is none; None if that is not known, or if none waits and no projector has looked for a while. `data_as_of` is the
    earliest `Data-As-Of` of all shards, as the API sends it.
    """

    generation: int | None
    writing: list[int]
    mapping_version: int
    live_mapping_version: int | None
    rebuild_due: bool
    lag: int | None
    freshness: float | None
    data_as_of: str | None
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
    kinds: list[str]
    """The names of the problems, in their order: for programs, which should not read words. Those that projectors
    report are sections of `docs/runbook.md`."""
    notes: list[str]
    """What to do some time, although it does no harm yet."""
    note_kinds: list[str]
    projectors: int | None
    """How many projectors are alive."""
    verdict: str
    """In one line: `all is well`, or what is not."""
    not_asked: list[str]
    """What was not looked at: `api`, without `--api-metrics`."""


async def run_status(arguments: argparse.Namespace, operator: Operator) -> int:
    """`status`: print the verdict first, then what it follows from. Returns 0 if all is well, otherwise 1.

    With `--watch`, show it again every two seconds, on the whole screen if this is a terminal, until it is cancelled.
    With `--history`, print the acts of operators instead, the newest one first, and return 0.
    """
    if arguments.history:
        latest = await acts.read(operator.store)
        if operator.json:
            operator.print_json(latest)
        else:
            operator.console.print(_history_table(latest) if latest else "nobody has done anything yet")
            if latest:
                operator.console.print(f"The last {acts.MOST:,} acts are kept.")
        return 0
    api = ApiMetrics(arguments.api_metrics)
    on_screen = arguments.watch and operator.console.is_terminal and not operator.json
    screen = Live(console=operator.console, screen=True, auto_refresh=False) if on_screen else nullcontext()
    with screen as live:
        while True:
            found = await _look(operator, api)
            if live:
                live.update(Group(*parts(found), "", "[dim]Ctrl-C ends this.[/]"), refresh=True)
            elif operator.json:
                operator.print_json(of(found), indent=-1 if arguments.watch else 2)
            else:
                for part in parts(found):
                    operator.console.print(part)
            if not arguments.watch:
                return 0 if of(found).well else 1
            await asyncio.sleep(WATCH_SECONDS)


async def _look(operator: Operator, api: ApiMetrics) -> Observation:
    found, part = await asyncio.gather(observe(operator.store, operator.settings), api.watched())
    return replace(found, api=part)


async def read(store: Store, settings: ProjectorSettings) -> Status:
    """Read the status from Redis and Kafka. It says what cannot be read."""
    return of(await observe(store, settings))


def judged(found: Observation) -> tuple[list[Problem], list[Problem]]:
    """Returns the problems, and apart from them the notes."""
    both = problems(found)
    return [it for it in both if it.severity == "problem"], [it for it in both if it.severity == "note"]


def of(found: Observation) -> Status:
    """Returns the status that follows from what was observed."""
    redis, record = found.redis, found.redis.record if found.redis else None
    live = record.state.generations.get(record.state.live) if record else None
    wrong, notes = judged(found)
    said = [say(it) for it in wrong]
    silent = redis.silent(found.at) if redis else []
    return Status(
        generation=number_of(record.state.live) if record and record.serves else None,
        writing=[number_of(each) for each in record.state.written] if record else [],
        mapping_version=VERSION,
        live_mapping_version=live.mapping if live else None,
        rebuild_due=bool(record and record.rebuild_due()),
        lag=found.lag,
        freshness=_freshness(found),
        data_as_of=utc(redis.as_of) if redis and redis.as_of else None,
        dead_letters=redis.dead_letters if redis else None,
        redis_used_memory=sum(memory.used for memory in redis.memories) if redis else None,
        redis_max_memory=sum(memory.limit for memory in redis.memories) if redis else None,
        generations=_generations(record, unattended(redis), living=bool(redis.living)) if redis and record else [],
        partitions=_partitions(found),
        epoch=record.stamp.epoch if record else None,
        incomplete_shards=len(redis.incomplete) if redis else None,
        writers=[_writer(it) for it in redis.writers if it.alive or it in silent] if redis else [],
        well=not wrong,
        problems=[str(it) for it in said],
        kinds=[it.label for it in wrong],
        notes=[str(say(it)) for it in notes],
        note_kinds=[it.label for it in notes],
        projectors=len(redis.living) if redis else None,
        verdict=headline(said),
        not_asked=[] if found.api else ["api"],
    )


def _freshness(found: Observation) -> float | None:
    """Returns None also if the brokers did not return the oldest record in time, or if it has no time."""
    ages, looked = found.ages, bool(found.redis and found.redis.as_of)
    if ages is None or (not ages and (found.waiting or not looked)):
        return None
    return round(max(ages.values(), default=0.0), 3)


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


def parts(observed: Observation) -> Iterator[RenderableType]:
    """Yields what `status` prints, the verdict first."""
    found = of(observed)
    yield from _verdict(observed, found)
    if found.epoch is not None:
        live = "none: what is stored is not complete" if found.generation is None else found.generation
        yield f"generation [bold]{live}[/]  mapping version {found.live_mapping_version or '-'}"
    if found.projectors is not None:
        yield f"projectors [bold]{found.projectors}[/]"
    if found.writers:
        yield _writer_table(found)
    if len(found.generations) > 1:
        yield _generation_table(found)
    remarks = _remarks(observed)
    if found.partitions or remarks:
        yield _partition_table(found, remarks)
    yield _summary(found)


def _verdict(observed: Observation, found: Status) -> Iterator[RenderableType]:
    """Yields the verdict, each problem if there are several, the notes, and what was not looked at."""
    yield Text(found.verdict, style="bold green" if found.well else "bold red")
    match [say(problem) for problem in judged(observed)[0]]:
        case [alone] if alone.more:  # the verdict says the rest
            yield f"  {escape(alone.more)}"
        case [_, _, *_] as several:
            for said in several:
                yield f"  [red]problem[/]  {escape(str(said))}"
    for note in found.notes:
        yield f"  [yellow]note[/]     {escape(note)}"
    if found.not_asked:
        yield "  [dim]unasked[/]  whether the API serves: `--api-metrics URL` asks it"
    yield ""


def _summary(found: Status) -> str:
    dead_letters = _count(found.dead_letters, "unknown")
    figures = {
        "lag": _count(found.lag, "unknown"),
        "freshness": "unknown" if found.freshness is None else duration(found.freshness),
        "data as of": found.data_as_of or "unknown",
        "dead letters": f"[yellow]{dead_letters}[/]" if found.dead_letters else dead_letters,
        "Redis": _memory(found),
    }
    return "   ".join(f"{name} {figure}" for name, figure in figures.items())


def _history_table(acts: Sequence[Act]) -> Table:
    shown = table("time", "act", "outcome", "by", "version")
    for act in acts:
        outcome = f"{act.outcome}: {act.reason}" if act.reason else act.outcome
        shown.add_row(act.time, *map(escape, (str(act), outcome, act.by, act.version)))
    return shown


def _writer_table(found: Status) -> Table:
    shown = table("program", "id", "mapping", "heartbeat", "lines")
    # Those that are silent or do not work come first.
    first = sorted(found.writers, key=lambda it: it.alive and {*it.lines.values()} <= {"running"})
    for writer in first[:_MOST_ROWS]:
        lines = "  ".join(f"{line}: {state.partition(': ')[0]}" for line, state in writer.lines.items())
        heartbeat = _seconds(writer.age, " ago")
        shown.add_row(
            program_of(writer.role),
            escape(writer.id),
            str(writer.mapping_version),
            heartbeat if writer.alive else f"[yellow]silent, {heartbeat}[/]",
            (lines or "-") if writer.alive else "unknown",
        )
    _count_more(shown, len(first))
    return shown


def _count_more(shown: Table, rows: int) -> None:
    """Add a row that says how many rows are not shown."""
    if rows > _MOST_ROWS:
        shown.add_row(f"[dim]and {rows - _MOST_ROWS:,} more: `status --json`[/]")


def _generation_table(found: Status) -> Table:
    shown = table("generation", "state", "mapping", "started", "verified")
    for it in found.generations:
        shown.add_row(str(it.number), it.state, str(it.mapping or "-"), it.created_at or "-", it.verified_at or "-")
    return shown


def _remarks(found: Observation) -> dict[Partition, str]:
    """Returns what is wrong with single partitions."""
    if found.kafka is None:
        return {}
    remarks = {}
    if found.kafka.members is not None:
        owned = {partition for member in found.kafka.members for partition in member.partitions}
        remarks = dict.fromkeys(found.kafka.ranges.keys() - owned, "no projector has it")
    remarks |= {Partition(*it): "a stranger has it" for member in found.strangers for it in member.partitions}
    remarks |= dict.fromkeys(found.open_transactions, "a transaction is open")
    unserved = (Partition(topic.name, number) for topic in found.kafka.topics for number in topic.leaderless)
    return remarks | dict.fromkeys(unserved, "no broker leads it")


def _partition_table(found: Status, remarks: Mapping[Partition, str]) -> Table:
    """Returns a row for each topic, which sums the partitions with which nothing is wrong; then the others, those that
    wait for the longest time first.
    """
    figures = "position", "end offset", "lag", "waiting", "newest event", "checkpoint"
    shown = table(
        Column("topic", no_wrap=True), *[Column(name, justify="right") for name in ("partition", *figures)], ""
    )
    unserved = {at: PartitionStatus(*at, *[None] * 7) for at in remarks}
    partitions = dict(sorted((unserved | {Partition(it.topic, it.partition): it for it in found.partitions}).items()))
    telling = {at: it for at, it in partitions.items() if at in remarks or (it.waiting_age or 0) > STALE_SECONDS}
    for topic, rows in groupby(partitions.items(), key=lambda row: row[0].topic):
        of_topic = [it for _, it in rows]
        quiet = [it for it in of_topic if Partition(it.topic, it.partition) not in telling]
        if quiet:
            number = str(quiet[0].partition) if len(of_topic) == 1 else f"{len(quiet):,} of {len(of_topic):,}"
            shown.add_row(topic, number, *_figures(quiet), "")
    ordered = sorted(telling.items(), key=lambda row: (-(row[1].waiting_age or 0), -(row[1].lag or 0), row[0]))
    for at, it in ordered[:_MOST_ROWS]:
        shown.add_row(at.topic, str(at.partition), *_figures([it]), f"[yellow]{remarks.get(at, '')}[/]")
    _count_more(shown, len(ordered))
    return shown


def _figures(partitions: Sequence[PartitionStatus]) -> Iterator[str]:
    """Yields the figures of a row: sums of offsets, and the newest times."""
    yield _count(_sum(it.position or (0 if it.lag == 0 else None) for it in partitions), "-")
    yield _count(_sum(it.head for it in partitions), "-")
    lag = _sum(it.lag for it in partitions)
    yield f"[yellow]{lag:,}[/]" if lag else _count(lag, "-")
    yield _seconds(max((it.waiting_age for it in partitions if it.waiting_age is not None), default=None))
    for ages in ([it.newest_event_age for it in partitions], [it.checkpoint_age for it in partitions]):
        yield _seconds(min((age for age in ages if age is not None), default=None), " ago")


def _sum(counts: Iterable[int | None]) -> int | None:
    """Returns None if one of them is not known."""
    known = list(counts)
    return None if None in known else sum(filter(None, known))


def _count(count: int | None, unknown: str) -> str:
    return unknown if count is None else f"{count:,}"


def _seconds(age: float | None, suffix: str = "") -> str:
    return "-" if age is None else duration(age) + suffix


def _memory(found: Status) -> str:
    used, limit = found.redis_used_memory, found.redis_max_memory
    if used is None:
        return "unknown"
    return f"{mib(used)} of {mib(limit)} ({used / limit:.0%})" if limit else mib(used)
