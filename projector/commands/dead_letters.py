"""The command `dead-letters`: list, show, redrive, drop."""

import argparse

from rich.console import Console

from projector.commands.operator import Operator
from projector.commands.show_view import utc
from projector.dead_letter import DeadLetter
from projector.ledger import copies, writers
from projector.upkeep import redrive
from projector.upkeep.redrive import Redriven


async def run_dead_letters(arguments: argparse.Namespace, operator: Operator) -> int:
    """Act on the named dead letters, or on all. Returns 1 if a record that was redriven is still bad."""
    dead_letters = await redrive.choose(operator.store, arguments.dead_letters)
    match arguments.action:
        case "drop":
            operator.console.print(f"{await redrive.drop(operator.store, dead_letters)} dropped")
        case "redrive":
            return await _redrive(operator, dead_letters)
        case _ if operator.json:
            operator.print_json(dead_letters)
        case action:
            _print(dead_letters, operator.console, details=action == "show")
    return 0


async def _redrive(operator: Operator, dead_letters: list[DeadLetter]) -> int:
    bad = 0
    await copies.require(operator.store)
    async with writers.writing(operator.settings, "redrive") as writing:
        async for dead_letter, result, reason in redrive.redrive(writing, operator.settings, dead_letters):
            text = f"{dead_letter.field}  {result}{': ' + reason if reason else ''}"
            operator.console.print(text, markup=False, soft_wrap=True)
            bad += result is Redriven.STILL_BAD
    operator.console.print(f"{len(dead_letters)} redriven, {bad} still bad")
    return 1 if bad else 0


def _print(dead_letters: list[DeadLetter], console: Console, *, details: bool) -> None:
    for dead_letter in dead_letters:
        console.print(f"{dead_letter.field}  {dead_letter.reason}", markup=False, soft_wrap=True)
        if details:
            console.print(f"  key     {dead_letter.key}", markup=False, soft_wrap=True)
            console.print(f"  parked  {utc(dead_letter.time)}")
    if not dead_letters:
        console.print("no dead letters")
