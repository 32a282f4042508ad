"""Runs `bench/prober.py` on a running service."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from bench.benchmark import MeasurementFailed
from bench.cores import pinned
from bench.pipeline import Pipeline
from bench.prober import RETRY_SECONDS, Event, Order, Report
from bench.server import ROOT

_COMMAND = (sys.executable, "-m", "bench.prober")
_CONNECTIONS = 32


def probe(pipeline: Pipeline, events: Sequence[Event], rate: float) -> Report:
    """Send `rate` of these events a second, and measure the probed ones. Raises MeasurementFailed."""
    with in_background(pipeline, events, rate) as report:
        return report()


@contextmanager
def in_background(
    pipeline: Pipeline, events: Sequence[Event], rate: float, retry_seconds: float = RETRY_SECONDS
) -> Iterator[Callable[[], Report]]:
    """Send `rate` of these events a second, and measure the probed ones.

    Yields a function that waits until all of them are visible, and returns the report or raises MeasurementFailed.
    """
    with _started(pipeline, events, rate, retry_seconds) as prober:

        def report() -> Report:
            output, _ = prober.communicate()
            if prober.returncode:
                raise MeasurementFailed("the prober failed")
            report = msgspec.json.decode(output, type=Report)
            if report.missing or not report.probes:
                raise MeasurementFailed(f"{report.missing} of {report.probes} events were never served")
            return report

        yield report


@contextmanager
def sending(pipeline: Pipeline, events: Sequence[Event], rate: float) -> Iterator[None]:
    """Send these events while the block runs. Events that are left over when it ends are not sent."""
    with _started(pipeline, events, rate) as prober:
        yield
        prober.kill()


@contextmanager
def _started(
    pipeline: Pipeline, events: Sequence[Event], rate: float, retry_seconds: float = RETRY_SECONDS
) -> Iterator[subprocess.Popen[bytes]]:
    order = msgspec.msgpack.encode(Order(pipeline.kafka, pipeline.api.port, rate, _CONNECTIONS, events, retry_seconds))
    with pinned(pipeline.cores.load):
        prober = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    with prober:
        try:
            assert prober.stdin  # noqa: S101 - it is a pipe
            prober.stdin.write(order)
            prober.stdin.close()
            prober.stdin = None  # `communicate` must not close it again
            yield prober
        finally:
            prober.kill()
