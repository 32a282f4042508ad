"""Fan-out: what happens when a contact with 50,000 leads changes, once or again and again."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from bench import pipeline
from bench.api import LATE
from bench.benchmark import LEADVIEW, Benchmark, Lab, Measure, MeasurementFailed, Metric, Subject, Target, Values
from bench.crm import FIRST_VERSION, Changes, Crm, lead_requests, mark, marked, of_contact, publish
from bench.filling import live
from bench.machine import service_cores
from devstack.programs import while_running
from devstack.threads import in_thread
from devstack.waiting import wait_until
from schemas import names, resources

_TIME = Metric("until all are right", "s")
_THESE_WORST = Metric("worst read, these leads", "ms")
_OTHERS_WORST = Metric("worst read, others", "ms")
_THESE_P99 = Metric("p99, these leads", "ms")
_OTHERS_P99 = Metric("p99, others", "ms")
_VISIBLE_P99 = Metric("p99 until records of others are visible", "ms")
_LEADS, _QUICK_LEADS = 50_000, 2_000
_OTHER_LEADS = 1_000
_CONNECTIONS = 16
_READS_A_SECOND = 250.0
_FAN_OUT_TIMEOUT_SECONDS = 60.0
CHANGES, UNCHANGED, CHANGING = "the contact changes", "nothing changes", "the contact changes twice a second"
_READING_SECONDS = 2.0
_CHANGING_SECONDS = 15.0
_RECORDS_A_SECOND, _PROBE_EVERY = 200.0, 5


def _prepare(lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    return {LEADVIEW: _Contact(lab, stack, _QUICK_LEADS if lab.quick else _LEADS).measure}


class _Contact:
    """A contact with `count` leads, and another organization, in a running service that has stored all of them."""

    def __init__(self, lab: Lab, stack: ExitStack, count: int) -> None:
        crm = Crm()
        records = [*crm.organization(), *crm.organization()]
        self._tenant, others = crm.tenants
        self._record, first = crm.lead_and_contact(self._tenant)
        records += [self._record, first]
        records += [of_contact(self._record, *crm.lead_and_contact(self._tenant)) for _ in range(count - 1)]
        of_others = [record for _ in range(_OTHER_LEADS) for record in crm.lead_and_contact(others)]
        records += of_others
        self._of_others = Changes(crm.tenants, of_others)
        self._service = pipeline.start(lab, stack, service_cores(), crm.tenants, [records])
        self._loads = [self._service.load(lead_requests([tenant])) for tenant in crm.tenants]
        self._version = FIRST_VERSION
        self._visible()  # a JVM that has just started takes a hundred times as long

    def measure(self, case: str) -> Values:
        if case == CHANGING:
            with self._changing():
                return {_VISIBLE_P99.name: self._visible()}
        port = self._service.api.port
        these, others = (load.in_background(port, _CONNECTIONS, _READS_A_SECOND) for load in self._loads)
        with these as these_report, others as others_report:
            time.sleep(self._service.lab.seconds(_READING_SECONDS))
            values = {_TIME.name: self._change()} if case == CHANGES else {}
            these_read, others_read = these_report(), others_report()
        if case == CHANGES:
            self._check()
        else:
            values[_VISIBLE_P99.name] = self._visible()
        return values | {
            _THESE_WORST.name: these_read.worst * 1e3,
            _OTHERS_WORST.name: others_read.worst * 1e3,
            _THESE_P99.name: these_read.p99 * 1e3,
            _OTHERS_P99.name: others_read.p99 * 1e3,
            LATE.name: max(these_read.late, others_read.late) * 1e3,
        }

    def _visible(self) -> float:
        """Change leads and contacts of the other organization. Returns the p99 of the ms until they are visible."""
        records = int(self._service.lab.seconds(_CHANGING_SECONDS) * _RECORDS_A_SECOND)
        report = self._service.probe(self._of_others.take(records, _PROBE_EVERY), _RECORDS_A_SECOND)
        return report.p99 * 1e3

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change the contact twice a second during the block. Waits at its end until all leads show the last change."""

        def change(stop: threading.Event) -> None:
            while not stop.wait(0.5):
                self._version += 1
                publish(self._service.kafka, [marked(self._record, self._version)])

        with in_thread(change):
            yield
        shown = while_running(self._service.process, lambda: not self._behind())
        wait_until(shown, "all leads show the last change", _FAN_OUT_TIMEOUT_SECONDS)

    def _change(self) -> float:
        """Change the contact. Returns the seconds until no lead shows its former state any more."""
        redis, owner = self._service.redis, names.organization(self._tenant.organization_id)
        leads = names.contact_leads(owner, live(redis), self._tenant.contacts[0])
        former_summary: float = redis.zrange(leads, 0, 0, withscores=True)[0][1]  # type: ignore[assignment]
        self._version += 1
        event = marked(self._record, self._version)
        started = time.monotonic()
        publish(self._service.kafka, [event])
        done = while_running(self._service.process, lambda: not redis.zcount(leads, former_summary, former_summary))
        wait_until(done, "all leads show the change", _FAN_OUT_TIMEOUT_SECONDS)
        return time.monotonic() - started

    def _check(self) -> None:
        """Check that all documents show the change, as the index says. Raises MeasurementFailed."""
        if behind := self._behind():
            raise MeasurementFailed(f"{behind} leads show the contact as it was before")

    def _behind(self) -> int:
        """Returns how many leads do not show the last change."""
        owner, shown = names.organization(self._tenant.organization_id), mark(self._version).encode()
        generation = live(self._service.redis)
        values = self._service.redis.mget(
            [names.document(resources.LEAD, owner, generation, lead) for lead in self._tenant.leads]
        )
        return sum(not isinstance(value, bytes) or shown not in value for value in values)


BENCHMARK = Benchmark(
    name="fan-out",
    what=(
        "A contact with 50,000 leads changes. Measured are the time from the production of its event until all leads "
        "show it, and the longest response time meanwhile, for readers of these leads and for readers of another "
        "organization (250 requests a second each, open loop). Then it changes twice a second, and leads and contacts "
        "of the other organization 200 times: measured is when those are visible."
    ),
    metrics=(_TIME, _THESE_WORST, _OTHERS_WORST, _THESE_P99, _OTHERS_P99, _VISIBLE_P99, LATE),
    subjects=(Subject(LEADVIEW, "leadview", "one projector, one API worker"),),
    cases=(UNCHANGED, CHANGING, CHANGES),
    prepare=_prepare,
    targets=(
        Target(_THESE_WORST.name, CHANGES, 10.0, at_least=False),
        Target(_OTHERS_WORST.name, CHANGES, 10.0, at_least=False),
        Target(_VISIBLE_P99.name, CHANGING, 3.0, at_least=False, case_against=UNCHANGED),
    ),
    needs_kafka=True,
    rounds=5,
)
