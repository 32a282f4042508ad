"""The commands around a rebuild: `rebuild`, `promote`, `rollback`, `drop` (runbook: docs/rebuild.md)."""

import argparse
import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from operate.commands import arguments as arguments_of
from operate.commands.operator import Operator
from operate.commands.verify import criteria_of, say_unread, show_report
from operate.rebuild import generations, replay
from operate.rebuild.replay import Progress, Rebuild
from operate.verify.causes import note_causes
from projector.errors import Conflict, Refused, Unavailable
from projector.health.judge import of_topics, of_transactions
from projector.health.observe import observe
from projector.kafka.client import topic
from projector.kafka.reader import held_back, open_reader
from projector.kafka.topics import Topic
from projector.ledger import breaks, copies, writers
from projector.ledger.control import ControlRecord, State
from projector.ledger.ledger import lag
from projector.line.pace import Pacer
from projector.mapping import VERSION
from projector.problem import OtherCluster
from projector.record import Partition
from projector.redis.store import Memory
from projector.stop import Stop
from projector.upkeep import reapply
from projector.verify.report import unread
from projector.words import duration, mib, say
from schemas.control import number_of
from schemas.resources import KINDS, RESOURCES

_PATIENCE_SECONDS = 5.0
_USABLE_SHARE = 0.9
_NICENESS = 10
_REFRESH_SECONDS = 0.5
_LINE_SECONDS = 5.0


async def run_rebuild(arguments: argparse.Namespace, operator: Operator) -> int:
    """`rebuild`: fill the next generation, or write one document or organization again in place."""
    if arguments.accept_cluster:
        await _accept_cluster(arguments.accept_cluster, operator)
    if arguments.organization:
        return await _in_place(arguments, operator)
    generation, problems = await _estimate(operator)
    operator.chosen.update(generation=generation, max_latency=arguments.max_latency)
    if problems and not arguments.force:
        raise Refused("The rebuild was not started. Solve the problems above, or use --force to start it anyway.")
    if arguments.check:
        return 0
    if arguments.max_latency:
        _lower_priority()
    if not await _fill(arguments, operator):
        operator.console.print(f"interrupted: run `rebuild` again to resume it, or `drop {generation}` to discard it")
        return 130
    if arguments.promote:
        return await run_promote(arguments, operator)
    operator.console.print(
        "complete. Next: `verify --next` to compare it with the live generation, `promote` to verify and serve it, "
        f"`drop {generation}` to discard it"
    )
    return 0


async def _accept_cluster(cluster: str, operator: Operator) -> None:
    """Let the Kafka cluster that answers replace the one whose records were applied. Nothing happens if it is that one.

    Raises Refused if another cluster answers than the operator has named, and Unavailable.
    """
    while True:
        async with open_reader(operator.settings, KINDS) as reader:
            topics = await reader.present()
            await reader.existing_partitions()
        record = await copies.require(operator.store)
        if cluster != reader.cluster:
            met = reader.cluster or "unknown"
            raise Refused(
                f"The Kafka cluster that LEADVIEW_KAFKA_BOOTSTRAP_SERVERS names has the id {met}, and not {cluster}: "
                "correct one of them."
            )
        if record.state.cluster in ("", cluster):
            return
        with suppress(Conflict):
            await breaks.accept_cluster(operator.store, record, cluster, [topic.name for topic in topics])
            operator.chosen["former_cluster"] = record.state.cluster
            operator.console.print(f"the Kafka cluster {cluster} has replaced {record.state.cluster}")
            return


