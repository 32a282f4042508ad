"""Runs the projector and the commands of operators. Settings: docs/settings.md."""

import argparse
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module

import uvloop
from rich.console import Console

from operate.commands import rebuild, status, usage, verify
from operate.commands.arguments import NO_OTHERS, parse
from operate.commands.dead_letters import run_dead_letters
from operate.commands.doctor import run_doctor
from operate.commands.operator import Operator, act_of
from operate.commands.show import run_show
from operate.commands.validate import run_validate
from projector.errors import ProjectorError
from projector.ledger import acts
from projector.ledger.acts import Act
from projector.redis.store import Store
from projector.run import run, run_processes
from runtime.logs import configure
from runtime.redis.errors import TooOld
from runtime.redis.version import check_version
from schemas.settings import ProjectorSettings, SettingsError, load

_FILE_WIDTH = 160
_OF_ANY_REDIS = ("doctor", "validate")
"""Commands that work, whatever the version of Redis is: one has a line about it, and the other does without Redis."""


def main(words: Sequence[str] | None = None, others: Mapping[str, str] = NO_OTHERS) -> int:
    """Run a command. Returns its exit code: 0 if it succeeded, 1 if it failed, 2 for wrong arguments or settings.

    `others` are commands of the program that are not run here (`parser_of`).
    """
    words = sys.argv[1:] if words is None else words
    arguments = parse(words, others)
    try:
        settings = load(ProjectorSettings, os.environ)
        is_service = arguments.command in ("run", "console") or getattr(arguments, "continuous", False)
        configure(settings.log_level if is_service else "error")
        if arguments.command not in _OF_ANY_REDIS:
            check_version(settings)
        if getattr(arguments, "processes", 1) > 1:
            return run_processes(settings, arguments.processes)
        code = uvloop.run(_execute(arguments, settings, act_of(arguments, words)))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has ended, as in `| head`; rich ends with the same status
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (SettingsError, TooOld) as error:  # also of a command that reads the settings of the API as well
        print(error, file=sys.stderr)
        return 2
    except (ProjectorError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


async def _execute(arguments: argparse.Namespace, settings: ProjectorSettings, act: Act | None) -> int:
    if arguments.command == "run":
        await run(settings)
        return 0
    if arguments.command == "console":
        # Imported only here: no other command needs an HTTP server, and each of them starts more quickly without one.
        code: int = await import_module("operate.console.server").run_console(arguments, settings)
        return code
    if arguments.command == "validate":
        return await run_validate(arguments, settings)
    store = Store(settings)
    try:
        # A table in a file has no screen to fit on; COLUMNS is honoured by rich.
        width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _FILE_WIDTH
        console = Console(highlight=False, soft_wrap=True, width=width)
        operator = Operator(settings, store, console, json=getattr(arguments, "json", False))
        running = _COMMANDS[arguments.command](arguments, operator)
        return await (acts.noted(store, act, running, operator.chosen, lasts=act.verb == "rebuild") if act else running)
    finally:
        await store.close()


_COMMANDS: dict[str, Callable[[argparse.Namespace, Operator], Awaitable[int]]] = {
    "status": status.run_status,
    "show": run_show,
    "dead-letters": run_dead_letters,
    "doctor": run_doctor,
    "rebuild": rebuild.run_rebuild,
    "verify": verify.run_verify,
    "promote": rebuild.run_promote,
    "rollback": rebuild.run_rollback,
    "drop": rebuild.run_drop,
    "usage": usage.run_usage,
}
