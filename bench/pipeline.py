"""The whole service: Kafka, a projector, Redis and the API, with records that are projected and served."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec
from msgspec import Struct
from redis import Redis

from bench import candidates, projectors, requests, traffic
from bench.cores import Cores, pinned
from bench.crm import Tenant
from bench.lab import Lab, client
from bench.load import Load
from bench.server import Server
from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.jars import KAFKA
from devstack.redis_server import RedisServer
from devstack.waiting import wait_until
from projector.ledger.control import State
from projector.record import Record
from schemas import control, names

PARTITIONS = 4
_PROJECTED_SECONDS = 300.0
_REBUILD_START_SECONDS = 30.0
_DROPPED_SECONDS = 120.0


class Rebuilding(Struct, frozen=True):
    """A running rebuild, and the generation that it fills."""

    process: Child
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

    @property
    def projector(self) -> Server:
        return Server(0, self.process.pid)

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
            self.process = projectors.start(self.lab, self.kafka, self.server.url, cores=self.cores.load)
            self.stack.callback(self.process.stop)

    @contextmanager
    def rebuilding(self) -> Iterator[Rebuilding]:
        """Start a rebuild for the block, and drop the generation that it filled afterwards. Raises ServerFailed."""
        before = self._written_generations()
        child = self._command("rebuild")
        try:
            wait_until(
                lambda: self._written_generations() - before or not child.running,
                "the rebuild starts",
                _REBUILD_START_SECONDS,
            )
            child.check_running()
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

    def _written_generations(self) -> set[control.GenerationId]:
        state = self.redis.hget(names.CONTROL, control.STATE)
        return set(msgspec.json.decode(state, type=State).written) if isinstance(state, bytes) else set()

    def _command(self, *words: str) -> Child:
        return projectors.start(self.lab, self.kafka, self.server.url, words, cores=self.cores.load)


def kafka_is_missing(lab: Lab, name: str) -> bool:
    """Whether Apache Kafka cannot run here; then the lab notes that this benchmark is left out."""
    if reason := KAFKA.why_unavailable():
        lab.leave_out(name, reason)
    return reason is not None


def start(lab: Lab, stack: ExitStack, cores: Cores, tenants: list[Tenant], batches: Iterable[list[Record]]) -> Pipeline:
    """Start everything, and wait until all of these records are served. They include the tenants and their leads."""
    with pinned(cores.load):
        kafka = stack.enter_context(ApacheKafka.start(lab.directory / "kafka"))
    redis = lab.redis(stack, "redis", cores)
    projectors.create_topics(kafka, PARTITIONS)
    projector = projectors.start(lab, kafka.bootstrap_servers, redis.url, cores=cores.load)
    stack.callback(projector.stop)
    connection = stack.enter_context(client(redis))
    count = 0
    for batch in batches:
        traffic.publish(kafka.bootstrap_servers, batch)
        count += sum(record.topic.endswith(projectors.DOCUMENT_TOPICS) for record in batch)
    _wait_until_served(projector, connection, count)
    api = candidates.leadview(lab, stack, redis, cores)
    api.wait_until_ready(requests.for_lead(tenants[0], tenants[0].leads[0]))
    return Pipeline(lab, stack, kafka.bootstrap_servers, redis, connection, projector, api, cores)


def _wait_until_served(projector: Child, redis: Redis, count: int) -> None:
    def served() -> bool:
        projector.check_running()
        return projectors.covered(redis, PARTITIONS) >= count and bool(redis.hget(names.CONTROL, control.FILLED))

    wait_until(served, f"{count} records are projected and served", _PROJECTED_SECONDS)