async def _estimate(operator: Operator) -> tuple[int, list[str]]:
    """Print what a rebuild will cost, and what prevents it. Returns the number of its generation, and what prevents it
    unless it is forced. Raises Refused if Redis is empty, and Unavailable.
    """
    store, settings, say_line = operator.store, operator.settings, operator.console.print
    record = await copies.require(store)
    found = await observe(store, settings, _PATIENCE_SECONDS)
    if found.redis is None or found.kafka is None:
        raise Unavailable(found.redis_unknown or found.kafka_unknown)
    if other := found.other_cluster:
        raise Unavailable(OtherCluster(*other, accepted=False, access=False))
    state, names = record.state, {topic(settings, resource) for resource in RESOURCES}
    topics = [it for it in found.kafka.topics if it.name in names]
    ranges = {at: span for at, span in found.kafka.ranges.items() if at.topic in names}
    records = sum(last - first for first, last in ranges.values())
    needed, free, bound = _memory(found.redis.memories, state)
    problems = [*_of_topics(topics), *_lost(record, ranges)]
    if state.next:
        done = await replay.progress(store, await replay.load(store, settings, state.next), [*names])
        records, needed = done.left, int(needed * done.left / max(1, done.total))
    elif needed > _USABLE_SHARE * free:
        problems.append(
            f"two generations do not fit: about {mib(needed)} more are needed, {mib(free)} are free of {bound}"
        )
    generation, verb = (number_of(state.next), "resumes") if state.next else (state.next_number, "begins")
    live = state.generations.get(state.live)
    say_line(
        f"[bold]rebuild[/] of generation [bold]{generation}[/] {verb}, mapping version {VERSION} "
        f"(the live one: {live.mapping if live else 'unknown'})"
    )
    say_line(f"  records to replay   {records:,}; the replay measures its rate, and says how long the rest takes")
    say_line(f"  memory              about {mib(needed)} more, {mib(free)} free of {bound}")
    if not all(it.retention for it in topics if it.exists):
        say_line("  [yellow]note[/]              the brokers do not report how long the topics keep their records")
    if behind := sum((found.lags or {}).get(at, 0) for at in ranges):
        say_line(
            f"  [yellow]note[/]              the live generation is {behind:,} records behind: a projector must be "
            "running"
        )
    for transaction in of_transactions(found):
        say_line(f"  [yellow]note[/]              {escape(say(transaction).what)}")
    for problem in problems:
        say_line(f"  [red]problem[/]           {problem}")
    return generation, problems


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


def _lower_priority() -> None:
    """Let the API and the projectors on the same machine use the processor first."""
    try:
        # A SCHED_IDLE process yields at once when another process wakes up; a process with a nice value does not.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError):  # not Linux, or not allowed here
        os.nice(_NICENESS)


async def _fill(arguments: argparse.Namespace, operator: Operator) -> bool:
    """Replay, and wait until the projectors have caught up. Returns False if a signal interrupted this."""
    stop = Stop.on_signals()
    try:
        await _replay(arguments, operator, stop)
        behind = await replay.catch_up(operator.store, operator.settings, stop)
    finally:
        stop.release_signals()
    if behind:
        held = [*unread(await held_back(operator.settings, RESOURCES, 0))]
        note = say_unread(held) if held else f"the projectors are {behind:,} records behind: check that one is running"
        operator.console.print(f"[yellow]note[/] {note}")
    return not stop.is_set()


async def _replay(arguments: argparse.Namespace, operator: Operator, stop: Stop) -> None:
    """Fill the generation and show the progress, until it is complete or `stop` is set."""
    finished = Stop()
    pacer = Pacer.of_replay(operator.store, arguments.max_latency / 1000)
    rebuild = await replay.begin(operator.store, operator.settings)
    showing = asyncio.create_task(_show(operator, rebuild, pacer, finished))
    try:
        async with writers.writing(operator.settings, "rebuild") as writing:
            await replay.replay(writing, operator.settings, rebuild, pacer, stop)
    finally:
        finished.set()
        await showing


