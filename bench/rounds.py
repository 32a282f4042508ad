"""Runs a benchmark: all subjects in turn, round after round, in alternating order.

A measurement is repeated if other processes used the machine meanwhile. Their CPU time is found by subtraction: that of
all cores, less that of this process and its children.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import product

import psutil

from bench import machine
from bench.benchmark import Benchmark, Lab, Measure, Values
from bench.outcome import Outcome, Round
from bench.servers import cpu_seconds
from devstack.jars import KAFKA

MAX_FOREIGN = 0.06
"""Share of one core that other processes may use. Above it, a measurement is repeated."""
ATTEMPTS = 6
_REPEAT_SECONDS = 30.0
"""After this time a measurement is not repeated any more, even if it was disturbed."""
_SAMPLE_SECONDS = 0.2
_QUIET_TIMEOUT_SECONDS = 20.0


def run(benchmark: Benchmark, lab: Lab, report: Callable[[str], None]) -> Outcome:
    """Measure everything. `report` is called with each step before it is done. Raises MeasurementFailed."""
    date = datetime.now(UTC)
    count = 1 if lab.quick else benchmark.rounds
    measured: list[Round] = []
    for numbers in ([number] for number in range(count)) if benchmark.restarts_each_round else [range(count)]:
        with ExitStack() as stack:
            report(f"{benchmark.name}: starting servers and creating data")
            measures = _prepared(benchmark, lab, stack)
            for number, case in product(numbers, benchmark.cases):
                report(f"{benchmark.name}: round {number + 1} of {count}, {case}")
                measured += _round(measures, number, case, repeats=not (lab.quick or benchmark.counts))
    subjects = {each.subject for each in measured}
    found = Outcome(
        name=benchmark.name,
        what=benchmark.what,
        date=date.isoformat(timespec="seconds"),
        quick=lab.quick,
        machine=machine.description(),
        versions=machine.versions(),
        metrics=list(benchmark.metrics),
        subjects=[subject for subject in benchmark.subjects if subject.name in subjects],
        cases=list(benchmark.cases),
        rounds=measured,
        targets=[],
        left_out=dict(lab.left_out),
    )
    for target in benchmark.targets:
        found.judge(target)
    return found


def _prepared(benchmark: Benchmark, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    if benchmark.needs_kafka and (reason := KAFKA.why_unavailable()):
        lab.left_out[benchmark.name] = reason
        return {}
    return benchmark.prepare(lab, stack)


def _round(measures: Mapping[str, Measure], number: int, case: str, *, repeats: bool) -> Iterator[Round]:
    """Every second round has the reverse order, so that no subject profits if the machine becomes slower or faster."""
    subjects = list(measures)
    for subject in reversed(subjects) if number % 2 else subjects:
        measure = partial(measures[subject], case)
        values, foreign = _undisturbed(measure) if repeats else (measure(), 0.0)
        if values:
            yield Round(number + 1, case, subject, dict(values), round(foreign, 3))


def _undisturbed(measure: Callable[[], Values]) -> tuple[Values, float]:
    """Returns the first undisturbed measurement, or the last attempt, and the share of a core that others used."""
    started = time.monotonic()
    values, foreign = _measured(measure)
    for _ in range(ATTEMPTS - 1):
        if foreign <= MAX_FOREIGN or time.monotonic() - started > _REPEAT_SECONDS:
            break
        _wait_for_quiet()
        values, foreign = _measured(measure)
    return values, foreign


def _measured(measure: Callable[[], Values]) -> tuple[Values, float]:
    started, busy, own = time.monotonic(), _busy_seconds(), _own_seconds()
    values = measure()
    if not values:
        return values, 0.0
    others = (_busy_seconds() - busy) - (_own_seconds() - own)
    return values, max(0.0, others / (time.monotonic() - started))


def _wait_for_quiet() -> None:
    """Wait until the cores are idle for a moment, or until a timeout."""
    deadline = time.monotonic() + _QUIET_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        busy = _busy_seconds()
        time.sleep(_SAMPLE_SECONDS)
        if _busy_seconds() - busy < MAX_FOREIGN * _SAMPLE_SECONDS * 2:
            return


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _own_seconds() -> float:
    """CPU time of this process and of its children, including those that have ended."""
    now = os.times()
    seconds = now.user + now.system + now.children_user + now.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it may end meanwhile
            seconds += cpu_seconds([child])
    return seconds
