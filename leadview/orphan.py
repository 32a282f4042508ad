"""Stops a child process whose main process was killed: nothing would restart it or stop it any more."""

import asyncio
import logging
import signal
from multiprocessing import parent_process

_CHECK_SECONDS = 1.0

logger = logging.getLogger(__name__)


async def watch() -> None:
    """Check once a second that the main process is running. If it is gone, send SIGTERM to this one.

    Returns at once in a process that has no main process.
    """
    parent = parent_process()
    if parent is None:
        return
    while parent.is_alive():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(_CHECK_SECONDS)
    logger.error("the main process is gone: this process stops")
    signal.raise_signal(signal.SIGTERM)
