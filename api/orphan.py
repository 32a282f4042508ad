"""Stops a worker whose main process was killed: nothing would restart it, stop it, or export its metrics."""

import asyncio
import logging
import signal
from multiprocessing import parent_process

_CHECK_SECONDS = 1.0

logger = logging.getLogger(__name__)


async def watch() -> None:
    """Check once a second that the main process is running. If it is gone, shut this worker down with SIGTERM.

    Returns at once in a process that serves alone.
    """
    parent = parent_process()
    if parent is None:
        return
    while parent.is_alive():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(_CHECK_SECONDS)
    logger.error("the main process of the API is gone: this worker shuts down")
    signal.raise_signal(signal.SIGTERM)
