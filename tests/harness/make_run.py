"""`make run` as a developer runs it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devstack.programs import ROOT, descendants, is_alive
from devstack.redis_server import redis_program
from tests.harness.waiting import PATIENCE_SECONDS, wait_until


class Run:
    """A running `python -m devstack`, its output as far as it got, and everything that it started."""

    def __init__(self, process: subprocess.Popen[str], output: Path, scratch: Path) -> None:
        self.process = process
        self._output = output
        self.scratch = scratch
        self.started: set[int] = set()

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_until_ready(self) -> None:
        is_over = self.process.poll
        wait_until(lambda: is_over() is not None or "/openapi.json" in self.output, "it is ready")
        assert is_over() is None, self.output
        self.started = descendants(self.process.pid)

    def end(self, number: signal.Signals, status: int = 0) -> None:
        """It ends with this status after the signal, and leaves no process and no file."""
        self.process.send_signal(number)
        assert self.process.wait(PATIENCE_SECONDS) == status
        wait_until(self.nothing_is_left, "processes and files are gone")
        assert "Traceback" not in self.output

    def nothing_is_left(self) -> bool:
        return not any(is_alive(pid) for pid in self.started) and not list(self.scratch.iterdir())


@contextmanager
def running(directory: Path, *arguments: str, **variables: str) -> Iterator[Run]:
    """It is killed at the end, where it did not end by itself. Its temporary files are in `directory`. Raises
    RedisServerMissing.
    """
    redis_program()
    scratch, output = directory / "tmp", directory / "output"
    scratch.mkdir()
    command = [sys.executable, "-m", "devstack", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEADVIEW_")}
    # A slow reply of Redis on a busy machine is no outage.
    environment |= {"TMPDIR": str(scratch), "LEADVIEW_API_REDIS_TIMEOUT": str(PATIENCE_SECONDS), **variables}
    with (
        output.open("w") as file,
        subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT, env=environment, text=True) as process,
    ):
        try:
            yield Run(process, output, scratch)
        finally:
            process.kill()
