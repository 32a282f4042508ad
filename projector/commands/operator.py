"""What all commands of operators use."""

import msgspec
from rich.console import Console

from projector.redis.store import Store
from schemas.settings import ProjectorSettings


class Operator(msgspec.Struct, frozen=True):
    """The settings, Redis and the console. With `json`, commands print JSON for programs."""

    settings: ProjectorSettings
    store: Store
    console: Console
    json: bool = False

    def print_json(self, value: object) -> None:
        """Print Structs and builtin types as indented JSON, without colors or line wrapping.

        With msgspec, because most values are Structs, and documents in them may hold integers of any size.
        """
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        self.console.out(text, highlight=False)

    def print_json_line(self, value: object) -> None:
        """Print the same in one line, for programs that read what follows as well."""
        self.console.out(msgspec.json.encode(value).decode(), highlight=False)
