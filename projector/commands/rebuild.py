"""The commands around a rebuild: `rebuild`, `verify`, `promote`, `rollback`, `drop` (runbook: docs/rebuild.md)."""

import argparse
import asyncio
import os

from projector.commands import arguments as arguments_of
from projector.commands import preflight, verify_continuous
from projector.commands.operator import Operator
from projector.commands.rebuild_progress import RebuildView
from projector.errors import Refused
from projector.ledger import breaks, copies, writers
from projector.ledger.control import ACCESS, State
from projector.line.pace import Pacer
from projector.rebuild import generations, replay
from projector.rebuild.generations import Criteria
from projector.stop import Stop
from projector.upkeep import reapply
from projector.verify import audit, report
from projector.verify.report import Report
from schemas.control import GenerationId
from schemas.resources import RESOURCES

_NICENESS = 10


async def run_rebuild(arguments: argparse.Namespace, operator: Operator) -> int:
    """`rebuild`: fill the next generation, or write one document or organization again in place."""
    if arguments.organization:
        return await _in_place(arguments, operator)
    cost = await preflight.check(operator.store, operator.settings)
    preflight.show(cost, operator.console)
    if cost.problems and not arguments.force:
        raise Refused("The rebuild was not started. Solve the problems above, or use --force to start it anyway.")
    if arguments.check:
        return 0
    if arguments.max_latency:
        _lower_priority()
    if not await _fill(arguments, operator):
        operator.console.print(
            f"interrupted: run `rebuild` again to resume it, or `drop {cost.generation}` to discard it"
        )
        return 130
    if arguments.promote:
        return await run_promote(arguments, operator)
    operator.console.print(
        "complete. Next: `verify --next` to compare it with the live generation, `promote` to verify and serve it, "
        f"`drop {cost.generation}` to discard it"
    )
    return 0


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
        operator.console.print(
            f"[yellow]note[/] the projectors are {behind:,} records behind: check that one is running"
        )
    return not stop.is_set()


async def _replay(arguments: argparse.Namespace, operator: Operator, stop: Stop) -> None:
    """Fill the generation and show the progress, until it is complete or `stop` is set."""
    finished = Stop()
    pacer = Pacer.of_replay(operator.store, arguments.max_latency / 1000)
    rebuild = await replay.begin(operator.store, operator.settings)
    view = RebuildView(operator.store, operator.settings, rebuild, pacer)
    showing = asyncio.create_task(view.run(finished, operator.console))
    try:
        async with writers.writing(operator.settings, "rebuild") as writing:
            await replay.replay(writing, operator.settings, rebuild, pacer, stop)
    finally:
        finished.set()
        await showing


async def _in_place(arguments: argparse.Namespace, operator: Operator) -> int:
    resource, entity_id = arguments_of.entity(arguments) or (None, None)
    kinds = [resource] if resource else RESOURCES
    await copies.require(operator.store)
    async with writers.writing(operator.settings, "rebuild in place") as writing:
        count = await reapply.in_place(writing, operator.settings, arguments.organization, kinds, entity_id)
    operator.console.print(f"{count:,} records replayed in place")
    if not count:
        operator.console.print("[yellow]note[/] the topics hold no record of it (any more)")
    return 0 if count else 1


async def run_verify(arguments: argparse.Namespace, operator: Operator) -> int:
    """`verify`: compare the live generation or the access with the topics, or the next generation with the live one."""
    if arguments.continuous:
        return await verify_continuous.run(operator)
    criteria = _criteria(arguments)
    seen = (await copies.require(operator.store)).state
    if arguments.access:
        verified = await audit.access(operator.store, operator.settings)
        await _confirm(operator, verified, seen, ACCESS)
    elif arguments.next:
        verified = await generations.verify_next(operator.store, criteria)
    else:
        verified = await _verify_live(operator, criteria)
        await _confirm(operator, verified, seen, seen.live)
    if operator.json:
        operator.print_json(verified.to_json())
    else:
        report.show(verified, operator.console)
    return 0 if verified.passes(criteria.threshold) else 1


async def _confirm(operator: Operator, verified: Report, seen: State, generation: GenerationId) -> None:
    """If this is exactly what Kafka has, no topic that had lost its history before concerns it any more."""
    if seen.breaks and verified.is_exact:
        await breaks.confirm(operator.store, generation, seen.breaks)


async def _verify_live(operator: Operator, criteria: Criteria) -> Report:
    record = await copies.require(operator.store)
    live = record.state.live
    if not record.serves:
        raise Refused("The live generation is not complete yet: there is nothing to verify.")
    return await audit.documents(
        operator.store, operator.settings, live, sample=criteria.sample, allowed=criteria.allowed
    )


async def run_promote(arguments: argparse.Namespace, operator: Operator) -> int:
    """`promote`: verify the next generation against the live one, then serve it."""
    criteria = _criteria(arguments)
    promoted = await generations.verify_and_promote(operator.store, criteria, force=arguments.force)
    report.show(promoted.report, operator.console)
    if promoted.flip is None:
        raise Refused(
            f"Not promoted: {promoted.report.differences:,} documents differ, and --threshold is {criteria.threshold}. "
            "Allow the fields that are meant to differ (--allow leads.quote_total), raise the threshold, or use "
            "--force."
        )
    operator.console.print(
        f"[green]generation {promoted.flip.live} is served[/] instead of {promoted.flip.previous}, which is kept "
        "current: `rollback` returns to it, `drop` frees its memory"
    )
    return 0


async def run_rollback(_: argparse.Namespace, operator: Operator) -> int:
    """`rollback`: serve the former generation again."""
    flip = await generations.rollback(operator.store)
    operator.console.print(f"[green]generation {flip.live} is served again[/] instead of {flip.previous}")
    return 0


async def run_drop(arguments: argparse.Namespace, operator: Operator) -> int:
    """`drop`: free the memory of a generation that is not live."""
    async with writers.writing(operator.settings, "drop") as writing:
        dropped = await generations.drop(writing, arguments.generation)
    operator.console.print(f"generation {dropped.generation} dropped: {dropped.keys:,} keys")
    return 0


def _criteria(arguments: argparse.Namespace) -> Criteria:
    return Criteria(arguments.sample, frozenset(arguments.allow), arguments.threshold)
