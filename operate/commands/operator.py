"""What all commands of operators use."""

import argparse
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Column, Table

from projector.ledger import acts
from projector.ledger.acts import Act
from projector.redis.store import Store
from schemas.settings import ProjectorSettings


class Operator(msgspec.Struct, frozen=True):
    """The settings, Redis and the console. With `json`, commands print JSON for programs."""

    settings: ProjectorSettings
    store: Store
    console: Console
    json: bool = False
    chosen: dict[str, int | float | str] = {}
    """What the command chose by itself, by its name: `status --history` shows it."""

    def print_json(self, value: object, *, indent: int = 2) -> None:
        """Print Structs and builtin types as JSON, without colors or line wrapping. An `indent` of -1 means one line,
        for programs that read what follows as well.

        With msgspec, because most values are Structs, and documents in them may hold integers of any size. Not by rich,
        which needs twenty times as much memory as the text has.
        """
        self.console.file.write(msgspec.json.format(msgspec.json.encode(value), indent=indent).decode() + "\n")
        self.console.file.flush()


def table(*columns: Column | str) -> Table:
    """Returns a table without lines, to which rows are added."""
    return Table(*columns, box=None, pad_edge=False, header_style="dim")


def acting(command: argparse.ArgumentParser) -> None:
    """Declare that the command is an act of an operator, which `status --history` shows (`act_of`)."""
    command.add_argument(
        "--by", metavar="NAME", help="who does this, for `status --history` (default: the login and the host)"
    )


def act_of(arguments: argparse.Namespace, words: Sequence[str]) -> Act | None:
    """Returns what a command line does; None if it changes nothing."""
    if not hasattr(arguments, "by") or getattr(arguments, "check", False):
        return None
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--by")
    _, (verb, *rest) = own.parse_known_args(words)
    if verb == "dead-letters":
        verb, rest = f"{verb} {rest[0]}", rest[1:]
    return Act(verb, rest, arguments.by or acts.operator())
