"""A cold start with an empty Redis, and a restart of Redis with all documents in its append-only file."""

import shutil
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from bench import candidates, consuming_peers, pipeline, projectors, requests, traffic
from bench.benchmark import LEADVIEW, Measure, MeasurementFailed, Metric, Subject, Target, Values
from bench.changes import FIRST_VERSION, changed
from bench.consuming_peers import RATE, SUBJECTS, Topics
from bench.cores import pinned, service_cores
from bench.crm import Tenant
from bench.lab import Lab, client
from bench.server import Server
from bench.traffic import Traffic
from bench.watcher import Seen, Watcher
from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.ports import free_port
from devstack.redis_server import RedisServer
from devstack.waiting import wait_until
from projector.record import Record
from schemas import metrics
from schemas.resources import LEAD

_PLAIN_SET = next(subject for subject in SUBJECTS if subject.name == "plain-set")
_TIME = Metric("all is served after", "s")
_LOADING = Metric("Redis loads for", "s")
_SERVED = Metric("first 200 after that", "ms")
_VISIBLE = Metric("new event visible after that", "ms")
_REFUSED = Metric("503 meanwhile", "responses")
_AGAIN = Metric("records read again", "records")
COLD, RESTART = "empty Redis", "Redis restarts"
_RECORDS, _QUICK_RECORDS, _BATCH = 1_000_000, 5_000, 100_000
_PARTITIONS = pipeline.PARTITIONS
_SERVED_SECONDS = 600.0
_LOADED_SECONDS = 300.0
_VISIBLE_SECONDS = 60.0
_HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
_READYZ = _HEALTHZ.replace(b"/healthz", b"/readyz")


class ColdStart:
    name = "cold-start"
    what = (
        "Kafka holds 1,000,000 leads and contacts, and Redis (appendonly yes) is empty. Measured is the time from the "
        "start of the projector until the API is ready, and of plain-set until it has written all; both with the start "
        "of the process. Then Redis is killed and restarted, while the API is asked all the time and an event waits."
    )
    metrics = (RATE, _TIME, _LOADING, _SERVED, _VISIBLE, _REFUSED, _AGAIN)
    subjects = (Subject(LEADVIEW, "leadview", "one projector, one API worker"), _PLAIN_SET)
    targets = (
        Target(RATE.name, COLD, 0.4, at_least=True, against=_PLAIN_SET.name),
        Target(_SERVED.name, RESTART, 1000.0, at_least=False),
    )
    rounds = 2
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        return (COLD, RESTART)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        if pipeline.kafka_is_missing(lab, self.name):
            return {}
        with pinned(service_cores().load):
            kafka = stack.enter_context(ApacheKafka.start(lab.directory / "kafka"))
        projectors.create_topics(kafka, _PARTITIONS)
        count = _QUICK_RECORDS if lab.quick else _RECORDS
        records = Traffic()
        traffic.publish(kafka.bootstrap_servers, records.access)
        lead: Record | None = None
        for _ in range(0, count, _BATCH):
            documents = records.documents(min(_BATCH, count))
            traffic.publish(kafka.bootstrap_servers, documents)
            lead = lead or next(record for record in documents if record.kind is LEAD)
        if lead is None:
            raise MeasurementFailed("there are no records")
        topics = Topics(kafka.bootstrap_servers, _PARTITIONS, count)
        installation = _Installation(lab, stack, topics, records.tenants, lead)
        return {LEADVIEW: installation.measure, _PLAIN_SET.name: partial(_plain_set, lab, topics)}


def _plain_set(lab: Lab, topics: Topics, case: str) -> Values:
    if case != COLD:
        return {}
    with ExitStack() as stack:
        redis = _redis(lab, stack)
        started = time.monotonic()
        consuming_peers.measure("plain_set", topics, redis.url, 1, service_cores().load)
        seconds = time.monotonic() - started
    return {RATE.name: topics.count / seconds, _TIME.name: seconds}


def _redis(lab: Lab, stack: ExitStack) -> RedisServer:
    """A new, empty Redis whose data survive a restart. `stack` stops it, and deletes its files."""
    directory = Path(mkdtemp(dir=lab.directory, prefix="redis"))
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    with pinned(service_cores().redis):
        return stack.enter_context(RedisServer.start(directory, appendonly=True))


class _Running(Struct, frozen=True):
    """One Redis, projector and API. `metrics_port` is the projector's."""

    redis: RedisServer
    api: Server
    projector: Child
    metrics_port: int

    def records_read(self) -> float:
        """The number of leads and contacts that the projector has read since it started."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as response:
            lines: list[str] = response.read().decode().splitlines()
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
        self._request = requests.get(LEAD.topic, lead_id, key)
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
        redis = _redis(lab, stack)
        api = candidates.leadview(lab, stack, redis, cores)
        api.wait_until_ready(_HEALTHZ)
        with Watcher(api.port, self._request).running() as watcher:
            started, port = time.monotonic(), free_port()
            projector = projectors.start(lab, kafka, redis.url, cores=cores.load, group=uuid4().hex, metrics_port=port)
            stack.callback(projector.stop)
            wait_until(lambda: watcher.first(_served), "all is served", _SERVED_SECONDS)
            api.wait_until_ready(_READYZ)
            seconds = time.monotonic() - started
        _check(watcher, watcher.first(_served) or 0.0)
        self._running = _Running(redis, api, projector, port)
        with client(redis) as connection:
            if (done := projectors.covered(connection, _PARTITIONS)) < self._topics.count:
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
            traffic.publish(self._topics.kafka, [event])
            started = time.monotonic()
            with pinned(service_cores().redis):
                redis.restart()
            with client(redis) as connection:
                wait_until(lambda: not connection.info("persistence")["loading"], "Redis has loaded", _LOADED_SECONDS)
            loaded = time.monotonic()
            wait_until(lambda: watcher.first(_shows(mark)), "the new event is visible", _VISIBLE_SECONDS)
        wait_until(lambda: running.records_read() > read, "the new event is covered", _VISIBLE_SECONDS)
        served, visible = watcher.first(_served, started) or 0.0, watcher.first(_shows(mark)) or 0.0
        _check(watcher, served)
        return {
            _LOADING.name: loaded - started,
            _SERVED.name: max(0.0, served - loaded) * 1e3,
            _VISIBLE.name: max(0.0, visible - loaded) * 1e3,
            _REFUSED.name: watcher.count(503),
            _AGAIN.name: running.records_read() - read - 1,
        }


def _served(response: Seen) -> bool:
    return response.status == 200


def _shows(mark: str) -> Callable[[Seen], bool]:
    return lambda response: mark.encode() in response.body


def _check(watcher: Watcher, served: float) -> None:
    """Check that the API answered 503 with `Retry-After` until it served, and 200 after that."""
    for response in watcher.seen:
        if response.status not in (200, 503) or (response.status == 503 and not response.retry_after):
            raise MeasurementFailed(f"the API answered {response.status}: {response.body[:200]!r}")
        if response.status != 200 and response.at > served:
            raise MeasurementFailed(f"the API served, and then answered {response.status}")
