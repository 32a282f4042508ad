"""The commands around a rebuild: `rebuild`, `verify`, `promote`, `rollback`, `drop` (runbook: docs/rebuild.md)."""

import argparse
import asyncio
import os
import time

import msgspec
from rich.console import Console

from projector.commands.rebuild_progress import RebuildView
from projector.errors import Refused
from projector.kafka.reader import open_reader
from projector.ledger import generations
from projector.ledger.generations import Registry
from projector.ledger.ledger import lag
from projector.rebuild import drop, preflight, promote, replay
from projector.rebuild.throttle import Throttle
from projector.record import DOCUMENT_KINDS, Kind
from projector.redis.store import Store
from projector.stop import Stop
from projector.upkeep import reapply
from projector.verify import audit, compare, report
from projector.verify.report import Report
from schemas.settings import ProjectorSettings

_CATCH_UP_SECONDS = 60.0
# Every projector looks once a second at what it has to write: from then on both generations move as one.
_SETTLE_SECONDS = 2.0
_NICENESS = 10


async def run_rebuild(
    arguments: argparse.Namespace, settings: ProjectorSettings, store: Store, console: Console
) -> int:
    """`rebuild`: the next generation, or one organization, lead or contact in place."""
    if arguments.organization:
        return await _in_place(arguments, settings, store, console)
    found = await preflight.check(store, settings)
    preflight.show(found, console)
    if found.problems and not arguments.force:
        raise Refused("Not begun. Mend what is said above, or go on all the same with --force.")
    if arguments.check:
        return 0
    if arguments.max_latency:
        _come_last()
    stop = Stop.on_signals()
    try:
        await _replay(arguments, settings, store, console, stop)
        await _catch_up(settings, store, console, stop)
    finally:
        stop.release_signals()
    if stop.is_set():
        console.print("interrupted: run `rebuild` again to go on from here, or `drop` to give it up")
        return 130
    if arguments.promote:
        return await run_promote(arguments, settings, store, console)
    console.print(
        "complete. Next: `verify --next` to look at it, `promote` to verify and serve it, `drop` to give it up"
    )
    return 0


def _come_last() -> None:
    """Where they share a machine, the API and the projectors come first."""
    try:
        # Unlike a nice process, an idle one makes way at once when another wakes up.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError):  # not Linux, or not allowed here
        os.nice(_NICENESS)


async def _replay(
    arguments: argparse.Namespace, settings: ProjectorSettings, store: Store, console: Console, stop: Stop
) -> None:
    """Fill the generation, showing how far it is, until it is complete or `stop` is set."""
    shown = Stop()
    throttle = Throttle(store, arguments.max_latency / 1000)
    begun = await replay.begin(store, settings)
    view = asyncio.create_task(RebuildView(store, settings, begun, throttle).run(shown, console))
    try:
        await replay.replay(store, settings, begun, throttle, stop)
    finally:
        shown.set()
        await view


async def _catch_up(settings: ProjectorSettings, store: Store, console: Console, stop: Stop) -> None:
    """Wait until the projectors are less than a second behind the moving head: both generations are written alike."""
    await stop.sleep(_SETTLE_SECONDS)
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    async with open_reader(settings, DOCUMENT_KINDS) as reader:
        partitions = await reader.partitions()
        while not stop.is_set():
            asked_at, ranges = time.monotonic(), await reader.range(partitions)
            while (behind := await lag(store, ranges)) and time.monotonic() < asked_at + 1.0:
                await stop.sleep(0.1)
            if not behind:
                return
            if time.monotonic() > deadline:
                console.print(f"[yellow]note[/] the projectors are {behind:,} records behind: is one running?")
                return


async def _in_place(arguments: argparse.Namespace, settings: ProjectorSettings, store: Store, console: Console) -> int:
    """Write one organization's documents, or one of them, once more from the topics."""
    kinds: tuple[Kind, ...] = DOCUMENT_KINDS
    wanted = reapply.of_organization(arguments.organization)
    if arguments.lead or arguments.contact:
        kinds = (Kind.LEAD,) if arguments.lead else (Kind.CONTACT,)
        wanted = reapply.of_entity(arguments.organization, arguments.lead or arguments.contact)
    async with open_reader(settings, kinds) as reader:
        ranges = await reader.range(await reader.partitions())
        count = await reapply.replay(store, reader, ranges, wanted, again=True)
    console.print(f"{count:,} records replayed in place")
    if not count:
        console.print("[yellow]note[/] the topics hold no record of it (any more)")
    return 0 if count else 1


async def run_verify(arguments: argparse.Namespace, settings: ProjectorSettings, store: Store, console: Console) -> int:
    """`verify`: the live generation against the topics, or the next one against the live."""
    registry = await generations.read(store)
    if arguments.next:
        other = promote.complete_next(registry)
        found = await _compare(arguments, store, registry, other)
    elif registry.live:
        allowed = frozenset(arguments.allow)
        found = await audit.audit(store, settings, registry.live, sample=arguments.sample, allowed=allowed)
    else:
        raise Refused("Nothing is served yet: there is nothing to verify.")
    _print(found, arguments.json, console)
    return 0 if found.passes(arguments.threshold) else 1


async def _compare(arguments: argparse.Namespace, store: Store, registry: Registry, other: int) -> Report:
    """Compare the next generation with the live one, and note when it passed."""
    allowed = frozenset(arguments.allow)
    found = await compare.compare(store, registry.live, other, sample=arguments.sample, allowed=allowed)
    if found.passes(arguments.threshold):
        description = msgspec.structs.replace(registry.descriptions[other], verified_at=generations.now())
        await generations.amend(store, other, description)
    return found


async def run_promote(arguments: argparse.Namespace, _: ProjectorSettings, store: Store, console: Console) -> int:
    """`promote`: verify the next generation against the live one, then serve it."""
    registry = await generations.read(store)
    other = promote.complete_next(registry)
    found = await _compare(arguments, store, registry, other)
    report.show(found, console)
    if not found.passes(arguments.threshold) and not arguments.force:
        raise Refused(
            f"Not promoted: {found.differences:,} documents differ, and --threshold is {arguments.threshold}. Allow "
            "what is meant to differ (--allow leads.quote_total), raise the threshold, or use --force."
        )
    before, after = await promote.promote(store, other)
    console.print(
        f"[green]generation {after} is served[/] instead of {before}, which is kept current: `rollback` goes back, "
        f"`drop` frees its memory"
    )
    return 0


async def run_rollback(_: argparse.Namespace, __: ProjectorSettings, store: Store, console: Console) -> int:
    """`rollback`: the same flip back."""
    before, after = await promote.rollback(store)
    console.print(f"[green]generation {after} is served again[/] instead of {before}")
    return 0


async def run_drop(arguments: argparse.Namespace, _: ProjectorSettings, store: Store, console: Console) -> int:
    """`drop`: free the memory of a generation that is not live."""
    generation, keys = await drop.drop(store, arguments.generation)
    console.print(f"generation {generation} dropped: {keys:,} keys")
    return 0


def _print(found: Report, as_json: bool, console: Console) -> None:
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found.to_json()), indent=2).decode())  # noqa: T201
    else:
        report.show(found, console)
