"""A temporary directory that is removed when this process ends, even by SIGKILL.

    this process ──pipe──► watcher: waits for the end of the pipe, then removes the directory

As in `devstack.leash`, the kernel closes the pipe with its last writer. Only the watcher removes the directory. It
repeats this until the processes that write there have ended, too.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Self

_REMOVE_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
_KEEP = "keep"


class Scratch:
    """The directory. A context manager that removes it, unless `keep` was called."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="leadview-"))
        # Its own session, because Ctrl-C in a terminal reaches the whole group, and the watcher must survive it.
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._watcher.stdin is not None  # noqa: S101 - for mypy: PIPE was asked for
        self._pipe: IO[str] = self._watcher.stdin

    def keep(self) -> None:
        """Keep the directory, because the user needs its files."""
        self._pipe.write(_KEEP)
        self._pipe.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._pipe.close()
        self._watcher.wait()


def watch(directory: Path, pipe: IO[str]) -> None:
    """Wait until the parent has ended or is done, then remove the directory unless it asked to keep it."""
    if pipe.read() == _KEEP:
        return
    deadline = time.monotonic() + _REMOVE_SECONDS
    while time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), sys.stdin)
