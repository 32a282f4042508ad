"""Leaves nothing behind when this process ends for any reason, even by SIGKILL: neither its child processes, with their
children, nor its temporary directory.

    this process ──pipe──► watcher: reads "+pid", "-pid", "+/path" and "-/path"; at the end of the pipe, it kills and
                           removes the rest

The kernel closes the pipe with its last writer, so the watcher always notices the end. PR_SET_PDEATHSIG was not chosen,
because it exists only on Linux, needs `preexec_fn` (unsafe with threads), and takes effect when the *thread* that
started the child ends.
"""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Self

_REMOVE_SECONDS = 10.0
_PAUSE_SECONDS = 0.05


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

    def hold(self, held: int | Path) -> None:
        """Take care of a process or of an absolute directory."""
        self._write(f"+{held}\n")

    def release(self, held: int | Path) -> None:
        """Call this as soon as a child was waited for, because its id may then belong to another process."""
        self._write(f"-{held}\n")

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


class Scratch:
    """A temporary directory. A context manager that removes it, unless `keep` was called."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="leadview-"))
        self._is_kept = False
        leash().hold(self.path)

    def keep(self) -> None:
        """Keep the directory, because the user needs its files."""
        self._is_kept = True
        leash().release(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if not self._is_kept:
            remove(self.path)
            leash().release(self.path)


def remove(directory: Path) -> None:
    """Remove a directory. Repeats this until the processes that write there have ended, too."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while directory.exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(_PAUSE_SECONDS)


def watch(lines: Iterable[str]) -> None:
    """Read until the parent has ended, then kill the processes and remove the directories that it still held."""
    held: set[str] = set()
    for line in lines:
        change = held.add if line[0] == "+" else held.discard
        change(line[1:].strip())
    directories = {each for each in held if each.startswith("/")}
    for pid in held - directories:
        with suppress(ProcessLookupError, PermissionError):  # macOS raises the latter if the process has ended
            os.killpg(int(pid), signal.SIGKILL)  # each child leads its own group, which may contain workers
    for directory in directories:
        remove(Path(directory))


if __name__ == "__main__":
    watch(sys.stdin)
