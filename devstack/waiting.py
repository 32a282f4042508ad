"""Waiting for servers, in synchronous code."""

import os
import time
from collections.abc import Callable

PATIENCE_SECONDS = float(os.environ.get("LEADVIEW_TEST_PATIENCE", "60"))
"""The timeout for what usually takes a moment. On a busy machine it can take much longer."""
_INTERVAL_SECONDS, _LONGEST_INTERVAL_SECONDS = 0.02, 0.5
_SHARE = 3
"""A call is repeated after this multiple of the processor time that it took: asking must not slow down what is waited
for."""


def wait_until(
    predicate: Callable[[], object],
    description: str | Callable[[], str],
    timeout: float = PATIENCE_SECONDS,
    interval: float = _INTERVAL_SECONDS,
) -> None:
    """Poll until `predicate` returns a true value. Raises TimeoutError with `description` after `timeout` seconds; it
    may be a function that says what was seen last. `interval` is the pause between two calls, in seconds: a longer one
    if each call costs much.

    An exception of `predicate` is not caught, so a server that has died ends the waiting early.
    """
    deadline = time.monotonic() + timeout
    while True:
        before = processor_seconds()
        is_last = time.monotonic() >= deadline  # after a long pause of a busy machine, it is called once more
        if last := predicate():
            return
        if is_last:
            said = description if isinstance(description, str) else description()
            raise TimeoutError(f"waited {timeout:g} s until {said}; last seen: {last!r}")
        time.sleep(max(interval, pause_since(before)))


def processor_seconds() -> float:
    """Returns the processor time of this process and of the programs that it has run to their end."""
    return sum(os.times()[:4])


def pause_since(before: float) -> float:
    """Returns how long to pause after a call before which `processor_seconds` returned this."""
    return min(max(_INTERVAL_SECONDS, _SHARE * (processor_seconds() - before)), _LONGEST_INTERVAL_SECONDS)
