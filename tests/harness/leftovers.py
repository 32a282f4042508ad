"""What a test must not leave behind in the event loop: running tasks and unhandled errors."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
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


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def no_swallowed_errors(logger_name: str = "asyncio") -> Generator[None]:
    """Fails if asyncio reports an exception that was never retrieved, or one that a callback raised.

    asyncio reports these only in its log.
    """
    errors = _Errors()
    logger = logging.getLogger(logger_name)
    logger.addHandler(errors)
    try:
        yield
    finally:
        logger.removeHandler(errors)
    assert not errors.messages, f"{logger_name} reported: {errors.messages}"
