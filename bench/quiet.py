"""Repeats measurements during which other processes used the machine.

Their CPU time is found by subtraction: that of all cores, less that of this process and its children."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import psutil

from bench.server import cpu_seconds

MAX_FOREIGN = 0.06
"""Share of one core that other processes may use. Above it, a measurement is repeated."""
ATTEMPTS = 6
_REPEAT_SECONDS = 30.0
"""After this time a measurement is not repeated any more, even if it was disturbed."""
_SAMPLE_SECONDS = 0.2
_INSTANT_SECONDS = 0.01
"""What takes less time measures nothing: it is a result of the simulation."""
_QUIET_TIMEOUT_SECONDS = 20.0


def undisturbed(measure: Callable[[], Mapping[str, float]]) -> tuple[Mapping[str, float], float]:
    """Returns the first undisturbed measurement, or the last attempt, and the share of a core that others used."""
    started = time.monotonic()
    values, foreign = _measured(measure)
    for _ in range(ATTEMPTS - 1):
        if foreign <= MAX_FOREIGN or time.monotonic() - started > _REPEAT_SECONDS:
            break
        _wait_for_quiet()
        values, foreign = _measured(measure)
    return values, foreign


def _measured(measure: Callable[[], Mapping[str, float]]) -> tuple[Mapping[str, float], float]:
    started, busy, own = time.monotonic(), _busy_seconds(), _own_seconds()
    values = measure()
    if time.monotonic() - started < _INSTANT_SECONDS:
        return values, 0.0
    others = (_busy_seconds() - busy) - (_own_seconds() - own)
    return values, max(0.0, others / (time.monotonic() - started))


def _wait_for_quiet() -> None:
    """Wait until the cores are idle for a moment, or until a timeout."""
    deadline = time.monotonic() + _QUIET_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        busy = _busy_seconds()
        time.sleep(_SAMPLE_SECONDS)
        if _busy_seconds() - busy < MAX_FOREIGN * _SAMPLE_SECONDS * 2:
            return


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _own_seconds() -> float:
    """CPU time of this process and of its children, including those that have ended."""
    now = os.times()
    seconds = now.user + now.system + now.children_user + now.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it may end meanwhile
            seconds += cpu_seconds([child])
    return seconds
