"""What a test may not leave behind in the event loop: running tasks, and errors that nobody looked at."""

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
    """`test`, failing where a task that began in it still runs when it returns.

    A fixture's tasks, begun before, are the fixture's own business.
    """

    @functools.wraps(test)
    async def checked(*arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        before = asyncio.all_tasks()
        await test(*arguments, **named)
        await asyncio.sleep(0)  # what was cancelled at the very end gets its turn to go
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
    """Fails where asyncio reports an exception that was never retrieved, or raised in a callback.

    It reports in its log, and nowhere else.
    """
    errors = _Errors()
    logger = logging.getLogger(logger_name)
    logger.addHandler(errors)
    try:
        yield
    finally:
        logger.removeHandler(errors)
    assert not errors.messages, f"{logger_name} reported: {errors.messages}"
