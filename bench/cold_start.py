"""A cold start with an empty Redis, and a restart of Redis with all documents in its append-only file."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Self
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from bench import consumers, pipeline, servers
from bench.benchmark import (
    LEADVIEW,
    Benchmark,
    Lab,
    Measure,
    MeasurementFailed,
    Metric,
    Subject,
    Target,
    Values,
    client,
)
from bench.consumers import PLAIN_SET, RATE, Topics
from bench.crm import FIRST_VERSION, Tenant, Traffic, changed, is_lead, publish, request
from bench.machine import pinned, service_cores
from bench.servers import Server, words
from devstack.programs import Program, Reply, ask, while_running
from devstack.redis_server import RedisServer
from devstack.threads import Repeating
from devstack.waiting import wait_until
from projector.record import Record
from schemas import metrics
from schemas.resources import LEAD

_PAUSE_SECONDS = 0.01
_TIMEOUT_SECONDS = 10.0
_TIME = Metric("all is served after", "s")
_LOADING = Metric("Redis loads for", "s")
_SERVED = Metric("first 200 after that", "ms")
_VISIBLE = Metric("new event visible after that", "ms")
_REFUSED = Metric("503 meanwhile", "responses")
_AGAIN = Metric("records read again", "records")
COLD, RESTART = "empty Redis", "Redis restarts"
_RECORDS, _QUICK_RECORDS, _BATCH = 1_000_000, 5_000, 100_000
_SERVED_SECONDS = 600.0
_LOADED_SECONDS = 300.0
_VISIBLE_SECONDS = 60.0
_HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
_READYZ = _HEALTHZ.replace(b"/healthz", b"/readyz")


def _prepare(lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    kafka = pipeline.start_kafka(lab, stack, service_cores().load).bootstrap_servers
    traffic, count = Traffic(), _QUICK_RECORDS if lab.quick else _RECORDS
    publish(kafka, traffic.access)
    first = traffic.documents(min(_BATCH, count))
    for documents in chain([first], (traffic.documents(_BATCH) for _ in range(_BATCH, count, _BATCH))):
        publish(kafka, documents)
    topics = Topics(kafka, count)
    installation = _Installation(lab, stack, topics, traffic.tenants, next(filter(is_lead, first)))
    return {LEADVIEW: installation.measure, PLAIN_SET.name: partial(_plain_set, lab, topics)}


def _plain_set(lab: Lab, topics: Topics, case: str) -> Values:
    if case != COLD:
        return {}
    with ExitStack() as stack:
        redis = lab.redis(stack, service_cores(), appendonly=True)
        started = time.monotonic()
        consumers.measure_peer(lab, PLAIN_SET, topics, redis, service_cores().load)
        seconds = time.monotonic() - started
    return {RATE.name: topics.count / seconds, _TIME.name: seconds}


class Seen(Struct, frozen=True):
    """A response, and when it was complete."""

    at: float
    reply: Reply


class Watcher(Repeating):
    """Sends one request to a server again and again, from a thread, and notes each response in `seen`, which may be
    read meanwhile."""

    def __init__(self, port: int, request: bytes) -> None:
        super().__init__(_PAUSE_SECONDS)
        self._port = port
        self._path, self._headers = words(request)
        self.seen: list[Seen] = []

    def first(self, matches: Callable[[Seen], bool], since: float = 0.0) -> float | None:
        """Returns when the first response since then that matches was complete; None if there is none."""
        return next((each.at for each in self.seen if each.at >= since and matches(each)), None)

    def count(self, status: int) -> int:
        """Returns the number of responses with this status."""
        return sum(each.reply.status == status for each in self.seen)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Watch while the block runs."""
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def _work(self) -> None:
        reply = ask("127.0.0.1", self._port, self._path, headers=self._headers, timeout=_TIMEOUT_SECONDS)
        self.seen.append(Seen(time.monotonic(), reply))


class _Running(Struct, frozen=True):
    """One Redis, projector and API."""

    redis: RedisServer
    api: Server
    projector: Program

    def records_read(self) -> float:
        """The number of leads and contacts that the projector has read since it started."""
        lines = ask("127.0.0.1", self.projector.metrics_port, "/metrics").body.splitlines()
        name = f'{metrics.RECORDS.name}_total{{line="documents"'
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


