"""Waiting in tests: for a condition, never for a time. `wait_until` blocks, `eventually` is for coroutines."""

import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

import anyio

from devstack.waiting import PATIENCE_SECONDS, pause_since, processor_seconds, wait_until

__all__ = ["PATIENCE_SECONDS", "Stopwatch", "eventually", "wait_for", "wait_until"]

_T = TypeVar("_T")


def wait_for(ask: Callable[[], _T], is_it: Callable[[_T], object], description: str) -> _T:
    """Asks until the answer is the one that is waited for, and returns that answer. Raises TimeoutError."""
    answer = ask()

    def has_come() -> object:
        nonlocal answer
        answer = ask()
        return is_it(answer)

    wait_until(has_come, lambda: f"{description}; the last answer is {answer!r}")
    return answer


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
        before = processor_seconds()
        is_last = time.monotonic() >= deadline  # a busy machine may have slept until then: one more call is due
        last = await _outcome(predicate)
        if last and not isinstance(last, AssertionError):
            return
        if is_last:
            raise TimeoutError(f"waited {timeout:g} s until {description}; last seen: {last!r}")
        await anyio.sleep(pause_since(before))


async def _outcome(predicate: Callable[[], object | Awaitable[object]]) -> object:
    try:
        answer = predicate()
        return await answer if inspect.isawaitable(answer) else answer
    except AssertionError as error:
        return error


_PAUSE_SECONDS = 0.01
_USUAL_DELAY_SECONDS = 0.01


class Stopwatch:
    """A context manager that counts seconds from its beginning.

    A thread sleeps for hundredths of a second. If it wakes up late, the machine had no processor to spare or stood
    still, and so did what is being measured: `seconds` leaves this time out.
    """

    def __init__(self) -> None:
        self._began = self._woke_up = time.monotonic()
        self._lost = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stopwatch", daemon=True)
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning, without the lost ones."""
        with self._lock:
            now = time.monotonic()
            return now - self._began - self._lost - self._delay(now)

    def __enter__(self) -> Self:
        self._began = self._woke_up = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            time.sleep(_PAUSE_SECONDS)
            with self._lock:
                now = time.monotonic()
                self._lost += self._delay(now)
                self._woke_up = now

    def _delay(self, now: float) -> float:
        """Returns how many seconds the thread is late by now."""
        if self._ended.is_set():
            return 0.0
        return max(0.0, now - self._woke_up - _PAUSE_SECONDS - _USUAL_DELAY_SECONDS)
