"""A long run: the memory of a projector and an API worker under a steady load."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import linear_regression, median

from bench import pipeline, probing, requests
from bench.benchmark import LEADVIEW, Measure, Metric, Subject, Target, Values
from bench.changes import Changes
from bench.cores import service_cores
from bench.lab import Lab
from bench.pipeline import Pipeline
from bench.traffic import Traffic

_PROJECTOR = Metric("projector", "MB")
_API = Metric("API worker", "MB")
_PROJECTOR_SLOPE = Metric("projector grows", "MB/h")
_API_SLOPE = Metric("API worker grows", "MB/h")
_THIRDS = ("first third", "second third", "last third")
_SECONDS = 60.0
_FEWEST_SAMPLES = 2  # a slope needs two, on a machine of any speed
_SAMPLE_SECONDS = 0.5
_RATE = 1000.0
_REQUESTS_A_SECOND = 1000.0
_CONNECTIONS = 64
_RECORDS, _QUICK_RECORDS = 40_000, 5_000
_BYTES = 1e6
_SPARE_SECONDS = 60.0
"""Events are prepared for this much longer than the measurement, so that they do not run out."""


class LongRun:
    name = "long-run"
    what = (
        "Resident memory of a projector that receives 1,000 changes a second, and of an API worker that receives 1,000 "
        "requests a second, for three minutes: the median of each minute. It must not grow."
    )
    metrics = (_PROJECTOR, _API, _PROJECTOR_SLOPE, _API_SLOPE)
    subjects = (Subject(LEADVIEW, "leadview", "one projector, one API worker"),)
    targets = (
        Target(_PROJECTOR.name, _THIRDS[2], 1.02, at_least=False, case_against=_THIRDS[1]),
        Target(_API.name, _THIRDS[2], 1.02, at_least=False, case_against=_THIRDS[1]),
    )
    rounds = 1
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        return _THIRDS

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        if pipeline.kafka_is_missing(lab, self.name):
            return {}
        traffic = Traffic()
        records = traffic.documents(_QUICK_RECORDS if lab.quick else _RECORDS)
        service = pipeline.start(lab, stack, service_cores(), traffic.tenants, [traffic.access, records])
        changes = Changes(traffic.tenants, records)
        seconds = len(_THIRDS) * lab.seconds(_SECONDS) + _SPARE_SECONDS
        load = service.load(requests.for_leads(traffic.tenants))
        stack.enter_context(probing.sending(service, changes.take(int(seconds * _RATE), 20), _RATE))
        stack.enter_context(load.in_background(service.api.port, _CONNECTIONS, _REQUESTS_A_SECOND))
        return {LEADVIEW: partial(_measure, service)}


def _measure(service: Pipeline, _: str) -> Values:
    times: list[float] = []
    projector: list[float] = []
    api: list[float] = []
    end = time.monotonic() + service.lab.seconds(_SECONDS)
    while (now := time.monotonic()) < end or len(times) < _FEWEST_SAMPLES:
        times.append(now)
        projector.append(service.projector.memory_bytes() / _BYTES)
        api.append(service.api.memory_bytes() / _BYTES)
        time.sleep(min(_SAMPLE_SECONDS, service.lab.seconds(_SAMPLE_SECONDS) / 2))
    return {
        _PROJECTOR.name: median(projector),
        _API.name: median(api),
        _PROJECTOR_SLOPE.name: linear_regression(times, projector).slope * 3600,
        _API_SLOPE.name: linear_regression(times, api).slope * 3600,
    }
