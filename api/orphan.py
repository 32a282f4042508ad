"""Ends a worker whose parent was killed: nobody would restart it, stop it, or show its metrics."""

import asyncio
import logging
import signal
from multiprocessing import parent_process

_LOOK_SECONDS = 1.0

logger = logging.getLogger(__name__)


async def watch() -> None:
    """Look once a second after the process that started this one; where it is gone, ask this one to end.

    Returns at once in a process that serves alone.
    """
    parent = parent_process()
    if parent is None:
        return
    while parent.is_alive():  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(_LOOK_SECONDS)
    logger.error("the API's main process is gone: this worker ends")
    signal.raise_signal(signal.SIGTERM)
