"""Kills our child processes, and theirs, when this process ends, however it ends, SIGKILL included.

    this process ──pipe──► watcher: reads "+pid" and "-pid"; at the end of the pipe kills what is left

The kernel closes the pipe with its last writer, so there is no way to end without the watcher noticing. This
was chosen over PR_SET_PDEATHSIG, which exists on Linux only, needs `preexec_fn` (unsafe beside threads), and
fires when the *thread* that started the child ends.
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
    """The watcher's end in this process. Use `leash()`: one watcher serves all children."""

    def __init__(self) -> None:
        # Its own session: Ctrl-C in a terminal goes to a whole group, and the watcher must outlive it.
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._watcher.stdin is not None  # noqa: S101 - for mypy: PIPE was asked for
        self._pipe: IO[str] = self._watcher.stdin
        atexit.register(self._let_go)

    def hold(self, pid: int) -> None:
        self._write(f"+{pid}\n")

    def release(self, pid: int) -> None:
        """Call as soon as the child was waited for: from then on its id may belong to another process."""
        self._write(f"-{pid}\n")

    def _write(self, line: str) -> None:
        self._pipe.write(line)
        self._pipe.flush()

    def _let_go(self) -> None:
        self._pipe.close()
        self._watcher.wait()


@cache
def leash() -> Leash:
    """The leash of this process."""
    return Leash()


def held_at_end(lines: Iterable[str]) -> set[int]:
    """The ids that `lines` put on the leash and did not release."""
    held: set[int] = set()
    for line in lines:
        pid = int(line[1:])
        if line[0] == "+":
            held.add(pid)
        else:
            held.discard(pid)
    return held


def watch(lines: Iterable[str]) -> None:
    """Reads until the parent is gone, then kills what it left behind."""
    for pid in held_at_end(lines):
        try:
            os.killpg(pid, signal.SIGKILL)  # each leads a group of its own, in which it may have workers
        except (ProcessLookupError, PermissionError):  # macOS says the latter of one that is dead
            continue


if __name__ == "__main__":
    watch(sys.stdin)
