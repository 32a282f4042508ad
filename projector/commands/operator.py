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

    def print_json(self, value: object, *, indent: int = 2) -> None:
        """Print Structs and builtin types as JSON, without colors or line wrapping. An `indent` of -1 means one line,
        for programs that read what follows as well.

        With msgspec, because most values are Structs, and documents in them may hold integers of any size.
        """
        self.console.out(msgspec.json.format(msgspec.json.encode(value), indent=indent).decode(), highlight=False)
