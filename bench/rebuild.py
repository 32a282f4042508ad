"""What readers notice while a projector writes as much as it can: of a rebuild, and of catching up after an outage."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain

import orjson
from msgspec.structs import replace

from bench import consumers, pipeline
from bench.api import LATE, P50, P99, P999, latency
from bench.benchmark import LEADVIEW, Benchmark, Lab, Measure, Metric, Subject, Target, Values
from bench.crm import FIRST_VERSION, Changes, Tenant, Traffic, lead_request, lead_requests, publish
from bench.machine import service_cores
from bench.prober import Event
from devstack.programs import while_running
from devstack.waiting import wait_until
from projector.record import Record

RATE = Metric("rate", "records/s", more_is_better=True)
_TIME = Metric("time", "s")
_OTHERS_P50 = Metric("second organization, p50", "ms")
_OTHERS_WORST = Metric("second organization, worst", "ms")
_REVOKED_P50 = Metric("revoked key, p50", "ms")
_REVOKED_WORST = Metric("revoked key, worst", "ms")
BEFORE, REBUILDING, CATCHING_UP = "before", "during the rebuild", "while catching up"
_RECORDS, _QUICK_RECORDS, _BATCH = 1_000_000, 10_000, 100_000
_BACKLOG, _QUICK_BACKLOG = 100_000, 10_000
_REQUESTS_A_SECOND = 500.0
_CONNECTIONS = 64
_SECONDS = 20.0
# Few, and requested rarely: those that wait for seconds must not be what the API is busy with.
_OTHERS, _OTHERS_RATE, _OTHERS_RETRY_SECONDS = 6, 10.0, 0.05
_KEYS, _KEYS_RATE = 20, 40.0
_DONE_SECONDS = 600.0


def _prepare(lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    return {LEADVIEW: _Service(lab, stack).measure}


class _Service:
    """A running service, and readers of all of its organizations but one, and but those whose keys are revoked."""

    def __init__(self, lab: Lab, stack: ExitStack) -> None:
        self._lab = lab
        crm, self._count = Traffic(), _QUICK_RECORDS if lab.quick else _RECORDS
        first = crm.documents(min(_BATCH, self._count))
        more = (crm.documents(_BATCH) for _ in range(_BATCH, self._count, _BATCH))
        self._service = pipeline.start(lab, stack, service_cores(), crm.tenants, chain([crm.access, first], more))
        *readers, others = crm.tenants
        with_keys = readers[-_KEYS:]
        readers = readers[:-_KEYS]
        owners = {tenant.organization_id for tenant in readers}
        self._backlog = Changes(readers, [record for record in first if _owner(record) in owners])
        self._others = Changes([others], [record for record in first if _owner(record) == others.organization_id])
        self._keys = _Keys(with_keys, crm.access)
        self._load = self._service.load(lead_requests(readers))
        self._load.open(self._service.api.port, _CONNECTIONS, lab.seconds(5.0), _REQUESTS_A_SECOND)  # as a warm-up

    def measure(self, case: str) -> Values:
        if case == REBUILDING:
            return self._rebuild()
        if case == CATCHING_UP:
            return self._catch_up(self._backlog.take(_QUICK_BACKLOG if self._lab.quick else _BACKLOG))
        port, seconds = self._service.api.port, self._lab.seconds(_SECONDS)
        return latency(self._load.open(port, _CONNECTIONS, seconds, _REQUESTS_A_SECOND))

    def _rebuild(self) -> Values:
        service, started = self._service, time.monotonic()
        reading = self._load.in_background(service.api.port, _CONNECTIONS, _REQUESTS_A_SECOND)
        with service.rebuilding() as rebuilding, reading as report:
            complete = while_running(rebuilding.process, lambda: service.is_complete(rebuilding.generation))
            wait_until(complete, "the rebuild is complete", _DONE_SECONDS)
            seconds = time.monotonic() - started
            return latency(report()) | {RATE.name: self._count / seconds, _TIME.name: seconds}

    def _catch_up(self, backlog: Sequence[Event]) -> Values:
        service = self._service
        before = self._covered()
        with ExitStack() as stack:
            with service.outage():
                publish(service.kafka, backlog)
                reading = self._load.in_background(service.api.port, _CONNECTIONS, _REQUESTS_A_SECOND)
                readers = stack.enter_context(reading)
            started = time.monotonic()
            begun = while_running(service.process, lambda: self._covered() > before)
            wait_until(begun, "the projector has begun", _DONE_SECONDS)
            began, done = time.monotonic(), self._covered()
            slow = self._others.take(_OTHERS, 1)
            others = stack.enter_context(service.probing(slow, _OTHERS_RATE, _OTHERS_RETRY_SECONDS))
            revoked = stack.enter_context(service.probing(self._keys.revoked(), _KEYS_RATE))
            caught_up = while_running(service.process, lambda: self._covered() >= before + len(backlog))
            wait_until(caught_up, "the backlog is worked off", _DONE_SECONDS)
            ended = time.monotonic()
            read, other, refused = latency(readers()), others(), revoked()
        self._activate_keys()
        return read | {
            _TIME.name: ended - started,
            RATE.name: (before + len(backlog) - done) / (ended - began),
            _OTHERS_P50.name: other.p50 * 1e3,
            _OTHERS_WORST.name: other.worst * 1e3,
            _REVOKED_P50.name: refused.p50 * 1e3,
            _REVOKED_WORST.name: refused.worst * 1e3,
        }

    def _covered(self) -> int:
        return consumers.covered(self._service.redis)

    def _activate_keys(self) -> None:
        publish(self._service.kafka, self._keys.active())
        for request in self._keys.requests:
            self._service.api.wait_until_ready(request)


class _Keys:
    """API keys that are revoked, and then active again."""

    def __init__(self, tenants: Sequence[Tenant], access: Sequence[Record]) -> None:
        owners = {tenant.organization_id for tenant in tenants}
        self._records = [each for each in access if _owner(each) in owners and b":" in (each.key or b"")]
        self.requests = [lead_request(tenant, tenant.leads[0]) for tenant in tenants]
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
        event = orjson.loads(record.value or b"")
        event["data"] |= {"version": self._version, "status": status}
        return orjson.dumps(event)


def _owner(record: Record) -> str:
    return (record.key or b"").partition(b":")[0].decode()


BENCHMARK = Benchmark(
    name="rebuild",
    what=(
        "The API's latency at 500 requests a second (open loop): alone; during a rebuild of 1,000,000 records by one "
        "process as it is delivered (it writes less at once while the API is in use), while a projector follows the "
        "topics; and while a projector catches up with 100,000 changes of what is stored, as after a minute's outage, "
        "from its start on. In that case, records of a second organization wait behind the backlog in the same "
        "partitions, and API keys are revoked."
    ),
    metrics=(P50, P99, P999, _TIME, RATE, _OTHERS_P50, _OTHERS_WORST, _REVOKED_P50, _REVOKED_WORST, LATE),
    subjects=(Subject(LEADVIEW, "leadview", "one projector, `python -m projector rebuild`, one API worker"),),
    cases=(BEFORE, REBUILDING, CATCHING_UP),
    prepare=_prepare,
    targets=tuple(
        Target(P99.name, case, 2.0, at_least=False, case_against=BEFORE) for case in (REBUILDING, CATCHING_UP)
    ),
    needs_kafka=True,
    rounds=2,
)
