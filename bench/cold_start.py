"""A cold start with an empty Redis, and a restart of Redis with all documents in its append-only file."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from itertools import chain
from uuid import uuid4

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
from bench.crm import Traffic, lead_request, publish
from bench.machine import pinned, service_cores
from bench.servers import Server, words
from devstack.programs import Program, Reply, ask, while_running
from devstack.redis_server import RedisServer
from devstack.threads import Repeating
from devstack.waiting import wait_until

_PAUSE_SECONDS = 0.01
_TIMEOUT_SECONDS = 10.0
_TIME = Metric("all is served after", "s")
_LOADING = Metric("Redis loads for", "s")
_SERVED = Metric("first 200 after that", "ms")
_REFUSED = Metric("503 meanwhile", "responses")
COLD, RESTART = "empty Redis", "Redis restarts"
_RECORDS, _QUICK_RECORDS, _BATCH = 1_000_000, 5_000, 100_000
_SERVED_SECONDS = 600.0
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
    tenant = next(tenant for tenant in traffic.tenants if tenant.leads)
    installation = _Installation(lab, stack, topics, lead_request(tenant, tenant.leads[0]))
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


class _Watcher(Repeating):
    """Sends one request to a server again and again, from a thread. Notes in `seen` when each response was complete,
    which may be read meanwhile. Until the first 200, each must be 503 with `Retry-After`, and 200 from then on."""

    def __init__(self, port: int, request: bytes) -> None:
        super().__init__(_PAUSE_SECONDS)
        self._port = port
        self._path, self._headers = words(request)
        self.seen: list[tuple[float, Reply]] = []

    def served(self, since: float = 0.0) -> float | None:
        """Returns when the first 200 since then was complete; None if there is none."""
        return next((at for at, reply in self.seen if at >= since and reply.status == 200), None)

    def refused(self, served: float) -> int:
        """Returns the number of 503. Raises MeasurementFailed if there is one after this time, or something else."""
        refusals = [(at, reply) for at, reply in self.seen if reply.status != 200]
        for at, reply in refusals:
            if reply.status != 503 or not reply.headers.get("retry-after"):
                raise MeasurementFailed(f"the API answered {reply.status}: {reply.body[:200]!r}")
            if at > served:
                raise MeasurementFailed("the API served, and then answered 503")
        return len(refusals)

    def _work(self) -> None:
        reply = ask("127.0.0.1", self._port, self._path, headers=self._headers, timeout=_TIMEOUT_SECONDS)
        self.seen.append((time.monotonic(), reply))


class _Installation:
    """An installation that is started with an empty Redis in each cold start, and then restarts its Redis."""

    def __init__(self, lab: Lab, stack: ExitStack, topics: Topics, request: bytes) -> None:
        self._lab = lab
        self._topics = topics
        self._request = request
        self._stack = stack.enter_context(ExitStack())
        self._running: tuple[RedisServer, Server, Program] | None = None

    def measure(self, case: str) -> Values:
        if case == COLD:
            return self._cold_start()
        if self._running is None:
            raise MeasurementFailed("Redis holds nothing yet")
        return self._restart(*self._running)

    def _cold_start(self) -> Values:
        self._stack.close()
        lab, stack, cores = self._lab, self._stack, service_cores()
        redis = lab.redis(stack, cores, appendonly=True)
        api = servers.leadview(lab, stack, redis, cores)
        api.wait_until_ready(_HEALTHZ)
        with _Watcher(api.port, self._request) as watcher:
            started = time.monotonic()
            projector = consumers.start_projector(
                lab, self._topics.kafka, redis.url, cores=cores.load, group=uuid4().hex
            )
            stack.callback(projector.stop)
            wait_until(while_running(projector, watcher.served), "all is served", _SERVED_SECONDS)
            api.wait_until_ready(_READYZ)
            seconds = time.monotonic() - started
        self._running = redis, api, projector
        with client(redis) as connection:
            if (done := consumers.covered(connection)) < self._topics.count:
                raise MeasurementFailed(f"the API was ready with {done} of {self._topics.count} records")
        refused = watcher.refused(watcher.served() or 0.0)
        return {RATE.name: self._topics.count / seconds, _TIME.name: seconds, _REFUSED.name: refused}

    def _restart(self, redis: RedisServer, api: Server, projector: Program) -> Values:
        """Kill Redis and start it again."""
        with _Watcher(api.port, self._request) as watcher:
            redis.kill()
            started = time.monotonic()
            with pinned(service_cores().redis):
                redis.restart()
            loaded = time.monotonic()
            wait_until(while_running(projector, lambda: watcher.served(started)), "the lead is served")
        served = watcher.served(started) or 0.0
        return {
            _LOADING.name: loaded - started,
            _SERVED.name: max(0.0, served - loaded) * 1e3,
            _REFUSED.name: watcher.refused(served),
        }


BENCHMARK = Benchmark(
    name="cold-start",
    what=(
        "Kafka holds 1,000,000 leads and contacts, and Redis (appendonly yes) is empty. Measured is the time from the "
        "start of the projector until the API is ready, and of plain-set until it has written all; both with the start "
        "of the process. Then Redis is killed and restarted, while the API is asked all the time."
    ),
    metrics=(RATE, _TIME, _LOADING, _SERVED, _REFUSED),
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
