"""Leadview's programs as processes: their command lines, their environment, requests to them, and whether they still do
their work."""

import http.client
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from devstack.child import Child, ServerFailed

ROOT = Path(__file__).parents[1]
PROJECTOR = (sys.executable, "-m", "projector")
API = (sys.executable, "-m", "api")
_TIMEOUT_SECONDS = 2.0
_ASK_SECONDS = 2.0
_ILL_SECONDS = 10.0
"""A problem that lasts so long does not pass by itself. Shorter ones are usual while servers start or fail over."""


def environment(**settings: object) -> dict[str, str]:
    """Returns all environment variables of a process: these settings, and no others of Leadview."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LEADVIEW_")}
    named = {f"LEADVIEW_{name.upper()}": str(value) for name, value in settings.items()}
    return inherited | {"PYTHONPATH": str(ROOT), "COLUMNS": "160"} | named


class Reply(NamedTuple):
    """A response; names of headers are in lower case. If there was none, `status` is 0 and `body` the reason."""

    status: int
    headers: Mapping[str, str]
    body: str


def ask(
    host: str,
    port: int,
    path: str,
    key: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float = _TIMEOUT_SECONDS,
) -> Reply:
    """Send a GET request, with these headers, and an API key if one is given. It never raises an error."""
    sent = {**(headers or {}), **({"Authorization": f"Bearer {key}"} if key else {})}
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path, headers=sent)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, found, response.read().decode())
    except (OSError, http.client.HTTPException) as error:
        return Reply(0, {}, str(error) or type(error).__name__)
    finally:
        connection.close()


class Program(Child):
    """One of our programs. `metrics_port` is the one in its environment; 0 if there is none."""

    def __init__(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> None:
        self.metrics_port = int(environment.get("LEADVIEW_METRICS_PORT", 0))
        self._asked_at = time.monotonic()
        self._ill_since: float | None = None
        super().__init__(command, log=log, directory=ROOT, environment=environment)

    def stop_all(self, timeout: float) -> None:
        """Stop the program, and also its workers, which survive a parent that was killed."""
        self.stop(timeout)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def check_well(self) -> None:
        """Raises ServerFailed if the program has ended, or has reported problems for ten seconds."""
        self.check_running()
        if not self.metrics_port or time.monotonic() - self._asked_at < _ASK_SECONDS:
            return
        reply = ask("127.0.0.1", self.metrics_port, "/healthz")
        self._asked_at = time.monotonic()
        self._ill_since = None if reply.status != 503 else self._ill_since or self._asked_at
        if self._ill_since and self._asked_at - self._ill_since > _ILL_SECONDS:
            raise ServerFailed(f"{self.log.stem} cannot do its work: {reply.body}")


def while_running(child: Child, predicate: Callable[[], object]) -> Callable[[], object]:
    """Returns a predicate that raises ServerFailed if the child has ended, or is a program that reports problems."""
    check = child.check_well if isinstance(child, Program) else child.check_running

    def checked() -> object:
        check()
        return predicate()

    return checked


def is_alive(pid: int) -> bool:
    """Returns whether a process runs. One that has ended may remain as a zombie: not every container has a program that
    waits for it.
    """
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int, words: str = "") -> set[int]:
    """Returns the process ids of the children that run, and of their children, if their command lines contain these
    words.
    """
    found = set()
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it may end meanwhile; ZombieProcess is such an error, too
            if words in " ".join(child.cmdline()):
                found.add(child.pid)
    return found
