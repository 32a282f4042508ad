"""The latency of access while a projector works through the worst batches that it accepts, and its memory."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count, cycle
from pathlib import Path
from uuid import UUID

import msgspec
from confluent_kafka import Producer

from bench import pipeline, probing, projectors, requests
from bench.api import P50, P99
from bench.benchmark import LEADVIEW, Measure, MeasurementFailed, Metric, Subject, Target, Values
from bench.cores import Cores, pinned
from bench.lab import Lab
from bench.pipeline import Pipeline
from bench.prober import Event
from bench.traffic import PREFIX, Traffic
from devstack.waiting import wait_until
from projector.record import Record
from schemas.limits import MAX_CONTAINERS, MAX_ENTRIES
from schemas.resources import LEAD

_WORST = Metric("worst", "ms", chart=True)
_PEAK = Metric("projector's memory, peak", "MB")
_RECORDS = Metric("other records applied", "records/s")
_RATE, _SECONDS = 20.0, 20.0
_DOCUMENTS = 2_000
_BATCH_BYTES = 15_000_000
_AHEAD_BATCHES = 4
_CAUGHT_UP_SECONDS = 120.0
_PAUSE_SECONDS = 0.01
_QUOTA = 10_000_000

NOTHING, LARGE, NESTED, DELETIONS = "nothing else", "leads of 1 MiB", "leads of 10,000 objects and arrays", "deletions"


class WorstBatches:
    name = "worst-batches"
    what = (
        "The time from the production of a change of an organization to the first HTTP response that shows it, while "
        "the projector works through batches of 15 MB each (a few kilobytes compressed): leads of 1 MiB; leads with as "
        "many objects and arrays as the limits allow; deletions of leads that do not exist. The memory is the "
        "highest that the projector has had by then."
    )
    metrics = (P50, P99, _WORST, _PEAK, _RECORDS)
    subjects = (Subject(LEADVIEW, "leadview", "one projector, one API worker"),)
    targets = (
        *(Target(_WORST.name, case, 1000.0, at_least=False) for case in (LARGE, NESTED, DELETIONS)),
        *(Target(_PEAK.name, case, 300.0, at_least=False) for case in (LARGE, NESTED, DELETIONS)),
    )
    rounds = 2
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - each is short
        return (NOTHING, LARGE, NESTED, DELETIONS)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        if pipeline.kafka_is_missing(lab, self.name):
            return {}
        traffic = Traffic()
        records = traffic.documents(_DOCUMENTS)
        service = pipeline.start(lab, stack, Cores(), traffic.tenants, [traffic.access, records])
        lead = next(record for record in records if record.kind is LEAD)
        return {LEADVIEW: partial(_measure, service, _changes(traffic, records), _leads(lead))}


Message = tuple[bytes, bytes | None]
"""A message key and a value."""


def _measure(service: Pipeline, changes: Iterator[Event], leads: Mapping[str, Iterator[Message]], case: str) -> Values:
    events = [next(changes) for _ in range(max(20, int(service.lab.seconds(_SECONDS) * _RATE)))]
    if case == NOTHING:
        report, applied = probing.probe(service, events, _RATE), 0
    else:
        with _busy(service, leads[case]) as covered:
            before = covered()
            report = probing.probe(service, events, _RATE)
            applied = covered() - before
    return {
        P50.name: report.p50 * 1e3,
        P99.name: report.p99 * 1e3,
        _WORST.name: report.worst * 1e3,
        _PEAK.name: _peak_megabytes(service.projector.pid),
        _RECORDS.name: applied / report.seconds,
    }


@contextmanager
def _busy(service: Pipeline, messages: Iterator[Message]) -> Iterator[Callable[[], int]]:
    """Publish batches during the block, so many that the projector always has some to work through."""
    stopped, started = threading.Event(), threading.Event()
    covered = partial(projectors.covered, service.redis, pipeline.PARTITIONS)
    sent, idle = covered(), False

    def send() -> None:
        nonlocal sent, idle
        producer = Producer(
            {
                "bootstrap.servers": service.kafka,
                "compression.type": "zstd",
                "batch.size": _BATCH_BYTES,
                "message.max.bytes": _BATCH_BYTES,
                "batch.num.messages": 1_000_000,
                "queue.buffering.max.messages": 1_000_000,
                "linger.ms": 1000,
            }
        )
        ahead: list[int] = []
        while not stopped.is_set():
            done = covered()
            idle |= started.is_set() and done == sent
            ahead = [end for end in ahead if end > done]
            if len(ahead) == _AHEAD_BATCHES:
                started.set()
                stopped.wait(_PAUSE_SECONDS)
                continue
            size = 0
            while size < _BATCH_BYTES * 0.9:
                key, value = next(messages)
                producer.produce(f"{PREFIX}{LEAD.topic}", value, key, partition=0)
                size += len(key) + len(value or b"") + 10
                sent += 1
            producer.flush()
            ahead.append(sent)

    with ThreadPoolExecutor(1) as executor, pinned(service.cores.load):
        sending = executor.submit(send)
        try:
            wait_until(lambda: started.is_set() or sending.done(), "the projector is busy", _CAUGHT_UP_SECONDS)
            yield covered
        finally:
            stopped.set()
        sending.result()
    wait_until(lambda: covered() == sent, "the batches are applied", _CAUGHT_UP_SECONDS)
    if idle:
        raise MeasurementFailed("the projector had applied all batches before the measurement ended")


def _changes(traffic: Traffic, documents: Sequence[Record]) -> Iterator[Event]:
    """Yields changes of one organization after the other. The mark is the new quota, which each response names."""
    keys = {tenant.organization_id: tenant.key for tenant in traffic.tenants}
    leads = dict((record.key or b"").decode().split(":") for record in documents if record.kind is LEAD)
    for number, record in zip(count(2), cycle(each for each in traffic.access if (each.key or b"").decode() in leads)):
        id_, quota = (record.key or b"").decode(), _QUOTA + number
        yield Event(
            record.topic,
            record.key or b"",
            _changed(record, number, {"rate_limits": {"key": {"quota": quota, "window_seconds": 10_000}}}),
            f'"key";q={quota};'.encode(),
            requests.get(LEAD.topic, leads[id_], keys[id_]),
        )


def _leads(lead: Record) -> Mapping[str, Iterator[Message]]:
    """Yields messages of leads like this one, for each case."""
    nested: list[list[list[object]]] = [[[]] * (MAX_ENTRIES - 1)] * (MAX_CONTAINERS // MAX_ENTRIES - 1)
    numbers = [[0] * MAX_ENTRIES] * 200
    organization = (lead.key or b"").partition(b":")[0]
    return {
        LARGE: _versions(lead, {"referrer": "x" * 900_000}),
        NESTED: _versions(lead, {"attribution": {"nested": nested, "numbers": numbers}}),
        DELETIONS: ((b"%b:%b" % (organization, str(UUID(int=number)).encode()), None) for number in count()),
    }


def _versions(lead: Record, fields: dict[str, object]) -> Iterator[Message]:
    """Yields versions of 16 leads in turn, so that Redis does not grow."""
    organization = (lead.key or b"").partition(b":")[0].decode()
    mark, other = 2**53 - 1, "00000000-0000-4000-8000-0000000000ff"
    whole = _changed(lead, mark, {**fields, "id": other})
    for number in count():
        id_ = f"00000000-0000-4000-8000-0000000000{number % 16:02x}"
        value = whole.replace(str(mark).encode(), b"%d" % (number + 2), 1).replace(other.encode(), id_.encode(), 1)
        yield f"{organization}:{id_}".encode(), value


def _changed(record: Record, version: int, fields: dict[str, object]) -> bytes:
    event = msgspec.json.decode(record.value or b"")
    event["data"] |= {"version": version, **fields}
    return msgspec.json.encode(event)


def _peak_megabytes(pid: int) -> float:
    """The highest resident memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise MeasurementFailed("the projector has ended")
