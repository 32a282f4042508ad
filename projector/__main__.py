"""`python -m projector`: run, and the commands of operators. Settings are environment variables (README)."""

import argparse
import os
import sys
from collections.abc import Awaitable, Callable
from uuid import UUID

import msgspec
import uvloop
from rich.console import Console

from projector import dead_letters, show, status
from projector.checkpoint import DeadLetter
from projector.dead_letters import Redriven
from projector.errors import ProjectorError
from projector.run import run
from projector.store import Store
from schemas.logs import configure
from schemas.settings import ProjectorSettings, SettingsError, load

Command = Callable[[argparse.Namespace, ProjectorSettings, Store], Awaitable[int]]
_console = Console(highlight=False)


def main() -> int:
    """Run a command; its exit code: 0 done, 1 not, 2 called wrongly."""
    arguments = _parser().parse_args()
    try:
        settings = load(ProjectorSettings, os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    configure(settings.log_level if arguments.command == "run" else "error")
    try:
        return uvloop.run(_execute(arguments, settings))
    except ProjectorError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


async def _execute(arguments: argparse.Namespace, settings: ProjectorSettings) -> int:
    if arguments.command == "run":
        await run(settings)
        return 0
    store = Store(settings)
    try:
        command: Command = arguments.function
        return await command(arguments, settings, store)
    finally:
        await store.close()


async def _status(arguments: argparse.Namespace, settings: ProjectorSettings, store: Store) -> int:
    found = await status.look(store, settings)
    if arguments.json:
        _print_json(found)
    else:
        status.show(found, _console)
    return 0


async def _show(arguments: argparse.Namespace, settings: ProjectorSettings, store: Store) -> int:
    found = await show.look(store, arguments.kind, arguments.organization, arguments.id)
    if arguments.json:
        _print_json(found)
    else:
        show.show(found, arguments.kind, settings.topic_prefix, _console)
    return 0


async def _dead_letters(arguments: argparse.Namespace, settings: ProjectorSettings, store: Store) -> int:
    letters = await dead_letters.choose(store, arguments.letters)
    match arguments.action:
        case "list" | "show":
            if arguments.json:
                _print_json(letters)
            else:
                _list(letters, whole=arguments.action == "show")
        case "drop":
            print(f"{await dead_letters.drop(store, letters)} dropped")
        case "redrive":
            return await _redrive(settings, store, letters)
    return 0


async def _redrive(settings: ProjectorSettings, store: Store, letters: list[DeadLetter]) -> int:
    bad = 0
    async for letter, result, reason in dead_letters.redrive(store, settings, letters):
        print(f"{letter.field}  {result}{': ' + reason if reason else ''}")
        bad += result is Redriven.STILL_BAD
    print(f"{len(letters)} driven again, {bad} still bad")
    return 1 if bad else 0


def _list(letters: list[DeadLetter], whole: bool) -> None:
    for letter in letters:
        print(f"{letter.field}  {letter.reason}")
        if whole:
            print(f"  key     {letter.key}")
            print(f"  parked  {show.utc(letter.time)}")
    if not letters:
        print("no dead letters")


def _print_json(found: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m projector", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="project change events into Redis, until SIGTERM")

    about = commands.add_parser("status", help="lag of each partition, freshness, generation, dead letters")
    about.add_argument("--json", action="store_true")
    about.set_defaults(function=_status)

    entity = commands.add_parser("show", help="a document and the events that made it")
    entity.add_argument("kind", choices=["lead", "contact"])
    entity.add_argument("organization", type=_uuid)
    entity.add_argument("id", type=_uuid)
    entity.add_argument("--json", action="store_true")
    entity.set_defaults(function=_show)

    letters = commands.add_parser("dead-letters", help="records that could not be applied")
    letters.set_defaults(function=_dead_letters)
    actions = letters.add_subparsers(dest="action", required=True)
    for action, text in _ACTIONS.items():
        verb = actions.add_parser(action, help=text)
        verb.add_argument("letters", nargs="*" if action != "drop" else "+", metavar="topic:partition:offset")
        if action in ("list", "show"):
            verb.add_argument("--json", action="store_true")
    return parser


_ACTIONS = {
    "list": "one line each",
    "show": "with key and time",
    "redrive": "read the records from Kafka again and apply them, in order; all where none is named",
    "drop": "forget them",
}


def _uuid(text: str) -> str:
    return str(UUID(text))


if __name__ == "__main__":
    sys.exit(main())
