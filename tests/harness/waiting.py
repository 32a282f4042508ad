"""Waiting in tests: for a condition, never for a time. `wait_until` blocks, `eventually` is for coroutines."""

import inspect
import time
from collections.abc import Awaitable, Callable

import anyio

from devstack.waiting import PATIENCE_SECONDS, wait_until
from tests.harness.stopwatch import Stopwatch

__all__ = ["PATIENCE_SECONDS", "assert_within", "eventually", "last_false", "seconds_until", "wait_until"]

_INTERVAL_SECONDS = 0.02


async def eventually(
    predicate: Callable[[], object | Awaitable[object]], description: str, timeout: float = PATIENCE_SECONDS
) -> None:
    """Polls until `predicate`, a function or a coroutine function, returns something true.

    Raises TimeoutError after `timeout` seconds, with `description` ("the lead is readable") and what `predicate`
    returned last. An AssertionError of `predicate` counts as "not yet", so that it can be a whole comparison. Other
    exceptions are raised at once.
    """
    deadline = time.monotonic() + timeout
    while True:
        is_last = time.monotonic() >= deadline  # a busy machine may have slept until then: one more call is due
        last = await _outcome(predicate)
        if last and not isinstance(last, AssertionError):
            return
        if is_last:
            raise TimeoutError(f"waited {timeout:g} s until {description}; last seen: {last!r}")
        await anyio.sleep(_INTERVAL_SECONDS)


async def seconds_until(
    predicate: Callable[[], object | Awaitable[object]], description: str, timeout: float = PATIENCE_SECONDS
) -> float:
    """Waits like `eventually`. Returns the seconds until `predicate` was true, without those in which the machine
    stood still (`Stopwatch`): for promises in seconds."""
    with Stopwatch() as stopwatch:
        await eventually(predicate, description, timeout)
        return stopwatch.seconds


def last_false(
    predicate: Callable[[], bool | None], description: str, timeout: float = PATIENCE_SECONDS
) -> float | None:
    """Waits like `wait_until`. Returns the time (`time.monotonic`) of the last call of `predicate` that returned False;
    None if no call did. `predicate` returns None if it cannot tell.

    It is the time *before* that call: afterwards, the machine may stand still while the condition becomes true.
    """
    last = None

    def is_true() -> bool:
        nonlocal last
        asked_at = time.monotonic()
        answer = predicate()
        if answer is False:
            last = asked_at
        return bool(answer)

    wait_until(is_true, description, timeout)
    return last


def assert_within(seconds: float, predicate: Callable[[], object], description: str) -> None:
    """Waits like `wait_until`, and fails if that took longer than `seconds`, without those in which the machine stood
    still (`Stopwatch`)."""
    with Stopwatch() as stopwatch:
        wait_until(predicate, description)
        assert stopwatch.seconds <= seconds, f"it took {stopwatch.seconds:.2f} s until {description}"


async def _outcome(predicate: Callable[[], object | Awaitable[object]]) -> object:
    try:
        answer = predicate()
        return await answer if inspect.isawaitable(answer) else answer
    except AssertionError as error:
        return error