class _Installation:
    """An installation that is started with an empty Redis in each cold start, and then restarts its Redis."""

    def __init__(self, lab: Lab, stack: ExitStack, topics: Topics, tenants: Sequence[Tenant], lead: Record) -> None:
        self._lab = lab
        self._topics = topics
        self._lead = lead
        self._version = FIRST_VERSION
        organization_id, _, lead_id = (lead.key or b"").decode().partition(":")
        key = next(tenant.key for tenant in tenants if tenant.organization_id == organization_id)
        self._request = request(LEAD.topic, lead_id, key)
        self._stack = stack.enter_context(ExitStack())
        self._running: _Running | None = None

    def measure(self, case: str) -> Values:
        if case == COLD:
            return self._cold_start()
        if self._running is None:
            raise MeasurementFailed("Redis holds nothing yet")
        return self._restart(self._running)

    def _cold_start(self) -> Values:
        self._stack.close()
        lab, stack, cores, kafka = self._lab, self._stack, service_cores(), self._topics.kafka
        redis = lab.redis(stack, service_cores(), appendonly=True)
        api = servers.leadview(lab, stack, redis, cores)
        api.wait_until_ready(_HEALTHZ)
        with Watcher(api.port, self._request).running() as watcher:
            started = time.monotonic()
            projector = consumers.start_projector(lab, kafka, redis.url, cores=cores.load, group=uuid4().hex)
            stack.callback(projector.stop)
            served = while_running(projector, lambda: watcher.first(_served))
            wait_until(served, "all is served", _SERVED_SECONDS)
            api.wait_until_ready(_READYZ)
            seconds = time.monotonic() - started
        _check(watcher, watcher.first(_served) or 0.0)
        self._running = _Running(redis, api, projector)
        with client(redis) as connection:
            if (done := consumers.covered(connection)) < self._topics.count:
                raise MeasurementFailed(f"the API was ready with {done} of {self._topics.count} records")
        return {RATE.name: self._topics.count / seconds, _TIME.name: seconds, _REFUSED.name: watcher.count(503)}

    def _restart(self, running: _Running) -> Values:
        """Kill Redis and start it again. An event is produced in between."""
        redis, read = running.redis, running.records_read()
        self._version += 1
        mark = f"v{self._version}@example.com"
        event = replace(self._lead, value=changed(self._lead, self._version, mark))
        with Watcher(running.api.port, self._request).running() as watcher:
            redis.kill()
            publish(self._topics.kafka, [event])
            started = time.monotonic()
            with pinned(service_cores().redis):
                redis.restart()
            with client(redis) as connection:
                wait_until(lambda: not connection.info("persistence")["loading"], "Redis has loaded", _LOADED_SECONDS)
            loaded = time.monotonic()
            shown = while_running(running.projector, lambda: watcher.first(_shows(mark)))
            wait_until(shown, "the new event is visible", _VISIBLE_SECONDS)
        covered = while_running(running.projector, lambda: running.records_read() > read)
        wait_until(covered, "the new event is covered", _VISIBLE_SECONDS)
        served, visible = watcher.first(_served, started) or 0.0, watcher.first(_shows(mark)) or 0.0
        _check(watcher, served)
        return {
            _LOADING.name: loaded - started,
            _SERVED.name: max(0.0, served - loaded) * 1e3,
            _VISIBLE.name: max(0.0, visible - loaded) * 1e3,
            _REFUSED.name: watcher.count(503),
            _AGAIN.name: running.records_read() - read - 1,
        }


def _served(seen: Seen) -> bool:
    return seen.reply.status == 200


def _shows(mark: str) -> Callable[[Seen], bool]:
    return lambda seen: mark in seen.reply.body


def _check(watcher: Watcher, served: float) -> None:
    """Check that the API answered 503 with `Retry-After` until it served, and 200 after that."""
    for each in watcher.seen:
        status = each.reply.status
        if status not in (200, 503) or (status == 503 and not each.reply.headers.get("retry-after")):
            raise MeasurementFailed(f"the API answered {status}: {each.reply.body[:200]!r}")
        if status != 200 and each.at > served:
            raise MeasurementFailed(f"the API served, and then answered {status}")


BENCHMARK = Benchmark(
    name="cold-start",
    what=(
        "Kafka holds 1,000,000 leads and contacts, and Redis (appendonly yes) is empty. Measured is the time from the "
        "start of the projector until the API is ready, and of plain-set until it has written all; both with the start "
        "of the process. Then Redis is killed and restarted, while the API is asked all the time and an event waits."
    ),
    metrics=(RATE, _TIME, _LOADING, _SERVED, _VISIBLE, _REFUSED, _AGAIN),
    subjects=(Subject(LEADVIEW, "leadview", "one projector, one API worker"), PLAIN_SET),
    cases=(COLD, RESTART),
    prepare=_prepare,
    targets=(
        Target(RATE.name, COLD, 0.4, at_least=True, against=PLAIN_SET.name),
        Target(_SERVED.name, RESTART, 1000.0, at_least=False),
    ),
    needs_kafka=True,
    rounds=2,
)
