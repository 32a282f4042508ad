"""Everything that runs in a chaos run: Leadview, and Redis: behind two proxies, with a Sentinel, or as a cluster."""

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Literal, Self

import msgspec
import orjson
import redis
from redis.exceptions import RedisClusterException

from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.fault_proxy import FaultyProxy, faulty_proxy
from devstack.ports import free_port
from devstack.programs import API, PROJECTOR, while_running
from devstack.redis_cluster import RedisCluster
from devstack.redis_sentinel import RedisSentinel
from devstack.redis_server import RedisServer
from schemas import names, resources
from schemas.control import GenerationId, number_of
from schemas.heartbeat import Heartbeat
from tests.chaos import brokers as kafka_brokers
from tests.chaos.core import ORGANIZATIONS, Stage, key_of
from tests.chaos.history import CaughtUp, Loss, Outage, now
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.commands import Finished
from tests.harness.crm import Message
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

RECOVER_SECONDS = 3 * PATIENCE_SECONDS
# The log is written before the reply, whatever the disk does: a killed Redis has lost nothing that it acknowledged.
_REDIS_OPTIONS = ("--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")
NO_LEAD = crm.uuid(0xDEAD)
_HEARTBEAT_SECONDS = 2.5  # a projector stores one each second
ABSENT = (redis.RedisError, RedisClusterException, OSError, AttributeError)
"""What clients of Redis raise while it is away. Of a slot without a node, redis-py asks for an attribute of None."""

RedisKind = Literal["address", "sentinel", "cluster"]


