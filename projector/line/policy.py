"""How a replay differs from a live line."""

from collections.abc import Callable
from typing import Any

import msgspec

from projector.errors import LineStopped
from projector.line.pace import Pacer


def _accept(*_: Any) -> None:
    """Raise nothing, so that the line continues."""


class Policy(msgspec.Struct, frozen=True):
    """How a line behaves. The defaults are those of a live line.

    A callback is called before the line reacts itself. If it raises, the line ends and `Line.run` raises the same.
    """

    pacer: Pacer = Pacer()
    on_halt: Callable[[LineStopped], None] = _accept
    """Called if there are too many bad records. A live line then halts until an operator intervenes."""
    on_defect: Callable[[Exception], None] = _accept
    """Called if a step fails with an error that nobody expected. A live line then retries until the step succeeds."""


LIVE = Policy()
"""The policy of a line that never ends by itself."""
