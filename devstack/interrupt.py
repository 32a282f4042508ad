"""Ctrl-C, SIGTERM and a closed terminal, as one exception: once, so that the way out is not cut off again.

An exception out of a signal handler can be lost: in a finalizer or a callback Python prints and forgets it. So it is
noted as well, and `check` raises it again.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """Someone wants this to end."""


class _Noted:
    """That a signal came, and how many `uninterrupted` the main thread is in."""

    wanted = False
    depth = 0


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside, the first signal raises Interrupted; later ones do nothing. Ending is not a failure: it is swallowed."""
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
    """Inside, a signal waits until the end: else a process that was just started might be known to nobody."""
    if threading.current_thread() is not threading.main_thread():  # signals come to the main thread only
        yield
        return
    _Noted.depth += 1
    try:
        yield
    finally:
        _Noted.depth -= 1
        check()


def check() -> None:
    """Raises Interrupted where a signal came before."""
    if _Noted.wanted and not _Noted.depth:
        raise Interrupted


def _raise(_number: int, _frame: object) -> None:
    _ignore()
    _Noted.wanted = True
    check()


def _ignore() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
