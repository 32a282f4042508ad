"""Turns Ctrl-C, SIGTERM and a closed terminal into one exception. Later signals do not interrupt the shutdown.

The exception of a signal handler can be lost: in a finalizer or a callback, Python only prints it. So the signal is
recorded as well, and `check` raises the exception again.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end."""


class _Noted:
    """Whether a signal was received, and how many `uninterrupted` blocks the main thread is in."""

    wanted = False
    depth = 0


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside, the first signal raises Interrupted, which ends the block without an error. Later ones do nothing."""
    for number in _SIGNALS:
        signal.signal(number, _raise)
    try:
        yield
    except Interrupted:
        pass
    finally:
        _ignore()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay a signal until the end of the block. Otherwise a process that was just started might not be recorded."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield
        return
    _Noted.depth += 1
    try:
        yield
    finally:
        _Noted.depth -= 1
        check()


def check() -> None:
    """Raises Interrupted if a signal was received."""
    if _Noted.wanted and not _Noted.depth:
        raise Interrupted


def _raise(_number: int, _frame: object) -> None:
    _ignore()
    _Noted.wanted = True
    check()


def _ignore() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
