"""What a test must not leave behind in the event loop: running tasks and unhandled errors."""

import asyncio
import functools
import logging
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from typing import ParamSpec

Parameters = ParamSpec("Parameters")


def without_leftover_tasks(
    test: Callable[Parameters, Awaitable[None]],
) -> Callable[Parameters, Awaitable[None]]:
    """Returns `test`, which now fails if a task that it started is still running when it returns.

    Tasks that fixtures started before are not counted.
    """

    @functools.wraps(test)
    async def checked(*arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        before = asyncio.all_tasks()
        await test(*arguments, **named)
        await asyncio.sleep(0)  # a task that was cancelled at the very end can finish
        left = [repr(task) for task in asyncio.all_tasks() - before]
        assert not left, f"the test left tasks running: {left}"

    return checked


@contextmanager
def no_swallowed_errors() -> Generator[None]:
    """Fails if asyncio reports an exception that was never retrieved, or one that a callback raised.

    asyncio reports these only in its log.
    """
    errors, logger = BufferingHandler(sys.maxsize), logging.getLogger("asyncio")
    errors.setLevel(logging.ERROR)
    logger.addHandler(errors)
    try:
        yield
    finally:
        logger.removeHandler(errors)
    messages = [record.getMessage() for record in errors.buffer]
    assert not messages, f"asyncio reported: {messages}"
