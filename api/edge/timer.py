"""A timer of a connection."""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable


class Timer:
    """Calls an action once it has run for `seconds` without being stopped. Only a running timer refers to its action,
    so a connection whose timers are stopped is freed at once, without a garbage collection.
    """

    __slots__ = ("_handle", "_loop", "_seconds")

    def __init__(self, loop: AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._handle: TimerHandle | None = None

    def start(self, action: Callable[[], object]) -> None:
        """Start the timer. A timer that was started before keeps its time and its action."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, action)

    @property
    def started_at(self) -> float | None:
        """When it was started, by the clock of the event loop; None if it does not run."""
        return self._handle.when() - self._seconds if self._handle else None

    def stop(self) -> None:
        """Stop the timer, so that it can be started again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