class World(Stage):
    """Starts with `start`, ends with the block. `brokers` are given if faults may affect them as well.

    `redis` says how the processes find Redis: at an address, which is that of a proxy; by a Sentinel that names it; or
    as a cluster of three primaries with a replica each. The proxies are used for an address only. `processes` is the
    number of API processes. With the embedded Kafka there is one projector, because its groups have one member. `hosts`
    are the addresses of the servers of a cluster, `settings` those of all processes.
    """

    def __init__(
        self,
        kafka: Kafka,
        prefix: str,
        directory: Path,
        brokers: ApacheKafka | None = None,
        *,
        api_redis_timeout: float = 0.5,
        redis: RedisKind = "address",
        projectors: int = 2,
        processes: int = 2,
        hosts: Sequence[str] = (),
        **settings: object,
    ) -> None:
        self._brokers = brokers
        self._real = kafka.kind != "embedded"
        self._api_redis_timeout = api_redis_timeout
        self.directory = directory
        self._stack = ExitStack()
        self._servers = 0
        self.sentinel = self._stack.enter_context(RedisSentinel(directory / "redis")) if redis == "sentinel" else None
        self._cluster = (
            self._stack.enter_context(_new_cluster(directory / "redis", hosts)) if redis == "cluster" else None
        )
        self.redis = self.new_redis() if redis == "address" else self.primaries[0]
        self.to_projector = self._stack.enter_context(faulty_proxy(self.redis.port))
        self.to_api = self._stack.enter_context(faulty_proxy(self.redis.port))
        server = self.sentinel or self._cluster or self.redis
        super().__init__(self._stack.enter_context(Leadview(kafka, prefix, server, directory, **settings)))
        self.leadview.calls_plain_commands = False
        self.projectors: dict[str, Child] = {}
        count = projectors if self._real else 1
        self.metrics_ports = {f"projector-{number + 1}": free_port() for number in range(count)}
        """Those of the projectors, by name."""
        self.partitions = dict.fromkeys(resources.KINDS, 0)
        self.operating = threading.Lock()
        """Held while an operator's command runs."""
        self.wrong: list[str] = []
        """What faults found to be wrong."""
        self.again: Callable[[resources.Kind], Iterable[Message]] = lambda _: ()
        """What the core product publishes if it publishes all entities of a kind once more."""
        self.others: dict[resources.Kind, list[Message]] = {}
        """What others than the core product's three organizations have published last."""
        self.mark: dict[tuple[str, int], int] = {}
        """The end offsets when the last fault ended."""
        self.suspended = 0
        """How many operators' commands have stood still so far."""
        self.ports = [free_port() for _ in range(processes)]
        """Those of the API processes."""
        self.api_metrics_ports = [free_port() for _ in self.ports]
        self.apis: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    @property
    def client(self) -> Any:
        """The present Redis, without a proxy."""
        return self.leadview.redis

    @property
    def brokers(self) -> ApacheKafka:
        assert self._brokers is not None, "brokers must not be harmed here"
        return self._brokers

    @property
    def cluster(self) -> RedisCluster:
        assert self._cluster is not None, "Redis is no cluster here"
        return self._cluster

    @property
    def primaries(self) -> list[RedisServer]:
        """All servers that accept writes."""
        if self._cluster:
            return self._cluster.primaries
        return [self.sentinel.master if self.sentinel else self.redis]

    def organizations_of(self, server: RedisServer) -> frozenset[str]:
        """Returns the organizations in the shard of this primary: all if there is only one."""
        if not self._cluster:
            return frozenset(ORGANIZATIONS)
        owners = {id_: self.cluster.owner(names.tag_slot(names.tag(names.organization(id_)))) for id_ in ORGANIZATIONS}
        return frozenset(id_ for id_, owner in owners.items() if owner is server)

    def wait_until_in_step(self, primary: RedisServer) -> None:
        """Wait until the replica of this primary has all that it has, if there is one."""
        if self._cluster:
            self._cluster.wait_until_in_step(self.primaries.index(primary))

    def start(self, partitions: int = 2) -> None:
        """Topics, projectors, the API processes."""
        if self._brokers:
            kafka_brokers.compact_often(self.leadview.kafka.bootstrap_servers)
        self.leadview.topics.create(partitions)
        for kind in resources.KINDS:
            self._compact_soon(kind, partitions)
        for name in self.metrics_ports:
            self.start_projector(name)
        self.apis = [self._new_api(number) for number in range(len(self.ports))]
        for number in range(len(self.ports)):
            self._wait_for_api(number)

    def start_projector(self, name: str) -> None:
        self.projectors[name] = self.new_projector(name, metrics_port=self.metrics_ports[name])

    def new_projector(self, name: str, program: Sequence[str] = PROJECTOR, **settings: object) -> Child:
        """Start a projector that no fault of projectors chooses."""
        return self.leadview.start("run", command=program, log=name, **self.projector_settings(), **settings)

    @contextmanager
    def asleep(self, *sleepers: Child) -> Iterator[None]:
        """Let these processes stand still until the block ends."""
        for child in sleepers:
            child.pause()
        try:
            yield
        finally:
            for child in sleepers:
                child.resume()

    def projector_settings(self) -> dict[str, Any]:
        """Small batches, so that much can happen between them."""
        return {"redis_url": self._url(self.to_projector), "batch_records": 200, "kafka_session_timeout": 2}

    def restart_api(self, number: int) -> None:
        """Start an API process that has ended, on its port; returns when it answers."""
        self.apis[number] = self._new_api(number)
        self._wait_for_api(number)

    def _new_api(self, number: int) -> Child:
        settings: dict[str, Any] = {
            "redis_url": self._url(self.to_api),
            "api_redis_timeout": self._api_redis_timeout,
            "api_port": self.ports[number],
            "metrics_port": self.api_metrics_ports[number],
        }
        return self.leadview.start(command=API, log=f"api-{number + 1}", **settings)

    def _wait_for_api(self, number: int) -> None:
        wait_until(while_running(self.apis[number], ApiServer(self.ports[number]).answers), "the API answers")

    def _url(self, proxy: FaultyProxy) -> str:
        if self._cluster:
            return self._cluster.url_of_all
        return self.sentinel.url if self.sentinel else proxy.url

    def _compact_soon(self, kind: resources.Kind, partitions: int) -> None:
        if self._real:
            kafka_brokers.compact_soon(self.leadview.kafka.bootstrap_servers, self.leadview.topics.name(kind))
        self.partitions[kind] = partitions

    def recreate_topic(self, kind: resources.Kind, partitions: int = 2) -> None:
        """Delete the topic of a kind, create it again, and publish to it what the core product holds."""
        self.leadview.topics.recreate(kind, partitions)
        self._compact_soon(kind, partitions)
        self.leadview.publish_all([*self.again(kind), *self.others.get(kind, ())])

    def command(self, *words: str, program: Sequence[str] = PROJECTOR) -> Finished:
        """An operator's command, to its end. Raises subprocess.TimeoutExpired."""
        return self.leadview.run(*_usual(words), command=program, **self._operators_settings())

    def succeed(self, *words: str, program: Sequence[str] = PROJECTOR) -> None:
        """Run an operator's command, and again after a failure, until it succeeds. Raises TimeoutError."""
        outputs = [""]

        def succeeds() -> bool:
            done = self.command(*words, program=program)
            outputs.append(done.output)
            return done.status == 0

        wait_until(succeeds, lambda: f"{words} succeeds: {outputs[-1]}", RECOVER_SECONDS)

    def accept_bad_records(self) -> None:
        """Accept those that are known. Compaction leaves so many more of them than of others that lines would halt."""
        with suppress(subprocess.TimeoutExpired):  # because of a fault
            self.command(*self.accepting)

    @property
    def accepting(self) -> tuple[str, ...]:
        """The command that accepts them."""
        return ("dead-letters", "accept", "--topic", self.leadview.topics.name(resources.LEAD), "--note", "known")

    def drop_all(self) -> None:
        """Drop every generation but the live one. Raises TimeoutError."""
        self.wait_until(self._is_alone, "only the live generation is left")

    def expect_incomplete_shards(self, because: str) -> None:
        """Note what is wrong if `status --json` does not say that a shard is incomplete, whether all is well or not."""
        said = self.command("status", "--json").stdout
        if not said or not orjson.loads(said).get("incomplete_shards"):
            self.wrong.append(f"{because}, and status says {said}")

    def unexplained_keys(self) -> list[str]:
        """Returns what is wrong with the keys of generations: the control record neither writes nor drops theirs."""
        state = self.leadview.state()
        explained = {*state.written, *state.dropping}
        matches = (names.IN_GENERATION.fullmatch(key) for key in self.client.scan_iter(names.ALL, count=5000))
        all_found = {match[0]: GenerationId(match[2].decode()) for match in matches if match}
        found = {name: generation for name, generation in all_found.items() if generation not in explained}
        return [
            f"{count} keys of generation {number}, such as {next(key for key in found if found[key] == number)!r}"
            for number, count in Counter(found.values()).items()
        ]

    def new_redis(self) -> RedisServer:
        """Start another server, which is empty."""
        self._servers += 1
        directory = self.directory / f"redis-{self._servers}"
        server = RedisServer.start(directory, appendonly=True, options=_REDIS_OPTIONS)
        self._stack.callback(server.kill)
        return server

    def promote(self, server: RedisServer) -> None:
        """Make all processes use another server."""
        self.redis = server
        self.leadview.redis.close()
        self.leadview.use_redis(server)
        self.to_projector.switch(server.port)
        self.to_api.switch(server.port)

    def start_command(self, *words: str, program: Sequence[str] = PROJECTOR) -> Child:
        """Start an operator's command whose process may be killed or stand still. Its log is its own."""
        return self.leadview.start(*_usual(words), command=program, **self._operators_settings())

    def _operators_settings(self) -> dict[str, Any]:
        return {"redis_url": self._url(self.to_projector), "kafka_session_timeout": 2}

    def dark_until(self, certain: float) -> float:
        """Wait until the live generation is complete again. Returns the last time at which it certainly was not, which
        is `certain` or later. Raises TimeoutError.

        It is the time *before* it was asked: afterwards, the machine may stand still while the condition becomes true.
        """
        last = certain

        def is_served() -> bool:
            nonlocal last
            asked_at = now()
            served = self._is_served()
            if served is False:
                last = asked_at
            return bool(served)

        self.wait_until(is_served, "the live generation is complete")
        return last

    def catch_up(self, seconds: float = RECOVER_SECONDS) -> None:
        """Wait until everything that Kafka has by now is applied and served, and note it. Raises TimeoutError."""
        up_to, end_offsets = now(), dict(self.leadview.topics.end_offsets)
        wait_until(lambda: self._has_applied(end_offsets), "all is applied again", seconds)
        wait_until(self._is_served_by_api, "the API serves all organizations again", seconds)
        self.history.caught_up.append(CaughtUp(up_to, now()))

    def lost(
        self,
        began_at: float,
        back_to: float,
        dark: tuple[float, float] = (inf, -inf),
        organizations: frozenset[str] | None = None,
    ) -> None:
        """Note that Redis has just lost what it acknowledged since `back_to`, of these organizations (None: of all)."""
        self.history.losses.append(Loss(began_at, now(), back_to, dark, organizations))

    def unavailable(self, organizations: frozenset[str]) -> None:
        """Note that from now on until all is recovered, 503 is right for these organizations."""
        self.history.outages.append(Outage(organizations, now()))

    def wait_until(self, predicate: Callable[[], object], description: str) -> None:
        wait_until(predicate, description, RECOVER_SECONDS)

    def recovered(self) -> float:
        """Note that all is well again, and return when."""
        at = now()
        for outage in self.history.outages:
            outage.ended_at = min(outage.ended_at, at)
        return at

    def _is_served(self) -> bool | None:
        with suppress(*ABSENT):
            return self.leadview.is_served()
        return None

    def _is_served_by_api(self) -> bool:
        keys = [key_of(id_) for id_ in ORGANIZATIONS]
        return all(
            api.is_ready() and all(api.get(LEADS + NO_LEAD, key=key).status != 503 for key in keys)
            for api in map(ApiServer, self.ports)
        )

    def _is_alone(self) -> bool:
        with suppress(*ABSENT):
            state = self.leadview.state()
            others = state.known - {state.live}
            for generation in others:
                self.command("drop", str(number_of(generation)))
            return not others
        return False

    def is_settled(self) -> bool:
        """Is each partition read by one projector, and does each projector read some? Until then a group rebalances,
        and what is published next waits, although all before it was applied.
        """
        with suppress(*ABSENT):
            heartbeats = projectors(self.client)
            if heartbeats.keys() != {child.pid for child in self.projectors.values()}:
                return False
            shares = [share for heartbeat in heartbeats.values() for share in heartbeat.partitions.values()]
            return sum(shares) == sum(self.partitions.values()) and all(shares)
        return False

    def _has_applied(self, end_offsets: dict[tuple[str, int], int]) -> bool:
        with suppress(*ABSENT):
            applied = self.leadview.has_applied(end_offsets)
            return applied and not self.client.exists(names.JOBS) and self.leadview.is_served()
        return False


Strike = Callable[[World, Random], AbstractContextManager[None]]
"""What a fault does to the world: it breaks something on entry, and repairs it on exit."""


def _usual(words: tuple[str, ...]) -> tuple[str, ...]:
    """A rebuild has the usual priority: as it is delivered, it would wait until a busy machine is idle."""
    return (*words, "--max-latency", "0") if words[0] == "rebuild" else words


def _new_cluster(directory: Path, hosts: Sequence[str]) -> RedisCluster:
    return RedisCluster(directory, replicas=True, appendonly=True, options=_REDIS_OPTIONS, hosts=hosts)


def projectors(client: Any) -> dict[int, Heartbeat]:
    """Returns the recent heartbeats of projectors by process id. Redis and this program read the same clock."""
    found = {}
    for id_, written in client.hgetall(names.WRITERS).items():
        at, _, stored = written.partition(b" ")
        heartbeat = msgspec.json.decode(stored, type=Heartbeat)
        if heartbeat.role == "run" and time.time() - int(at) / 1000 < _HEARTBEAT_SECONDS:
            found[int(id_.split(b"-")[-2])] = heartbeat
    return found
