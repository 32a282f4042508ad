"""A measured server: a child process, its port, and its use of CPU and memory."""

import http.client
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
from msgspec import Struct

from bench.cores import pinned
from devstack.child import Child
from devstack.waiting import wait_until

ROOT = Path(__file__).parents[1]
_READY_SECONDS = 20.0


class Server(Struct, frozen=True):
    """A running server on loopback, and the processes that it started."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """User and system time of all its processes since they started."""
        return cpu_seconds(self._processes())

    def memory_bytes(self) -> int:
        """Resident memory of all its processes."""
        return sum(int(process.memory_info().rss) for process in self._processes())

    def wait_until_ready(self, request: bytes) -> None:
        """Wait until it responds to this request with 200. Raises TimeoutError."""
        wait_until(lambda: self._answers(request), f"the server on port {self.port} answers", _READY_SECONDS)

    def _processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self.pid)
        return [parent, *parent.children(recursive=True)]

    def _answers(self, request: bytes) -> bool:
        method, path, headers = words(request)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request(method, path, headers=headers)
            return connection.getresponse().status == 200
        except OSError:
            time.sleep(0.02)
            return False
        finally:
            connection.close()


def words(request: bytes) -> tuple[str, str, dict[str, str]]:
    """Returns the method, the path and the headers of a whole HTTP request without a body."""
    first, *lines = request.decode().split("\r\n")
    method, path, _ = first.split(" ")
    return method, path, dict(line.split(": ", 1) for line in lines if line)


def start(
    stack: ExitStack,
    command: Sequence[str],
    port: int,
    *,
    cores: set[int] | None,
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> Server:
    """Start a server on these cores. It is not ready yet. `stack` stops it."""
    with pinned(cores):
        child = Child(command, log=log, directory=ROOT, environment={**os.environ, **(environment or {})})
    stack.callback(child.stop)
    return Server(port, child.pid)


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """User and system time of these processes since they started."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))
