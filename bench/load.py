"""Load on a server, from a separate process: wrk for a closed loop, `bench/sender.py` for an open loop.

If wrk is not installed, `bench/sender.py` also runs the closed loops.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.benchmark import Lab, MeasurementFailed
from bench.machine import pinned
from bench.sender import Order, ProbeOrder, Report
from devstack.child import Child
from devstack.programs import ROOT

_WRK_SCRIPT = Path(__file__).with_name("wrk.lua")

R = TypeVar("R")


class Load:
    """Sends these requests in turn, from these cores."""

    def __init__(self, lab: Lab, requests: Sequence[bytes], cores: set[int] | None) -> None:
        self._lab = lab
        self._requests = list(requests)
        self._cores = cores
        self._wrk = shutil.which("wrk")
        self._file = lab.directory / f"requests-{id(self)}"
        self._file.write_bytes(b"".join(request + b"\0" for request in self._requests))
        if self._wrk is None:
            lab.left_out["wrk"] = "not installed: bench/sender.py runs the closed loops, and is slower"

    def closed(self, port: int, connections: int, seconds: float) -> Report:
        """Send as many requests as the server can answer. Raises MeasurementFailed."""
        if self._wrk is None:
            return self._send(Order(port, connections, seconds, self._requests))
        command = [self._wrk, "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(_WRK_SCRIPT)]
        environment = {**os.environ, "REQUESTS": str(self._file)}
        with pinned(self._cores):
            ended = subprocess.run(
                [*command, f"http://127.0.0.1:{port}/"], env=environment, capture_output=True, text=True, check=False
            )
        if ended.returncode:
            raise MeasurementFailed(f"wrk: {ended.stderr}{ended.stdout}")
        return checked(msgspec.json.decode(ended.stdout.splitlines()[-1], type=Report))

    def open(self, port: int, connections: int, seconds: float, rate: float) -> Report:
        """Send `rate` requests a second, however fast the server is. Raises MeasurementFailed."""
        return self._send(Order(port, connections, seconds, self._requests, rate))

    @contextmanager
    def in_background(self, port: int, connections: int, rate: float) -> Iterator[Callable[[], Report]]:
        """Send `rate` requests a second while the block runs.

        Yields a function that stops them and returns the report, or raises MeasurementFailed.
        """
        order = Order(port, connections, inf, self._requests, rate)
        with ordered(self._lab, order, self._cores) as sender:
            sender.pipes[1].readline()

            def report() -> Report:
                sender.ask_to_stop()
                return checked(reported(sender, Report))

            yield report

    def _send(self, order: Order) -> Report:
        with ordered(self._lab, order, self._cores) as sender:
            return checked(reported(sender, Report))


@contextmanager
def ordered(lab: Lab, order: Order | ProbeOrder, cores: set[int] | None) -> Iterator[Child]:
    """Run a process that carries out this order. It is killed when the block ends."""
    command = [sys.executable, "-m", "bench.sender"]
    with pinned(cores):
        child = Child(command, log=lab.directory / "sender.log", directory=ROOT, piped=True)
    try:
        stdin, _ = child.pipes
        stdin.write(msgspec.msgpack.encode(order))
        stdin.close()
        yield child
    finally:
        child.kill()


def reported(child: Child, type_: type[R]) -> R:
    """Returns what the process prints when it ends, as JSON in its last line. Raises ServerFailed."""
    _, stdout = child.pipes
    lines = stdout.read().splitlines()
    if not lines:
        raise child.failure("ended without a report")
    return msgspec.json.decode(lines[-1], type=type_)


def checked(report: Report) -> Report:
    """Returns the report of a measurement in which nothing went wrong. Raises MeasurementFailed."""
    if report.failed or not report.answered:
        raise MeasurementFailed(f"{report.failed} of {report.answered} requests went wrong: {report.failure}")
    return report
