"""A timer of a connection."""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable


class Timer:
    """Calls `action` once it has run for `seconds` without being stopped."""

    __slots__ = ("_action", "_handle", "_loop", "_seconds")

    def __init__(self, loop: AbstractEventLoop, seconds: float, action: Callable[[], object]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._action = action
        self._handle: TimerHandle | None = None

    def start(self) -> None:
        """Start the timer. A timer that was started before keeps its time."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, self._action)

    def stop(self) -> None:
        """Stop the timer, so that it can be started again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
