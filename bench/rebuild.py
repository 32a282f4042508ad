"""A rebuild of a million records, and its effect on the latency of the API."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain

from bench import pipeline, requests
from bench.api import P50, P99, P999
from bench.benchmark import LEADVIEW, Measure, Metric, Subject, Target, Values
from bench.cores import service_cores
from bench.lab import Lab
from bench.load import Load
from bench.pipeline import Pipeline
from bench.sender import Report
from bench.traffic import Traffic
from devstack.waiting import wait_until

_RATE = Metric("rate", "records/s", more_is_better=True)
_TIME = Metric("time", "s")
_CALL_P99 = Metric(P99.name, P99.unit, chart=True)
_LATE = Metric("sender late, p99", "ms")
BEFORE, DURING = "before", "during the rebuild"
_RECORDS, _QUICK_RECORDS, _BATCH = 1_000_000, 5_000, 100_000
_REQUESTS_A_SECOND = 500.0
_CONNECTIONS = 64
_SECONDS = 20.0
_REBUILT_SECONDS = 600.0


class Rebuild:
    name = "rebuild"
    what = (
        "A rebuild of 1,000,000 records by one process as it is delivered (it writes less at once while the API is in "
        "use), and the API's latency before and during the rebuild at 500 requests a second (open loop). A projector "
        "follows the topics meanwhile."
    )
    metrics = (_RATE, _TIME, P50, _CALL_P99, P999, _LATE)
    subjects = (Subject(LEADVIEW, "leadview", "`python -m projector rebuild`, and one API worker"),)
    targets = (Target(P99.name, DURING, 2.0, at_least=False, case_against=BEFORE),)
    rounds = 2
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        return (BEFORE, DURING)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        if pipeline.kafka_is_missing(lab, self.name):
            return {}
        count = _QUICK_RECORDS if lab.quick else _RECORDS
        traffic = Traffic()
        documents = (traffic.documents(min(_BATCH, count)) for _ in range(0, count, _BATCH))
        service = pipeline.start(lab, stack, service_cores(), traffic.tenants, chain([traffic.access], documents))
        load = service.load(requests.for_leads(traffic.tenants))
        load.open(service.api.port, _CONNECTIONS, lab.seconds(5.0), _REQUESTS_A_SECOND)  # as a warm-up
        return {LEADVIEW: partial(_measure, lab, service, load, count)}


def _measure(lab: Lab, service: Pipeline, load: Load, count: int, case: str) -> Values:
    if case == BEFORE:
        return latency(load.open(service.api.port, _CONNECTIONS, lab.seconds(_SECONDS), _REQUESTS_A_SECOND))
    started = time.monotonic()
    reading = load.in_background(service.api.port, _CONNECTIONS, _REQUESTS_A_SECOND)
    with service.rebuilding() as rebuilding, reading as report:
        wait_until(lambda: service.is_complete(rebuilding.generation), "the rebuild is complete", _REBUILT_SECONDS)
        seconds = time.monotonic() - started
        return latency(report()) | {_RATE.name: count / seconds, _TIME.name: seconds}


def latency(report: Report) -> dict[str, float]:
    """The metrics of the readers' latency."""
    return {
        P50.name: report.p50 * 1e3,
        P99.name: report.p99 * 1e3,
        P999.name: report.p999 * 1e3,
        _LATE.name: report.late * 1e3,
    }
