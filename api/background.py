"""Tasks beside the requests: connections, polls, reports. The API must not end because one of them fails."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

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