async def _show(operator: Operator, rebuild: Rebuild, pacer: Pacer, finished: Stop) -> None:
    """Show the progress of all processes, which is read from Redis, until the replay is `finished`, and once more then:
    a bar on a terminal, plain lines elsewhere.
    """
    console, topics = operator.console, sorted({partition.topic for partition in rebuild.ranges})
    columns = (TextColumn("replay"), BarColumn(None), TaskProgressColumn(), TextColumn("{task.fields[figures]}"))
    started: tuple[float, int] | None = None
    async with open_reader(operator.settings, RESOURCES) as reader:
        with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("replay", total=None, figures="")
            while True:
                is_last = finished.is_set()
                with suppress(Unavailable):  # the replay resumes as soon as it can, and so does this view
                    replayed = await replay.progress(operator.store, rebuild, topics)
                    now, done, total = time.monotonic(), replayed.done, replayed.total
                    started = started or (now, done)
                    rate = (done - started[1]) / max(now - started[0], 0.001)
                    behind = await lag(operator.store, await reader.whole_range(list(rebuild.ranges)))
                    figures = f"{rate:,.0f}/s, {_left(replayed, rate)}, live lag {behind:,}{_yielding(pacer)}"
                    bar.update(task, total=total, completed=done, figures=figures)
                    if not console.is_terminal:
                        console.print(f"replay {done / total if total else 1:.1%}  {done:,} of {total:,}  {figures}")
                if is_last:
                    return
                await finished.sleep(_REFRESH_SECONDS if console.is_terminal else _LINE_SECONDS)


def _left(replayed: Progress, rate: float) -> str:
    return "done" if replayed.finished else f"{duration(replayed.left / rate) if rate > 1 else '?'} left"


def _yielding(pacer: Pacer) -> str:
    if pacer.pause:
        return f", pausing {pacer.pause * 1000:.0f} ms per slice for the API"
    return ", in small slices for the API" if pacer.yields else ""


async def _in_place(arguments: argparse.Namespace, operator: Operator) -> int:
    resource, entity_id = arguments_of.entity(arguments) or (None, None)
    kinds = [resource] if resource else RESOURCES
    await copies.require(operator.store)
    async with writers.writing(operator.settings, "rebuild in place") as writing:
        wanted = (
            reapply.of_entity(arguments.organization, entity_id)
            if entity_id
            else reapply.of_organizations([arguments.organization])
        )
        count = await reapply.in_place(writing, operator.settings, wanted, kinds)
    operator.chosen["records"] = count
    operator.console.print(f"{count:,} records replayed in place")
    if not count:
        operator.console.print("[yellow]note[/] the topics hold no record of it (any more)")
    return 0 if count else 1


async def run_promote(arguments: argparse.Namespace, operator: Operator) -> int:
    """`promote`: verify the next generation against the live one, then serve it."""
    criteria = criteria_of(arguments)
    held = {} if arguments.force else await held_back(operator.settings, RESOURCES)
    promoted = await generations.verify_and_promote(operator.store, criteria, held, force=arguments.force)
    operator.chosen.update(generation=promoted.generation, differences=promoted.report.differences)
    operator.chosen["threshold"] = criteria.threshold
    await note_causes(operator.store, operator.settings, promoted.report)
    show_report(promoted.report, operator.console)
    if promoted.flip is None and promoted.report.unread:
        raise Refused(f"Not promoted: {say_unread(promoted.report.unread)} End it, or use --force.")
    if promoted.flip is None:
        raise Refused(
            f"Not promoted: {promoted.report.differences:,} documents differ, and --threshold is {criteria.threshold}. "
            "Allow the fields that are meant to differ (--allow leads.quote_total), raise the threshold, or use "
            "--force."
        )
    operator.chosen["former"] = promoted.flip.previous
    operator.console.print(
        f"[green]generation {promoted.flip.live} is served[/] instead of {promoted.flip.previous}, which is kept "
        "current: `rollback` returns to it, `drop` frees its memory"
    )
    return 0


async def run_rollback(_: argparse.Namespace, operator: Operator) -> int:
    """`rollback`: serve the former generation again."""
    flip = await generations.rollback(operator.store)
    operator.chosen.update(generation=flip.live, former=flip.previous)
    operator.console.print(f"[green]generation {flip.live} is served again[/] instead of {flip.previous}")
    return 0


async def run_drop(arguments: argparse.Namespace, operator: Operator) -> int:
    """`drop`: free the memory of a generation that is not live."""
    async with writers.writing(operator.settings, "drop") as writing:
        dropped = await generations.drop(writing, arguments.generation)
    operator.chosen.update(generation=dropped.generation, keys=dropped.keys)
    operator.console.print(f"generation {dropped.generation} dropped: {dropped.keys:,} keys")
    return 0
