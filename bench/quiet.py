"""Is this machine ours? What other processes take while we measure is found by subtraction: all that the cores worked,
less what we and our children did."""

import os
import time
from collections.abc import Callable, Mapping

import psutil

MOST_FOREIGN = 0.06
"""Share of one core that others may take; a measurement with more is made again."""
ATTEMPTS = 6
_LONGEST_SECONDS = 30.0
"""After so long a measurement is not made again, however it was."""
_LOOK_SECONDS = 0.2
_PATIENCE_SECONDS = 20.0


def undisturbed(measure: Callable[[], Mapping[str, float]]) -> tuple[Mapping[str, float], float]:
    """The first measurement that others left alone, or the last attempt; with the share of a core that they took."""
    started = time.monotonic()
    values, foreign = _measured(measure)
    for _ in range(ATTEMPTS - 1):
        if foreign <= MOST_FOREIGN or time.monotonic() - started > _LONGEST_SECONDS:
            break
        _wait_for_quiet()
        values, foreign = _measured(measure)
    return values, foreign


def _measured(measure: Callable[[], Mapping[str, float]]) -> tuple[Mapping[str, float], float]:
    started, busy, ours = time.monotonic(), _busy_seconds(), _our_seconds()
    values = measure()
    others = (_busy_seconds() - busy) - (_our_seconds() - ours)
    return values, max(0.0, others / (time.monotonic() - started))


def _wait_for_quiet() -> None:
    """Until the cores rest for a moment; goes on after a while all the same."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        busy = _busy_seconds()
        time.sleep(_LOOK_SECONDS)
        if _busy_seconds() - busy < MOST_FOREIGN * _LOOK_SECONDS * 2:
            return


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _our_seconds() -> float:
    """Of this process and its children, also those that have ended."""
    now = os.times()
    found = now.user + now.system + now.children_user + now.children_system
    for child in psutil.Process().children(recursive=True):
        found += sum(child.cpu_times()[:2])
    return found
