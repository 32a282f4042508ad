"""Waiting for servers, in synchronous code."""

import time
from collections.abc import Callable

PATIENCE_SECONDS = 60.0
"""How long to wait for what takes a moment: on a busy machine, it takes a while."""
_INTERVAL_SECONDS = 0.02


def wait_until(predicate: Callable[[], object], description: str, timeout: float = PATIENCE_SECONDS) -> None:
    """Polls until `predicate` answers something true. After `timeout` seconds TimeoutError says what for.

    What `predicate` raises goes through: that is how "it died" ends the waiting early.
    """
    deadline = time.monotonic() + timeout
    while True:
        is_last = time.monotonic() >= deadline  # however long a busy machine slept, it is asked after that once more
        if last := predicate():
            return
        if is_last:
            raise TimeoutError(f"waited {timeout:g} s until {description}; last seen: {last!r}")
        time.sleep(_INTERVAL_SECONDS)
