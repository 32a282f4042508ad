"""Fan-out: a contact with 50,000 leads changes."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from bench import pipeline, requests, traffic
from bench.benchmark import OURS, Bar, Measure, MeasurementFailed, Metric, Subject, Values
from bench.changes import FIRST_VERSION, changed
from bench.cores import beside
from bench.crm import Crm
from bench.lab import Lab
from devstack.waiting import wait_until
from schemas import names

_TIME = Metric("until all are right", "s", chart=True)
_THESE = Metric("worst read, these leads", "ms")
_OTHERS = Metric("worst read, others", "ms")
_THESE_P99 = Metric("p99, these leads", "ms")
_OTHERS_P99 = Metric("p99, others", "ms")
_LATE = Metric("sender late, p99", "ms")
_LEADS, _QUICK_LEADS = 50_000, 2_000
_OTHER_LEADS = 1_000
_GENERATION = 1
_CONNECTIONS = 16
_READS_A_SECOND = 250.0
_RIGHT_SECONDS = 60.0
CHANGES, RESTS = "the contact changes", "nothing changes"
_REST_SECONDS = 2.0


class FanOut:
    name = "fan-out"
    what = (
        "A contact with 50,000 leads changes: from its event's production until all of its leads show it, and the "
        "worst answer that readers of these leads, and of another organization's, get meanwhile (250 requests a second "
        "each, open loop)."
    )
    metrics = (_TIME, _THESE, _OTHERS, _THESE_P99, _OTHERS_P99, _LATE)
    subjects = (Subject(OURS, "leadview", "one projector, one API worker"),)
    bars = (
        Bar(_THESE.name, CHANGES, 10.0, at_least=False),
        Bar(_OTHERS.name, CHANGES, 10.0, at_least=False),
    )
    rounds = 5
    anew = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - the shape of a benchmark
        return (RESTS, CHANGES)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        if pipeline.missing(lab, self.name):
            return {}
        return {OURS: _Contact(lab, stack, _QUICK_LEADS if lab.quick else _LEADS).measure}


class _Contact:
    """A contact of `count` leads, in a pipeline that has them all; and an organization beside it."""

    def __init__(self, lab: Lab, stack: ExitStack, count: int) -> None:
        crm = Crm()
        records = [*crm.organization(), *crm.organization()]
        self._tenant, others = crm.tenants
        self._record, first = crm.lead_and_contact(self._tenant)
        records += [self._record, first]
        records += [traffic.of_contact(self._record, *crm.lead_and_contact(self._tenant)) for _ in range(count - 1)]
        records += [record for _ in range(_OTHER_LEADS) for record in crm.lead_and_contact(others)]
        self._service = pipeline.start(lab, stack, beside(), crm.tenants, [records])
        self._loads = [self._service.load(requests.for_leads([tenant])) for tenant in crm.tenants]
        self._version = FIRST_VERSION

    def measure(self, case: str) -> Values:
        port = self._service.api.port
        these, others = (load.meanwhile(port, _CONNECTIONS, _READS_A_SECOND) for load in self._loads)
        with these as these_report, others as others_report:
            time.sleep(self._service.lab.seconds(_REST_SECONDS))
            found = {_TIME.name: self._change()} if case == CHANGES else {}
            these_read, others_read = these_report(), others_report()
        if case == CHANGES:
            self._check()
        return found | {
            _THESE.name: these_read.worst * 1e3,
            _OTHERS.name: others_read.worst * 1e3,
            _THESE_P99.name: these_read.p99 * 1e3,
            _OTHERS_P99.name: others_read.p99 * 1e3,
            _LATE.name: max(these_read.late, others_read.late) * 1e3,
        }

    def _change(self) -> float:
        """Seconds until no lead shows the former contact any more."""
        redis, owner = self._service.redis, names.organization(self._tenant.organization_id)
        leads = names.contact_leads(owner, _GENERATION, self._tenant.contacts[0])
        shown: float = redis.zrange(leads, 0, 0, withscores=True)[0][1]  # type: ignore[assignment]
        self._version += 1
        event = replace(self._record, value=changed(self._record, self._version, self._mark()))
        started = time.monotonic()
        traffic.publish(self._service.kafka, [event])
        wait_until(lambda: not redis.zcount(leads, shown, shown), "all leads show the change", _RIGHT_SECONDS)
        return time.monotonic() - started

    def _check(self) -> None:
        """The index said so; do all documents say so as well? Raises MeasurementFailed."""
        owner, mark = names.organization(self._tenant.organization_id), self._mark().encode()
        found = self._service.redis.mget([names.lead(owner, _GENERATION, lead) for lead in self._tenant.leads])
        wrong = sum(mark not in value for value in found if isinstance(value, bytes))
        if wrong or None in found:
            raise MeasurementFailed(f"{wrong} leads show a former contact")

    def _mark(self) -> str:
        return f"v{self._version}@example.com"
