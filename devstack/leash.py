"""Kills the child processes of this process, and their children, when it ends for any reason, even by SIGKILL.

    this process ──pipe──► watcher: reads "+pid" and "-pid"; at the end of the pipe, it kills the rest

The kernel closes the pipe with its last writer, so the watcher always notices the end. PR_SET_PDEATHSIG was not chosen,
because it exists only on Linux, needs `preexec_fn` (unsafe with threads), and takes effect when the *thread* that
started the child ends.
"""

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from typing import IO


class Leash:
    """The connection to the watcher. Use `leash()`, because one watcher serves all children."""

    def __init__(self) -> None:
        # Its own session, because Ctrl-C in a terminal reaches the whole group, and the watcher must survive it.
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._watcher.stdin is not None  # noqa: S101 - for mypy: PIPE was asked for
        self._pipe: IO[str] = self._watcher.stdin
        atexit.register(self._close)

    def hold(self, pid: int) -> None:
        self._write(f"+{pid}\n")

    def release(self, pid: int) -> None:
        """Call this as soon as the child was waited for, because its id may then belong to another process."""
        self._write(f"-{pid}\n")

    def _write(self, line: str) -> None:
        self._pipe.write(line)
        self._pipe.flush()

    def _close(self) -> None:
        self._pipe.close()
        self._watcher.wait()


@cache
def leash() -> Leash:
    """Returns the leash of this process."""
    return Leash()


def held_at_end(lines: Iterable[str]) -> set[int]:
    """Returns the process ids that `lines` hold and do not release."""
    held: set[int] = set()
    for line in lines:
        pid = int(line[1:])
        if line[0] == "+":
            held.add(pid)
        else:
            held.discard(pid)
    return held


def watch(lines: Iterable[str]) -> None:
    """Read until the parent has ended, then kill the processes that it still held."""
    for pid in held_at_end(lines):
        try:
            os.killpg(pid, signal.SIGKILL)  # each child leads its own group, which may contain workers
        except (ProcessLookupError, PermissionError):  # macOS raises the latter if the process has ended
            continue


if __name__ == "__main__":
    watch(sys.stdin)
