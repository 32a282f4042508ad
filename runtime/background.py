"""Work in the background of a process: tasks that must not end because one of them fails, and single calls."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from multiprocessing import parent_process
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


async def keep(what: str, run: Callable[[], Awaitable[None]]) -> None:
    """Calls `run`, and again after each unexpected error, which is logged with its traceback, until it returns."""
    while True:
        try:
            await run()
        except Exception:
            logger.exception("%s failed, and is started again", what)
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return


async def watch_parent() -> None:
    """Wait until the main process is gone, and then send SIGTERM to this one: nothing else would stop it any more, and
    it would keep the port. Returns at once in a process that has no main process.
    """
    parent = parent_process()
    if parent is None:
        return
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(parent.sentinel, gone.set)  # a pipe whose other end the main process holds
    try:
        await gone.wait()
    finally:
        loop.remove_reader(parent.sentinel)
    logger.error("the main process is gone: this process stops")
    signal.raise_signal(signal.SIGTERM)


class BackgroundCall(Generic[T]):
    """Runs one call in the background, so that nothing else waits for it. At most one is under way.

    `cancel` must be called before what the call needs is closed.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._working: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Begin, unless it is under way."""
        self._working = self._working or asyncio.create_task(self._work())

    def take_answer(self) -> T | None:
        """Returns what the work has returned, once; None if there is nothing yet. Raises what the work has raised."""
        if self._working is None or not self._working.done():
            return None
        ended, self._working = self._working, None
        return ended.result()

    async def ended(self) -> None:
        """Wait until it is not under way."""
        if self._working:
            await asyncio.wait([self._working])

    async def cancel(self) -> None:
        """Cancel it if it is under way."""
        if self._working:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
