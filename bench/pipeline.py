"""The whole service: Kafka, a projector, Redis and the API, with records that are projected and served, and events
whose way to a reader is measured."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec
from msgspec import Struct
from redis import Redis

from bench import consumers, servers
from bench.benchmark import Lab, client
from bench.crm import Tenant, lead_request, publish
from bench.load import Load, checked, ordered, reported
from bench.machine import Cores, pinned
from bench.sender import Event, ProbeOrder, Report
from bench.servers import Server
from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.programs import Program, while_running
from devstack.redis_server import RedisServer
from devstack.waiting import wait_until
from projector.ledger.control import State
from projector.record import Record
from schemas import control, names

_PROJECTED_SECONDS = 300.0
_REBUILD_START_SECONDS = 30.0
_DROPPED_SECONDS = 120.0
_VISIBLE_SECONDS = 150.0
"""Longer than the prober itself waits for the last event."""


class Rebuilding(Struct, frozen=True):
    """A running rebuild, and the generation that it fills."""

    process: Program
    generation: control.GenerationId


class Pipeline(Struct):
    """The running service, which `stack` stops. `redis` is a client of `server`."""

    lab: Lab
    stack: ExitStack
    kafka: str
    server: RedisServer
    redis: Redis
    process: Child
    """The projector. After an outage, it is another one."""
    api: Server
    cores: Cores

    def load(self, api_requests: Iterable[bytes]) -> Load:
        """Load on the API, from the API's core, because the projector uses the other one."""
        return Load(self.lab, list(api_requests), self.cores.worker)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """End the projector, and start it again after the block."""
        self.process.stop()
        try:
            yield
        finally:
            self.process = consumers.start_projector(self.lab, self.kafka, self.server.url, cores=self.cores.load)
            self.stack.callback(self.process.stop)

    @contextmanager
    def rebuilding(self) -> Iterator[Rebuilding]:
        """Start a rebuild for the block, and drop the generation that it filled afterwards. Raises ServerFailed."""
        before = self._written_generations()
        child = self._command("rebuild")
        try:
            started = while_running(child, lambda: self._written_generations() - before)
            wait_until(started, "the rebuild starts", _REBUILD_START_SECONDS)
            yield Rebuilding(child, *(self._written_generations() - before))
        finally:
            child.stop()
            for generation in self._written_generations() - before:
                dropping = self._command("drop", str(control.number_of(generation)))
                if dropping.wait(_DROPPED_SECONDS):
                    raise dropping.failure("failed")

    def is_complete(self, generation: control.GenerationId) -> bool:
        """Whether everything has been replayed into this generation."""
        filled = self.redis.hget(names.CONTROL, control.FILLED)
        return isinstance(filled, bytes) and generation in control.parse_generations(filled)

    def probe(self, events: Sequence[Event], rate: float, *, waits: bool = False) -> Report:
        """Send `rate` of these events a second, and measure the time until the probed ones are visible.
        With `waits`, further requests wait for them.

        Raises MeasurementFailed, and ServerFailed if the projector cannot do its work any more.
        """
        order = ProbeOrder(self.kafka, self.api.port, rate, events, waits)
        with ordered(self.lab, order, self.cores.load) as prober:
            ended = while_running(self.process, lambda: not prober.running)
            wait_until(ended, "all events are visible", len(events) / rate + _VISIBLE_SECONDS)
            return checked(reported(prober, Report))

    def _written_generations(self) -> set[control.GenerationId]:
        state = self.redis.hget(names.CONTROL, control.STATE)
        return set(msgspec.json.decode(state, type=State).written) if isinstance(state, bytes) else set()

    def _command(self, *words: str) -> Program:
        return consumers.start_projector(self.lab, self.kafka, self.server.url, words, cores=self.cores.load)


def start_kafka(lab: Lab, stack: ExitStack, cores: set[int] | None) -> ApacheKafka:
    """Start Apache Kafka with all topics."""
    with pinned(cores):
        kafka = stack.enter_context(ApacheKafka.start(lab.directory / "kafka"))
    consumers.create_topics(kafka)
    return kafka


def start(lab: Lab, stack: ExitStack, cores: Cores, tenants: list[Tenant], batches: Iterable[list[Record]]) -> Pipeline:
    """Start everything, and wait until all of these records are served. They include the tenants and their leads."""
    kafka = start_kafka(lab, stack, cores.load)
    redis = lab.redis(stack, cores)
    projector = consumers.start_projector(lab, kafka.bootstrap_servers, redis.url, cores=cores.load)
    stack.callback(projector.stop)
    connection = stack.enter_context(client(redis))
    count = 0
    for batch in batches:
        publish(kafka.bootstrap_servers, batch)
        count += sum(record.topic.endswith(consumers.DOCUMENT_TOPICS) for record in batch)
    _wait_until_served(projector, connection, count)
    api = servers.leadview(lab, stack, redis, cores)
    api.wait_until_ready(lead_request(tenants[0], tenants[0].leads[0]))
    return Pipeline(lab, stack, kafka.bootstrap_servers, redis, connection, projector, api, cores)


def _wait_until_served(projector: Program, redis: Redis, count: int) -> None:
    def served() -> bool:
        return consumers.covered(redis) >= count and bool(redis.hget(names.CONTROL, control.FILLED))

    wait_until(while_running(projector, served), f"{count} records are projected and served", _PROJECTED_SECONDS)
