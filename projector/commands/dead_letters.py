"""The command `dead-letters`: list, show, redrive, drop."""

import argparse

import msgspec
from rich.console import Console

from projector.commands import show
from projector.dead_letter import DeadLetter
from projector.redis.store import Store
from projector.upkeep import redrive
from projector.upkeep.redrive import Redriven
from schemas.settings import ProjectorSettings


async def run_dead_letters(
    arguments: argparse.Namespace, settings: ProjectorSettings, store: Store, console: Console
) -> int:
    """Act on the letters that are named, or on all; 1 where a redriven one is still bad."""
    letters = await redrive.choose(store, arguments.letters)
    match arguments.action:
        case "drop":
            console.print(f"{await redrive.drop(store, letters)} dropped")
        case "redrive":
            return await _redrive(settings, store, letters, console)
        case _ if arguments.json:
            console.print_json(msgspec.json.encode(letters).decode())
        case action:
            _list(letters, console, whole=action == "show")
    return 0


async def _redrive(settings: ProjectorSettings, store: Store, letters: list[DeadLetter], console: Console) -> int:
    bad = 0
    async for letter, result, reason in redrive.redrive(store, settings, letters):
        console.print(f"{letter.field}  {result}{': ' + reason if reason else ''}", markup=False, soft_wrap=True)
        bad += result is Redriven.STILL_BAD
    console.print(f"{len(letters)} driven again, {bad} still bad")
    return 1 if bad else 0


def _list(letters: list[DeadLetter], console: Console, *, whole: bool) -> None:
    for letter in letters:
        console.print(f"{letter.field}  {letter.reason}", markup=False, soft_wrap=True)
        if whole:
            console.print(f"  key     {letter.key}", markup=False, soft_wrap=True)
            console.print(f"  parked  {show.utc(letter.time)}")
    if not letters:
        console.print("no dead letters")
