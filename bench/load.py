"""Load on a server, from a separate process: wrk for a closed loop, `bench/sender.py` for an open loop.

If wrk is not installed, `bench/sender.py` also runs the closed loops."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

import msgspec

from bench.benchmark import MeasurementFailed
from bench.cores import pinned
from bench.lab import Lab
from bench.sender import Order, Report
from bench.server import ROOT

_SENDER = (sys.executable, "-m", "bench.sender")
_WRK_SCRIPT = Path(__file__).with_name("wrk.lua")


class Load:
    """Sends these requests in turn, from these cores."""

    def __init__(self, lab: Lab, requests: Sequence[bytes], cores: set[int] | None) -> None:
        self._requests = list(requests)
        self._cores = cores
        self._wrk = shutil.which("wrk")
        self._file = lab.directory / f"requests-{id(self)}"
        self._file.write_bytes(b"".join(request + b"\0" for request in self._requests))
        if self._wrk is None:
            lab.leave_out("wrk", "not installed: bench/sender.py runs the closed loops, and is slower")

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
        return _checked(msgspec.json.decode(ended.stdout.splitlines()[-1], type=Report))

    def open(self, port: int, connections: int, seconds: float, rate: float) -> Report:
        """Send `rate` requests a second, however fast the server is. Raises MeasurementFailed."""
        return self._send(Order(port, connections, seconds, self._requests, rate))

    @contextmanager
    def in_background(self, port: int, connections: int, rate: float) -> Iterator[Callable[[], Report]]:
        """Send `rate` requests a second while the block runs.

        Yields a function that stops them and returns the report, or raises MeasurementFailed.
        """
        order = Order(port, connections, inf, self._requests, rate, announce=True)
        with pinned(self._cores):
            sending = subprocess.Popen(_SENDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        with sending, _killed_at_end(sending):
            stdin, stdout = sending.stdin, sending.stdout
            if stdin is None or stdout is None:
                raise MeasurementFailed("the sender has no pipes")
            stdin.write(msgspec.msgpack.encode(order))
            stdin.close()
            stdout.readline()

            def report() -> Report:
                sending.terminate()
                return _checked(msgspec.json.decode(stdout.read(), type=Report))

            yield report

    def _send(self, order: Order) -> Report:
        with pinned(self._cores):
            ended = subprocess.run(
                _SENDER,
                input=msgspec.msgpack.encode(order),
                cwd=ROOT,
                capture_output=True,
                check=False,
            )
        if ended.returncode:
            raise MeasurementFailed(f"the sender failed: {ended.stderr.decode()}")
        return _checked(msgspec.json.decode(ended.stdout, type=Report))


@contextmanager
def _killed_at_end(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()


def _checked(report: Report) -> Report:
    if report.failed or not report.answered:
        raise MeasurementFailed(f"{report.failed} of {report.answered} responses were not 200: {report.failure}")
    return report
