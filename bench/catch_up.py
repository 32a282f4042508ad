"""Catching up after an outage of the projector: what readers notice of it, and how long other events wait."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import msgspec
from msgspec.structs import replace

from bench import pipeline, probing, projectors, requests, traffic
from bench.api import P50, P99, P999
from bench.benchmark import LEADVIEW, Measure, Metric, Subject, Target, Values
from bench.changes import FIRST_VERSION, Changes
from bench.cores import service_cores
from bench.crm import Tenant
from bench.lab import Lab
from bench.pipeline import PARTITIONS
from bench.prober import Event, Report
from bench.rebuild import latency
from bench.traffic import Traffic
from devstack.waiting import wait_until
from projector.record import Record

_CALL_P99 = Metric(P99.name, P99.unit, chart=True)
_LATE = Metric("sender late, p99", "ms")
_TIME = Metric("caught up after", "s")
_RATE = Metric("rate", "records/s", more_is_better=True)
_OTHERS_P50 = Metric("second organization, p50", "ms")
_OTHERS_WORST = Metric("second organization, worst", "ms")
_REVOKED_P50 = Metric("revoked key, p50", "ms")
_REVOKED_WORST = Metric("revoked key, worst", "ms")
BEFORE, DURING = "before", "while catching up"
_DOCUMENTS, _QUICK_DOCUMENTS = 150_000, 5_000
_BACKLOG, _QUICK_BACKLOG = 100_000, 10_000
_REQUESTS_A_SECOND = 500.0
_CONNECTIONS = 64
_SECONDS = 20.0
# Few, and requested rarely: those that wait for seconds must not be what the API is busy with.
_OTHERS, _OTHERS_RATE, _OTHERS_RETRY_SECONDS = 6, 10.0, 0.05
_KEYS, _KEYS_RATE = 20, 40.0
_CAUGHT_UP_SECONDS = 300.0


class CatchUp:
    name = "catch-up"
    what = (
        "The projector ends; 100,000 records change what is stored, as in a minute's outage; a projector starts. "
        "Measured are the API's latency before, and from this start until the backlog is worked off, at 500 requests a "
        "second (open loop). Meanwhile, records of a second organization wait behind the backlog in the same "
        "partitions, and API keys are revoked."
    )
    metrics = (P50, _CALL_P99, P999, _TIME, _RATE, _OTHERS_P50, _OTHERS_WORST, _REVOKED_P50, _REVOKED_WORST, _LATE)
    subjects = (Subject(LEADVIEW, "leadview", "one projector, one API worker"),)
    targets = (Target(P99.name, DURING, 2.0, at_least=False, case_against=BEFORE),)
    rounds = 3
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        return (BEFORE, DURING)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        if pipeline.kafka_is_missing(lab, self.name):
            return {}
        return {LEADVIEW: _Outage(lab, stack).measure}


class _Outage:
    """A running service, and what happens during and after an outage of its projector."""

    def __init__(self, lab: Lab, stack: ExitStack) -> None:
        self._lab = lab
        crm = Traffic()
        documents = crm.documents(_QUICK_DOCUMENTS if lab.quick else _DOCUMENTS)
        self._service = pipeline.start(lab, stack, service_cores(), crm.tenants, [crm.access, documents])
        *readers, others = crm.tenants
        with_keys = readers[-_KEYS:]
        readers = readers[:-_KEYS]
        owners = {tenant.organization_id for tenant in readers}
        self._backlog = Changes(readers, [record for record in documents if _owner(record) in owners])
        self._others = Changes([others], [record for record in documents if _owner(record) == others.organization_id])
        self._keys = _Keys(with_keys, crm.access)
        self._load = self._service.load(requests.for_leads(readers))
        self._load.open(self._service.api.port, _CONNECTIONS, lab.seconds(5.0), _REQUESTS_A_SECOND)  # as a warm-up

    def measure(self, case: str) -> Values:
        if case == BEFORE:
            port, seconds = self._service.api.port, self._lab.seconds(_SECONDS)
            return latency(self._load.open(port, _CONNECTIONS, seconds, _REQUESTS_A_SECOND))
        return self._catch_up(self._backlog.take(_QUICK_BACKLOG if self._lab.quick else _BACKLOG))

    def _catch_up(self, backlog: Sequence[Event]) -> Values:
        service, covered = self._service, self._covered
        before = covered()
        with ExitStack() as stack:
            with service.outage():
                traffic.publish(service.kafka, backlog)
                reading = self._load.in_background(service.api.port, _CONNECTIONS, _REQUESTS_A_SECOND)
                readers = stack.enter_context(reading)
            started = time.monotonic()
            wait_until(lambda: covered() > before, "the projector has begun", _CAUGHT_UP_SECONDS)
            began, done = time.monotonic(), covered()
            others = stack.enter_context(
                probing.in_background(service, self._others.take(_OTHERS, 1), _OTHERS_RATE, _OTHERS_RETRY_SECONDS)
            )
            revoked = stack.enter_context(probing.in_background(service, self._keys.revoked(), _KEYS_RATE))
            wait_until(lambda: covered() >= before + len(backlog), "the backlog is worked off", _CAUGHT_UP_SECONDS)
            ended = time.monotonic()
            measured = latency(readers()) | _waited(others(), revoked())
        self._activate_keys()
        return measured | {_TIME.name: ended - started, _RATE.name: (before + len(backlog) - done) / (ended - began)}

    def _covered(self) -> int:
        return projectors.covered(self._service.redis, PARTITIONS)

    def _activate_keys(self) -> None:
        traffic.publish(self._service.kafka, self._keys.active())
        for request in self._keys.requests:
            self._service.api.wait_until_ready(request)


class _Keys:
    """API keys that are revoked, and then active again."""

    def __init__(self, tenants: Sequence[Tenant], access: Sequence[Record]) -> None:
        owners = {tenant.organization_id for tenant in tenants}
        self._records = [each for each in access if _owner(each) in owners and b":" in (each.key or b"")]
        self.requests = [requests.for_lead(tenant, tenant.leads[0]) for tenant in tenants]
        self._version = FIRST_VERSION

    def revoked(self) -> list[Event]:
        self._version += 1
        return [
            Event(record.topic, record.key or b"", self._value(record, "revoked"), b'"invalid_api_key"', request)
            for record, request in zip(self._records, self.requests, strict=True)
        ]

    def active(self) -> list[Record]:
        self._version += 1
        return [replace(record, value=self._value(record, "active")) for record in self._records]

    def _value(self, record: Record, status: str) -> bytes:
        event = msgspec.json.decode(record.value or b"")
        event["data"] |= {"version": self._version, "status": status}
        return msgspec.json.encode(event)


def _owner(record: Record) -> str:
    return (record.key or b"").partition(b":")[0].decode()


def _waited(others: Report, revoked: Report) -> dict[str, float]:
    return {
        _OTHERS_P50.name: others.p50 * 1e3,
        _OTHERS_WORST.name: others.worst * 1e3,
        _REVOKED_P50.name: revoked.p50 * 1e3,
        _REVOKED_WORST.name: revoked.worst * 1e3,
    }
