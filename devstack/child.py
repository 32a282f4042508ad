"""A server as a child process: signals, log, and the guarantee that it ends with its parent."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from devstack.interrupt import uninterrupted
from devstack.leash import leash

STOP_TIMEOUT_SECONDS = 60.0
_LOG_TAIL_BYTES = 4_000


class StackFailed(Exception):
    """Leadview could not be started, or a part of it failed. The message says what happened and what to do."""


class ServerFailed(StackFailed):
    """A server ended by itself or did not become ready. The message contains the end of its log."""


def _ended(status: int) -> str:
    """Returns how a process ended, from its status: below 0, a signal has killed it."""
    return f"ended with status {status}" if status >= 0 else f"was killed ({signal.Signals(-status).name})"


class Child:
    """One process, and a context manager that stops it. Its output is appended to `log`. With `piped`, the caller reads
    and writes its standard streams.

    `directory` is its working directory, and `environment` contains all of its variables. By default, both are those of
    this process.

    It runs in its own session, so that Ctrl-C in the terminal reaches only the parent, which then stops its servers in
    the right order.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        piped: bool = False,
    ) -> None:
        self.log = log
        pipe = subprocess.PIPE if piped else None
        with log.open("ab") as output, uninterrupted():
            self._process = subprocess.Popen(
                command,
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or output,
                stderr=output,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
            leash().hold(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended. A paused process is running."""
        if self._process.returncode is None and self._process.poll() is not None:
            leash().release(self.pid)
        return self._process.returncode is None

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Standard input and output of a `piped` child. Raises ValueError for other children."""
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("this child was started without pipes")
        return self._process.stdin, self._process.stdout

    def ask_to_stop(self) -> None:
        """Send SIGTERM, without waiting for the end. Does nothing if the process has already ended."""
        if self.running:
            self._process.terminate()
            self.resume()  # a paused process handles no other signal

    def stop(self, timeout: float = STOP_TIMEOUT_SECONDS) -> None:
        """Send SIGTERM, then SIGKILL after `timeout` seconds."""
        self.ask_to_stop()
        self._end(timeout)

    def kill(self) -> None:
        """Send SIGKILL, as in a crash. Returns when the process has ended."""
        if self.running:
            self._process.kill()
        self._end(STOP_TIMEOUT_SECONDS)

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open, but the process does not respond."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def wait(self, timeout: float) -> int:
        """Wait for the end. Returns the exit status. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        status = self._process.wait(timeout)
        leash().release(self.pid)
        return status

    def check_running(self) -> None:
        """Raises ServerFailed if the process has ended."""
        if not self.running:
            raise self.failure(_ended(self._process.returncode))

    def failure(self, what: str) -> ServerFailed:
        """Returns an error to raise. Its message contains the end of the log."""
        tail = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        return ServerFailed(f"`{self.log.stem}` {what}. The end of its log:\n\n{tail}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _end(self, timeout: float) -> None:
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.wait(STOP_TIMEOUT_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
