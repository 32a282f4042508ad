"""What readers notice while a projector writes as much as it can: of a rebuild, and of catching up after an outage."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from itertools import chain

from bench import consumers, pipeline
from bench.api import LATE, P50, P99, P999, latency
from bench.benchmark import LEADVIEW, Benchmark, Lab, Measure, Metric, Subject, Target, Values
from bench.crm import Changes, Traffic, lead_requests, publish
from bench.machine import service_cores
from bench.sender import Report
from devstack.programs import while_running
from devstack.waiting import wait_until

RATE = Metric("rate", "records/s")
_TIME = Metric("time", "s")
BEFORE, REBUILDING, CATCHING_UP = "before", "during the rebuild", "while catching up"
_RECORDS, _QUICK_RECORDS = 1_000_000, 10_000
_BACKLOG, _QUICK_BACKLOG = 100_000, 10_000
_REQUESTS_A_SECOND = 500.0
_CONNECTIONS = 64
_SECONDS = 20.0
_DONE_SECONDS = 600.0


def _prepare(lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    return {LEADVIEW: _Service(lab, stack).measure}


class _Service:
    """A running service, and readers of all of its organizations."""

    def __init__(self, lab: Lab, stack: ExitStack) -> None:
        self._lab = lab
        crm, self._count = Traffic(), _QUICK_RECORDS if lab.quick else _RECORDS
        batches = crm.batches(self._count)
        first = next(batches)
        self._service = pipeline.start(lab, stack, service_cores(), crm.tenants, chain([crm.access, first], batches))
        self._backlog = Changes(crm.tenants, first)
        self._load = self._service.load(lead_requests(crm.tenants))
        self._load.open(self._service.api.port, _CONNECTIONS, lab.seconds(5.0), _REQUESTS_A_SECOND)  # as a warm-up

    def measure(self, case: str) -> Values:
        if case == REBUILDING:
            return self._rebuild()
        if case == CATCHING_UP:
            return self._catch_up(_QUICK_BACKLOG if self._lab.quick else _BACKLOG)
        port, seconds = self._service.api.port, self._lab.seconds(_SECONDS)
        return latency(self._load.open(port, _CONNECTIONS, seconds, _REQUESTS_A_SECOND))

    def _rebuild(self) -> Values:
        service, started = self._service, time.monotonic()
        with service.rebuilding() as rebuilding, self._reading() as report:
            complete = while_running(rebuilding.process, lambda: service.is_complete(rebuilding.generation))
            wait_until(complete, "the rebuild is complete", _DONE_SECONDS)
            seconds = time.monotonic() - started
            return latency(report()) | {RATE.name: self._count / seconds, _TIME.name: seconds}

    def _catch_up(self, backlog: int) -> Values:
        """Returns the time from the start of the projector on, and the rate from its first checkpoint on, or from the
        start on if there is only one.
        """
        service, before = self._service, self._covered()
        with ExitStack() as stack:
            with service.outage():
                publish(service.kafka, self._backlog.take(backlog))
                report = stack.enter_context(self._reading())
            started = time.monotonic()
            begun = while_running(service.process, lambda: self._covered() > before)
            wait_until(begun, "the projector has begun", _DONE_SECONDS)
            began, done = time.monotonic(), self._covered()
            caught_up = while_running(service.process, lambda: self._covered() >= before + backlog)
            wait_until(caught_up, "the backlog is worked off", _DONE_SECONDS)
            ended = time.monotonic()
            if done >= before + backlog:
                began, done = started, before
            return latency(report()) | {
                _TIME.name: ended - started,
                RATE.name: (before + backlog - done) / (ended - began),
            }

    def _reading(self) -> AbstractContextManager[Callable[[], Report]]:
        return self._load.in_background(self._service.api.port, _CONNECTIONS, _REQUESTS_A_SECOND)

    def _covered(self) -> int:
        return consumers.covered(self._service.redis)


BENCHMARK = Benchmark(
    name="rebuild",
    what=(
        "The API's latency at 500 requests a second (open loop): alone; during a rebuild of 1,000,000 records by one "
        "process as it is delivered (it writes less at once while the API is in use), while a projector follows the "
        "topics; and while a projector catches up with 100,000 changes of what is stored, as after a minute's outage, "
        "from its start on."
    ),
    metrics=(P50, P99, P999, _TIME, RATE, LATE),
    subjects=(Subject(LEADVIEW, "leadview", "one projector, `python -m projector rebuild`, one API worker"),),
    cases=(BEFORE, REBUILDING, CATCHING_UP),
    prepare=_prepare,
    targets=tuple(
        Target(P99.name, case, 2.0, at_least=False, case_against=BEFORE) for case in (REBUILDING, CATCHING_UP)
    ),
    needs_kafka=True,
    rounds=2,
)
