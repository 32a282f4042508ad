"""Tasks beside the work of a process, which must not end because one of them fails."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from multiprocessing import parent_process

_PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


async def keep(what: str, run: Callable[[], Awaitable[None]]) -> None:
    """Returns when `run` does. After an error that nobody expected, which is logged with its traceback, it is called
    again.
    """
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
