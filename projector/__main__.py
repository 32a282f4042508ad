"""`python -m projector`: run, and the commands of operators. Settings are environment variables (README)."""

import argparse
import os
import sys
from collections.abc import Awaitable, Callable

import msgspec
import uvloop
from rich.console import Console

from projector.commands import rebuild, show, status
from projector.commands.arguments import parse
from projector.commands.dead_letters import run_dead_letters
from projector.errors import ProjectorError
from projector.redis.store import Store
from projector.run import run
from schemas.settings import ProjectorSettings, SettingsError, load
from telemetry.logs import configure

Command = Callable[[argparse.Namespace, ProjectorSettings, Store, Console], Awaitable[int]]


def main() -> int:
    """Run a command; its exit code: 0 done, 1 not, 2 called wrongly."""
    arguments = parse()
    try:
        settings = load(ProjectorSettings, os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    configure(settings.log_level if arguments.command == "run" else "error")
    try:
        return uvloop.run(_execute(arguments, settings))
    except (ProjectorError, ValueError) as error:
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
        return await _COMMANDS[arguments.command](arguments, settings, store, Console(highlight=False, soft_wrap=True))
    finally:
        await store.close()


async def _status(arguments: argparse.Namespace, settings: ProjectorSettings, store: Store, console: Console) -> int:
    found = await status.look(store, settings)
    if arguments.json:
        _print_json(found)
    else:
        status.show(found, console)
    return 0


async def _show(arguments: argparse.Namespace, settings: ProjectorSettings, store: Store, console: Console) -> int:
    found = await show.look(store, arguments.kind, arguments.organization, arguments.id)
    if arguments.json:
        _print_json(found)
    else:
        show.show(found, arguments.kind, settings.topic_prefix, console)
    return 0


def _print_json(found: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())


_COMMANDS: dict[str, Command] = {
    "status": _status,
    "show": _show,
    "dead-letters": run_dead_letters,
    "rebuild": rebuild.run_rebuild,
    "verify": rebuild.run_verify,
    "promote": rebuild.run_promote,
    "rollback": rebuild.run_rollback,
    "drop": rebuild.run_drop,
}

if __name__ == "__main__":
    sys.exit(main())
