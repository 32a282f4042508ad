"""Freshness: the time from the production of an event to the first HTTP response that shows it.

The floor is `plain-set`, which writes each record of topics of its own into a Redis of its own, and a bare ASGI server
(`plain-read` of `bench/peers/limits.py`) that returns it. Nothing between Kafka and an HTTP client can do less. Not
Leadview's API reads these documents: it would need its key, access and control records, and do more than the least.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from msgspec.structs import replace

from bench import consumers, crm, pipeline, servers
from bench.api import LATE, P50, P99, P999, latency
from bench.benchmark import LEADVIEW, Benchmark, Lab, Measure, MeasurementFailed, Metric, Subject, Target, Values
from bench.consumers import PARTITIONS, PLAIN_SET, Topics
from bench.crm import Changes, Traffic, publish
from bench.machine import Cores
from bench.pipeline import Pipeline
from bench.sender import Event, Report
from devstack import topics
from projector.record import Record
from schemas.resources import RESOURCES

FLOOR = Subject("plain-set-and-get", "limit", "getmany, decode, SET; bare ASGI that returns what GET finds")
_WORST = Metric("worst", "ms")
_PROBED = Metric("probed", "events")
_WAITED_P50 = Metric("waiting, p50", "ms")
_WAITED_P99 = Metric("waiting, p99", "ms")
_WAITED = Metric("p99 of waiting, as a multiple of p99", "times")
_RATE = 1000.0
_PROBE_EVERY = 20
_SECONDS = 20.0
_WARM_UP_SECONDS = 10.0
_RECORDS, _QUICK_RECORDS = 400_000, 5_000
_CHANGED = 40_000
_FLOOR_PREFIX = "floor."
ALONE, REBUILDING, QUIET = "1,000 events/s", "1,000 events/s, during a rebuild", "10 events/s"
_QUIET_RATE = 10.0


def _prepare(lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    traffic = Traffic()
    records = traffic.documents(_QUICK_RECORDS if lab.quick else _RECORDS)
    service = pipeline.start(lab, stack, Cores(), traffic.tenants, [traffic.access, records])
    changes = Changes(traffic.tenants, records[:_CHANGED])
    floor = _floor(stack, service, records[0])
    # A JVM that has just started takes a hundred times as long.
    warm_up = int(lab.seconds(_WARM_UP_SECONDS) * _RATE)
    service.probe(changes.take(warm_up, _PROBE_EVERY), _RATE)
    floor.probe(_for_floor(changes.take(warm_up, _PROBE_EVERY)), _RATE)
    return {LEADVIEW: partial(_measure, service, changes), FLOOR.name: partial(_measure_floor, floor, changes)}


def _measure(service: Pipeline, changes: Changes, case: str) -> Values:
    rate, every = (_QUIET_RATE, 1) if case == QUIET else (_RATE, _PROBE_EVERY)
    events = changes.take(int(service.lab.seconds(_SECONDS) * rate), every)
    report = _during_rebuild(service, events, rate) if case == REBUILDING else service.probe(events, rate, waits=True)
    waited = {
        _WAITED_P50.name: report.waited_p50 * 1e3,
        _WAITED_P99.name: report.waited_p99 * 1e3,
        _WAITED.name: report.waited_p99 / report.p99,
    }
    return {**_values(report), **waited}


def _measure_floor(floor: Pipeline, changes: Changes, case: str) -> Values:
    """The floor has no rebuild, and no other case is compared with it."""
    if case != ALONE:
        return {}
    events = changes.take(int(floor.lab.seconds(_SECONDS) * _RATE), _PROBE_EVERY)
    return _values(floor.probe(_for_floor(events), _RATE))


def _values(report: Report) -> Values:
    return latency(report) | {_WORST.name: report.worst * 1e3, _PROBED.name: report.answered}


def _during_rebuild(service: Pipeline, events: Sequence[Event], rate: float) -> Report:
    with service.rebuilding() as rebuilding:
        report = service.probe(events, rate, waits=True)
        if service.is_complete(rebuilding.generation) and not service.lab.quick:
            raise MeasurementFailed("the rebuild ended before the measurement: it needs more records")
    return report


def _floor(stack: ExitStack, service: Pipeline, record: Record) -> Pipeline:
    """Start the floor on the machine and with the Kafka of the service, and wait until it serves this record. Returns
    the service with the floor in place of projector and API."""
    lab, cores = service.lab, service.cores
    for resource in RESOURCES:
        topics.create_topic(topics.admin(service.kafka), _FLOOR_PREFIX + resource.topic, PARTITIONS)
    redis, read = lab.redis(stack, cores), Topics(service.kafka, 0, _FLOOR_PREFIX)
    writing = consumers.start_peer(lab, PLAIN_SET, read, redis, cores.load, follow=True)
    stack.callback(writing.stop)
    serving = servers.peer(lab, stack, cores, "limits", "plain-read", redis.port)
    publish(service.kafka, [record], _FLOOR_PREFIX)
    serving.wait_until_ready(_request(record.key or b""))
    return replace(service, api=serving, process=writing)


def _for_floor(events: Sequence[Event]) -> list[Event]:
    """The same events for the topics of the floor, and requests to its server."""
    return [
        replace(
            event,
            topic=_FLOOR_PREFIX + event.topic.removeprefix(crm.PREFIX),
            request=event.request and _request(event.key),
        )
        for event in events
    ]


def _request(key: bytes) -> bytes:
    return b"GET /%b HTTP/1.1\r\nHost: api.example.com\r\n\r\n" % key


BENCHMARK = Benchmark(
    name="freshness",
    what=(
        "The time from the producer's call (acks=all, 1 ms linger) to the first HTTP response that shows the event. "
        "Leads and contacts change at a fixed rate (open loop). One of 20 is requested every millisecond until the "
        "response shows it, and another request waits for it (`Prefer: wait`) from half a second before. One "
        "projector, one API worker, 400,000 records in Kafka. The floor gets the same events at the same rate, through "
        "topics and a Redis of its own, while Leadview has none."
    ),
    metrics=(P50, P99, P999, _WORST, _WAITED_P50, _WAITED_P99, _WAITED, _PROBED, LATE),
    subjects=(Subject(LEADVIEW, "leadview", "one projector, one API worker"), FLOOR),
    cases=(ALONE, REBUILDING, QUIET),
    prepare=_prepare,
    targets=(
        Target(P99.name, ALONE, 1.4, at_least=False, against=FLOOR.name),
        Target(P99.name, REBUILDING, 2.0, at_least=False, against=FLOOR.name, case_against=ALONE),
        Target(P99.name, ALONE, 25.0, at_least=False),
        Target(P99.name, REBUILDING, 25.0, at_least=False),
        *(Target(_WAITED.name, case, 2.0, at_least=False) for case in (ALONE, REBUILDING, QUIET)),
    ),
    needs_kafka=True,
)
