"""What every command of an operator works with."""

import msgspec
from rich.console import Console

from projector.redis.store import Store
from schemas.settings import ProjectorSettings


class Operator(msgspec.Struct, frozen=True):
    """The settings, Redis, and where the output goes: to people on `console`, or to programs with `json`."""

    settings: ProjectorSettings
    store: Store
    console: Console
    json: bool = False

    def print_json(self, value: object) -> None:
        """Print Structs and builtin types as indented JSON, without colors or line breaks of the terminal's width."""
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        self.console.out(text, highlight=False)
