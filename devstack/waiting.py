"""Waiting for servers, in synchronous code."""

import time
from collections.abc import Callable

_INTERVAL_SECONDS = 0.02


def wait_until(predicate: Callable[[], object], description: str, timeout: float) -> None:
    """Polls until `predicate` answers something true. After `timeout` seconds TimeoutError says what for.

    What `predicate` raises goes through: that is how "it died" ends the waiting early.
    """
    deadline = time.monotonic() + timeout
    while not (last := predicate()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:g} s until {description}; last seen: {last!r}")
        time.sleep(_INTERVAL_SECONDS)
