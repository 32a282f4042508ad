"""Waiting in tests: for a condition, never for a time."""

import inspect
import time
from collections.abc import Awaitable, Callable

import anyio

_INTERVAL_SECONDS = 0.02


async def wait_until(
    predicate: Callable[[], object | Awaitable[object]], description: str, timeout: float = 10.0
) -> None:
    """Polls until `predicate`, a function or a coroutine function, answers something true.

    Raises TimeoutError after `timeout` seconds, with `description` ("the lead is readable") and the last
    answer. An AssertionError of `predicate` counts as "not yet": a whole comparison can be awaited. Others
    go through.
    """
    deadline = time.monotonic() + timeout
    while True:
        last = await _outcome(predicate)
        if last and not isinstance(last, AssertionError):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:g} s until {description}; last seen: {last!r}")
        await anyio.sleep(_INTERVAL_SECONDS)


async def _outcome(predicate: Callable[[], object | Awaitable[object]]) -> object:
    try:
        answer = predicate()
        return await answer if inspect.isawaitable(answer) else answer
    except AssertionError as error:
        return error
