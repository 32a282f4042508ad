"""Load on a server, from a process of its own: closed loop by wrk (by our own sender where there is no wrk), open loop
by our own sender."""

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
    """Sends these requests, from these cores."""

    def __init__(self, lab: Lab, requests: Sequence[bytes], cores: set[int] | None) -> None:
        self._requests = list(requests)
        self._cores = cores
        self._wrk = shutil.which("wrk")
        self._file = lab.directory / f"requests-{id(self)}"
        self._file.write_bytes(b"".join(request + b"\0" for request in self._requests))
        if self._wrk is None:
            lab.leave_out("wrk", "not installed: closed loops are run by bench/sender.py, which is slower")

    def closed(self, port: int, connections: int, seconds: float) -> Report:
        """As many requests as the server answers. Raises MeasurementFailed."""
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
        """So many requests a second, whatever the server does. Raises MeasurementFailed."""
        return self._send(Order(port, connections, seconds, self._requests, rate))

    @contextmanager
    def meanwhile(self, port: int, connections: int, rate: float) -> Iterator[Callable[[], Report]]:
        """So many requests a second while the block runs; what is given ends them and answers what happened."""
        order = Order(port, connections, inf, self._requests, rate, announce=True)
        with pinned(self._cores):
            sending = subprocess.Popen(_SENDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        with sending, _ended(sending):
            given, found = sending.stdin, sending.stdout
            if given is None or found is None:
                raise MeasurementFailed("the sender has no pipes")
            given.write(msgspec.msgpack.encode(order))
            given.close()
            found.readline()

            def report() -> Report:
                sending.terminate()
                return _checked(msgspec.json.decode(found.read(), type=Report))

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
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()


def _checked(report: Report) -> Report:
    if report.failed or not report.answered:
        raise MeasurementFailed(
            f"{report.failed} of {report.answered} requests were not answered 200: {report.failure}"
        )
    return report
