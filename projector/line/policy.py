"""In what a replay differs from a live line."""

from collections.abc import Callable
from typing import Any

import msgspec

from projector.errors import LineStopped
from projector.line.pace import FullSpeed, Pacer


def _accept(*_: Any) -> None:
    """Let the line do what it does by itself."""


class Policy(msgspec.Struct, frozen=True):
    """How a line behaves. The defaults are those of a live line.

    The callbacks are called first of all; what they raise ends the line, and comes out of `Line.run`.
    """

    pacer: Pacer = FullSpeed()
    on_generations_changed: Callable[[], None] = _accept
    """Other generations are to be written. A live line then writes the batch once more, to those."""
    on_halt: Callable[[LineStopped], None] = _accept
    """There are too many bad records. A live line then halts until an operator intervenes."""


LIVE = Policy()
"""The policy of a line that never ends by itself."""
