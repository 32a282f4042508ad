"""Freshness: the time from the production of an event to the first HTTP response that shows it."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from bench import floor, pipeline, probing
from bench.api import P50, P99, P999
from bench.benchmark import LEADVIEW, Measure, MeasurementFailed, Metric, Subject, Target, Values
from bench.changes import Changes
from bench.cores import Cores
from bench.floor import FLOOR, Floor
from bench.lab import Lab
from bench.pipeline import Pipeline
from bench.prober import Event, Report
from bench.traffic import Traffic

_FRESH_P99 = Metric(P99.name, P99.unit, chart=True)
_WORST = Metric("worst", "ms")
_PROBED = Metric("probed", "events")
_LATE = Metric("producer late, p99", "ms")
_RATE = 1000.0
_PROBE_EVERY = 20
_SECONDS = 20.0
_WARM_UP_SECONDS = 10.0
_RECORDS, _QUICK_RECORDS = 400_000, 5_000
_CHANGED = 40_000
ALONE, REBUILDING, QUIET = "1,000 events/s", "1,000 events/s, during a rebuild", "10 events/s"
_QUIET_RATE = 10.0


class Freshness:
    name = "freshness"
    what = (
        "The time from the producer's call (acks=all, 1 ms linger) to the first HTTP response that shows the event. "
        "Leads and contacts change at a fixed rate (open loop). One of 20 is requested every millisecond until the "
        "response shows it. One projector, one API worker, 400,000 records in Kafka. The floor gets the same events at "
        "the same rate, through topics and a Redis of its own, while Leadview has none."
    )
    metrics = (P50, _FRESH_P99, P999, _WORST, _PROBED, _LATE)
    subjects = (Subject(LEADVIEW, "leadview", "one projector, one API worker"), FLOOR)
    targets = (
        Target(P99.name, ALONE, 1.5, at_least=False, against=FLOOR.name),
        Target(P99.name, REBUILDING, 2.0, at_least=False, against=FLOOR.name, case_against=ALONE),
        Target(P99.name, ALONE, 25.0, at_least=False),
        Target(P99.name, REBUILDING, 25.0, at_least=False),
    )
    rounds = 3
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:
        return (ALONE,) if lab.quick else (ALONE, REBUILDING, QUIET)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        if pipeline.kafka_is_missing(lab, self.name):
            return {}
        traffic = Traffic()
        records = traffic.documents(_QUICK_RECORDS if lab.quick else _RECORDS)
        service = pipeline.start(lab, stack, Cores(), traffic.tenants, [traffic.access, records])
        changes = Changes(traffic.tenants, records[:_CHANGED])
        least = floor.start(stack, service, records[0])
        # A JVM that has just started takes a hundred times as long.
        for probe in (partial(probing.probe, service), least.probe):
            probe(changes.take(int(lab.seconds(_WARM_UP_SECONDS) * _RATE), _PROBE_EVERY), _RATE)
        return {LEADVIEW: partial(_measure, service, changes), FLOOR.name: partial(_floor, least, changes)}


def _floor(least: Floor, changes: Changes, case: str) -> Values:
    """The floor has no rebuild, and no other case is compared with it."""
    if case != ALONE:
        return {}
    return _values(least.probe(changes.take(int(least.service.lab.seconds(_SECONDS) * _RATE), _PROBE_EVERY), _RATE))


def _measure(service: Pipeline, changes: Changes, case: str) -> Values:
    rate, every = (_QUIET_RATE, 1) if case == QUIET else (_RATE, _PROBE_EVERY)
    events = changes.take(int(service.lab.seconds(_SECONDS) * rate), every)
    return _values((_during_rebuild if case == REBUILDING else probing.probe)(service, events, rate))


def _values(report: Report) -> Values:
    return {
        P50.name: report.p50 * 1e3,
        P99.name: report.p99 * 1e3,
        P999.name: report.p999 * 1e3,
        _WORST.name: report.worst * 1e3,
        _PROBED.name: report.probes,
        _LATE.name: report.late * 1e3,
    }


def _during_rebuild(service: Pipeline, events: Sequence[Event], rate: float) -> Report:
    with service.rebuilding() as rebuilding:
        report = probing.probe(service, events, rate)
        if service.is_complete(rebuilding.generation):
            raise MeasurementFailed("the rebuild ended before the measurement: it needs more records")
    return report
