"""The command `dead-letters`: list, show, redrive, accept, drop."""

import argparse
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from operate.commands.argument_types import text, uuid
from operate.commands.operator import Operator, acting
from projector.dead_letter import DeadLetter
from projector.ledger import copies, writers
from projector.offsets import FORMS, OffsetRange, by_partition
from projector.upkeep.dead_letters import (
    Filter,
    Redriven,
    accept,
    check_named,
    choose,
    drop,
    matching,
    present,
    redrive,
)
from schemas.words import utc

_ACTIONS = {
    "list": "print a line for each",
    "show": "print each with its key and time",
    "redrive": "read the records from Kafka again and apply them in order (default: all)",
    "drop": "delete them, and never store those of accepted records again",
}
_MAX_NOTE = 200


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = command.add_subparsers(dest="action", required=True)
    for action, about in _ACTIONS.items():
        verb = actions.add_parser(action, help=about)
        verb.add_argument(
            "dead_letters",
            nargs="*",
            type=_offset_range,
            metavar="topic:partition:offset",
            help="coordinates of a dead letter, or a range of them: topic:partition:first-last",
        )
        _filters(verb)
        if action in ("redrive", "drop"):
            acting(verb)
        if action == "drop":
            verb.add_argument("--all", action="store_true", help="all that are stored now")
        if action in ("list", "show"):
            verb.add_argument("--json", action="store_true")
    _accept_arguments(
        actions.add_parser("accept", help="let bad records no longer count against the limits that halt a line")
    )


def check_arguments(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exit with a message if it is not clear which dead letters are meant."""
    named = arguments.records if arguments.action == "accept" else arguments.dead_letters
    filtered = any(each is not None for each in (arguments.topic, arguments.organization, arguments.reason))
    ways = bool(named) + filtered + getattr(arguments, "all", False)
    if ways > 1:
        parser.error("name the dead letters, or choose them with --topic, --organization and --reason, not both")
    if ways == 0 and arguments.action in ("accept", "drop"):
        parser.error(
            f"name the records to {arguments.action}, or choose dead letters with --topic, --organization, --reason "
            "or --all"
        )


def _accept_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Accepts known bad records. They remain dead letters, but they no longer count against the limits that halt a "
        "line: not in the projector, not after Redis was emptied, and not in a rebuild. A line that they have halted "
        "resumes by itself."
    )
    acting(command)
    command.add_argument(
        "records",
        nargs="*",
        type=_offset_range,
        metavar="topic:partition:offset",
        help="coordinates of a record, or a range of them: topic:partition:first-last. The records need not be stored "
        "as dead letters yet",
    )
    _filters(command)
    command.add_argument("--all", action="store_true", help="all dead letters that are stored now")
    command.add_argument(
        "--note",
        type=_note,
        required=True,
        metavar="TEXT",
        help=f"why they are accepted, in at most {_MAX_NOTE} characters; `list` and `show` print it",
    )


def _filters(command: argparse.ArgumentParser) -> None:
    command.add_argument("--topic", help="those of this topic that are stored now")
    command.add_argument("--organization", type=uuid, help="those whose message key begins with this organization")
    command.add_argument("--reason", type=text, metavar="TEXT", help="those whose reason contains this text")


def _offset_range(word: str) -> OffsetRange:
    try:
        return OffsetRange.parse(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r}: write {FORMS}, such as crm.leads:0:120-420") from None


def _note(words: str) -> str:
    note = " ".join(text(words).split())
    if len(note) > _MAX_NOTE:
        raise argparse.ArgumentTypeError(f"a note may have at most {_MAX_NOTE} characters, this one has {len(note)}")
    return note


async def run_dead_letters(arguments: argparse.Namespace, operator: Operator) -> int:
    """Act on the named dead letters, or on all. Returns 1 if a record that was redriven is still bad."""
    if arguments.action == "accept":
        return await _accept(arguments, operator)
    filtered = _filter(arguments)
    if arguments.action == "drop":
        dropped = await drop(operator.store, operator.settings, arguments.dead_letters, filtered)
        operator.chosen["dead_letters"] = dropped
        operator.console.print(f"{dropped} dropped")
        return 0
    if arguments.action == "redrive":
        return await _redrive(operator, await choose(operator.store, arguments.dead_letters, filtered))
    dead_letters = await present(operator.store, arguments.dead_letters, filtered)
    if operator.json:
        operator.print_json(dead_letters)
    elif dead_letters or not arguments.dead_letters:
        _print(dead_letters, operator.console, details=arguments.action == "show")
    check_named(dead_letters, arguments.dead_letters)
    return 0


def _filter(arguments: argparse.Namespace) -> Filter:
    return Filter(arguments.topic, arguments.organization, arguments.reason)


async def _accept(arguments: argparse.Namespace, operator: Operator) -> int:
    records = arguments.records or await matching(operator.store, operator.settings, _filter(arguments))
    offsets = by_partition(records)
    dead_letters = await accept(operator.store, operator.settings, offsets, arguments.note)
    operator.chosen["dead_letters"] = dead_letters
    if not arguments.records:
        operator.chosen["records"] = ", ".join(
            f"{topic}:{number}:{it}" for (topic, number), it in sorted(offsets.items())
        )
    for (topic, partition), ranges in sorted(offsets.items()):
        operator.console.print(f"{topic}:{partition}:{ranges}  accepted", markup=False, soft_wrap=True)
    operator.console.print(
        f"Dead letters among them: {dead_letters}. A line that they have halted resumes within a few seconds."
    )
    return 0


async def _redrive(operator: Operator, dead_letters: list[DeadLetter]) -> int:
    bad = 0
    await copies.require(operator.store)
    columns = (TextColumn("redrive"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # The lines are printed above the bar, which is only shown on a terminal.
    bar = Progress(*columns, console=operator.console, transient=True, disable=not operator.console.is_terminal)
    async with writers.writing(operator.settings, "redrive") as writing:
        with bar:
            task = bar.add_task("redrive", total=len(dead_letters))
            async for dead_letter, result in redrive(writing, operator.settings, dead_letters):
                still_bad = result is Redriven.STILL_BAD
                text = f"{dead_letter.field}  {result}{f': {dead_letter.reason}' if still_bad else ''}"
                operator.console.print(text, markup=False, soft_wrap=True)
                bad += still_bad
                bar.advance(task)
    operator.chosen.update(dead_letters=len(dead_letters), still_bad=bad)
    operator.console.print(f"{len(dead_letters)} redriven, {bad} still bad")
    return 1 if bad else 0


def _print(dead_letters: list[DeadLetter], console: Console, *, details: bool) -> None:
    for letter in dead_letters:
        accepted = f"  accepted: {letter.note}" if letter.accepted and not details else ""
        lines = [f"{letter.field}  {letter.reason}{accepted}", *(_details(letter) if details else ())]
        console.print("\n".join(lines), markup=False, soft_wrap=True)
    if not dead_letters:
        console.print("no dead letters")


def _details(letter: DeadLetter) -> Iterator[str]:
    yield f"  key       {letter.key}"
    if letter.offsets > 1:
        yield f"  offsets   {letter.offset} to {letter.next_offset - 1}"
    if letter.fault and letter.fault.trace_id:
        yield f"  trace     {letter.fault.trace_id}"
    yield f"  parked    {utc(letter.time)}"
    if letter.accepted:
        yield f"  accepted  {utc(letter.accepted_at or 0)}  {letter.note}"
