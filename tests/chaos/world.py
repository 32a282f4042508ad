"""Everything that runs in a chaos run: Leadview, and Redis: behind two proxies, with a Sentinel, or as a cluster."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path
from tempfile import mkdtemp
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
from devstack.redis_server import RedisServer, redis_program
from schemas import names, resources
from schemas.control import GenerationId, number_of
from schemas.heartbeat import Heartbeat
from schemas.words import utc
from tests.chaos.core import ORGANIZATIONS, UNKNOWN, Core, Stage, Writer, key_of
from tests.chaos.history import CaughtUp, Loss, Outage, now
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.commands import Finished
from tests.harness.crm import Message
from tests.harness.leadview import Leadview
from tests.harness.programs import printed_by
from tests.harness.services import Kafka
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

RECOVER_SECONDS = 3 * PATIENCE_SECONDS
# The log is written before the reply, whatever the disk does: a killed Redis has lost nothing that it acknowledged.
_REDIS_OPTIONS = ("--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")
FAKETIME = "faketime"
"""A program, and its package in Debian: it changes the clock of other programs."""
REBUILD = ("rebuild", "--max-latency", "0")
"""A rebuild with the usual priority: as it is delivered, it would wait until a busy machine is idle."""
_HEARTBEAT_SECONDS = 2.5  # a projector stores one each second
PARTITIONS = 2
# Compaction that does not take its time: a segment is compacted when it is closed, and it is closed when a record comes
# after its time. The cleaners of all brokers look twice a second.
_SOON = {"segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1000"}
OFTEN = {"log.cleaner.backoff.ms": "500"}
ABSENT = (redis.RedisError, RedisClusterException, OSError, AttributeError)
"""What clients of Redis raise while it is away. Of a slot without a node, redis-py asks for an attribute of None."""

RedisKind = Literal["address", "sentinel", "cluster"]


class World(Stage):
    """Starts with `start`, ends with the block. `brokers` are given if faults may affect them as well.

    `redis` says how the processes find Redis: at an address, which is that of a proxy; by a Sentinel that names it; or
    as a cluster of three primaries with a replica each. The proxies are used for an address only. `processes` is the
    number of API processes. With the embedded Kafka there is one projector, because its groups have one member. `hosts`
    are the addresses of the servers of a cluster, `settings` those of all processes.

    `projectors` has those that faults may harm, and `metrics_ports` their ports, by name; `apis` has the API processes
    by number, and `ports` and `api_metrics_ports` theirs. `operating` is held while an operator's command runs.
    `done` counts what operators have done, and `wrong` says what they and the faults found to be wrong. `writer` is the
    core product; `others`, by kind and key, is what others than its three organizations have published last. `mark` has
    the end offsets when the last fault ended. `told_seconds` is how long `status` may take to name a problem.
    `unlisted` are the message keys of bad records whose dead letters Redis has evicted.

    `ways` are proxies on the way of projectors and operators to the brokers. `clock`: the one server of Redis has a
    clock that can be changed (`set_clock`).
    """

    def __init__(
        self,
        kafka: Kafka,
        prefix: str,
        directory: Path,
        brokers: ApacheKafka | None = None,
        *,
        redis: RedisKind = "address",
        projectors: int = 2,
        processes: int = 2,
        hosts: Sequence[str] = (),
        ways: Sequence[FaultyProxy] = (),
        clock: bool = False,
        told_seconds: float = 10.0,
        **settings: object,
    ) -> None:
        self._brokers = brokers
        self.directory = directory
        self.ways = ways
        self._clock = Clock(directory) if clock else None
        self.told_seconds = told_seconds
        self.told_after = 0.0
        self._stack = ExitStack()
        self.sentinel: RedisSentinel | None = None
        self._cluster: RedisCluster | None = None
        match redis:
            case "sentinel":
                self.sentinel = self._stack.enter_context(RedisSentinel(directory / "redis"))
            case "cluster":
                cluster = RedisCluster(
                    directory / "redis", replicas=True, appendonly=True, options=_REDIS_OPTIONS, hosts=hosts
                )
                self._cluster = self._stack.enter_context(cluster)
        self.redis = self.new_redis() if redis == "address" else self.primaries[0]
        self.to_projector = self._stack.enter_context(faulty_proxy(self.redis.port))
        self.to_api = self._stack.enter_context(faulty_proxy(self.redis.port))
        # Small batches, so that much can happen between them.
        own: dict[str, object] = {
            "redis_url": self._url(self.to_projector),
            "batch_records": 200,
            "kafka_session_timeout": 2,
            "api_redis_timeout": 0.5,
        }
        if ways:
            own["kafka_bootstrap_servers"] = ",".join(f"127.0.0.1:{way.port}" for way in ways)
        server = self.sentinel or self._cluster or self.redis
        super().__init__(self._stack.enter_context(Leadview(kafka, prefix, server, directory, **own | settings)))
        self.leadview.calls_plain_commands = False
        self.projectors: dict[str, Child] = {}
        count = 1 if kafka.kind == "embedded" else projectors
        self.metrics_ports = {f"projector-{number + 1}": free_port() for number in range(count)}
        self.partitions = dict.fromkeys(resources.KINDS, PARTITIONS)
        self.operating = threading.Lock()
        self.wrong: list[str] = []
        self.unlisted: set[bytes] = set()
        self.writer = Writer(self, Core(0), 0.0)
        self.others: dict[tuple[resources.Kind, bytes], Message] = {}
        self.mark: dict[tuple[str, int], int] = {}
        self.done: Counter[str] = Counter()
        self.ports = [free_port() for _ in range(processes)]
        self.api_metrics_ports = [free_port() for _ in self.ports]
        self.apis: dict[int, Child] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    @property
    def core(self) -> Core:
        return self.writer.core

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

    def start(self, partitions: int = PARTITIONS) -> None:
        topics = self.leadview.topics
        if self._brokers:
            for node in topics.admin.list_topics(timeout=PATIENCE_SECONDS).brokers:
                topics.alter("broker", str(node), OFTEN)
        topics.create(partitions)
        for kind in resources.KINDS:
            self.compact_soon(kind, partitions)
        for name in self.metrics_ports:
            self.start_projector(name)
        for number in range(len(self.ports)):
            self.start_api(number)

    def compact_soon(self, kind: resources.Kind, partitions: int = PARTITIONS) -> None:
        """Note that the topic of a kind was created, and let the cleaner take what is older than a second there."""
        self.partitions[kind] = partitions
        if self.leadview.kafka.kind != "embedded":
            self.leadview.topics.alter("topic", self.leadview.topics.name(kind), _SOON)

    def start_projector(self, name: str, **settings: object) -> None:
        port = self.metrics_ports[name]
        self.projectors[name] = self.leadview.start("run", command=PROJECTOR, log=name, metrics_port=port, **settings)

    def start_api(self, number: int) -> None:
        """Start an API process on its port; returns when it answers."""
        ports = {"api_port": self.ports[number], "metrics_port": self.api_metrics_ports[number]}
        log, url = f"api-{number + 1}", self._url(self.to_api)
        self.apis[number] = self.leadview.start(command=API, log=log, redis_url=url, **ports)
        wait_until(while_running(self.apis[number], ApiServer(self.ports[number]).answers), "the API answers")

    def _url(self, proxy: FaultyProxy) -> str:
        if self._cluster:
            return self._cluster.url_of_all
        return self.sentinel.url if self.sentinel else proxy.url

    def command(self, *words: str, program: Sequence[str] = PROJECTOR) -> Finished:
        return self.leadview.run(*words, command=program)

    def succeed(self, *words: str, program: Sequence[str] = PROJECTOR) -> None:
        """Run an operator's command, and again after a failure, until it succeeds. Raises TimeoutError."""
        outputs = [""]

        def succeeds() -> bool:
            done = self.command(*words, program=program)
            outputs.append(done.output)
            return done.status == 0

        wait_until(succeeds, lambda: f"{words} succeeds: {outputs[-1]}", RECOVER_SECONDS)

    @property
    def accepting(self) -> tuple[str, ...]:
        """The command that accepts the bad records that are known. Compaction leaves so many more of them than of
        others that lines would halt.
        """
        return ("dead-letters", "accept", "--topic", self.leadview.topics.name(resources.LEAD), "--note", "known")

    def drop_all(self) -> None:
        def is_alone() -> bool:
            state = self.leadview.state()
            others = state.known - {state.live}
            for generation in others:
                self.command("drop", str(number_of(generation)))
            return not others

        self.wait_until(is_alone, "only the live generation is left")

    def expect_incomplete_shards(self, because: str) -> float:
        """Note what is wrong if `status --json` does not say that a shard is incomplete, whether all is well or not.
        Returns when it was asked.
        """
        said = self.command("status", "--json").stdout
        if not said or not orjson.loads(said).get("incomplete_shards"):
            self.wrong.append(f"{because}, and status says {said}")
        return now()

    def unexplained_keys(self) -> list[str]:
        """Returns what is wrong with the keys of generations: the control record neither writes nor drops theirs."""
        state = self.leadview.state()
        explained = {*state.written, *state.dropping}
        matches = (names.IN_GENERATION.fullmatch(key) for key in self.leadview.redis.scan_iter(names.ALL, count=5000))
        all_found = {match[0]: GenerationId(match[2].decode()) for match in matches if match}
        found = {name: generation for name, generation in all_found.items() if generation not in explained}
        return [
            f"{count} keys of generation {number}, such as {next(key for key in found if found[key] == number)!r}"
            for number, count in Counter(found.values()).items()
        ]

    def new_redis(self) -> RedisServer:
        directory = Path(mkdtemp(prefix="redis-", dir=self.directory))
        program = self._clock.redis_program if self._clock else None
        server = RedisServer.start(directory, appendonly=True, options=_REDIS_OPTIONS, program=program)
        self._stack.callback(server.kill)
        return server

    def promote(self, server: RedisServer) -> None:
        self.redis = server
        self.leadview.redis.close()
        self.leadview.use_redis(server)
        self.to_projector.switch(server.port)
        self.to_api.switch(server.port)

    def dark_until(self, certain: float) -> float:
        """Wait until the live generation is complete again. Returns the last time at which it certainly was not, which
        is `certain` or later. Raises TimeoutError.

        It is the time *before* it was asked: afterwards, the machine may stand still while the condition becomes true.
        """
        last = certain

        def is_served() -> bool:
            nonlocal last
            asked_at = now()
            if self.leadview.is_served():
                return True
            last = asked_at
            return False

        self.wait_until(is_served, "the live generation is complete")
        return last

    def catch_up(self) -> None:
        """Wait until everything that Kafka has by now is applied and served, and note it. Raises TimeoutError."""
        up_to, end_offsets = now(), dict(self.leadview.topics.end_offsets)

        def has_applied() -> bool:
            applied = self.leadview.has_applied(end_offsets)
            return applied and not self.leadview.redis.exists(names.JOBS) and self.leadview.is_served()

        self.wait_until(has_applied, "all is applied again")
        wait_until(self._is_served_by_api, "the API serves all organizations again", RECOVER_SECONDS)
        self.history.caught_up.append(CaughtUp(up_to, now()))

    @contextmanager
    def losing(self, back_to: float = -inf, organizations: frozenset[str] | None = None) -> Iterator[Loss]:
        """`History.losing`. For the organizations that are named, 503 is right from now on until all is recovered."""
        with self.history.losing(back_to, organizations) as loss:
            self.unavailable(organizations or frozenset())
            yield loss

    def problems(self, **settings: object) -> list[str]:
        """Returns the kinds of the problems that `status` names now."""
        done = self.leadview.run("status", "--json", command=PROJECTOR, **settings)
        kinds: list[str] = orjson.loads(done.stdout)["kinds"] if done.stdout else []
        return kinds

    def is_told(self, kind: str, since: float = inf, **settings: object) -> bool:
        """Returns whether `status` names this problem soon after a projector lives; or a projector has logged that it
        has ended since then, because that may be before `status` looks. Notes it if neither does.
        """
        self.wait_until(lambda: projectors(self.leadview.redis), "a projector lives")
        began_at = asked_at = now()
        while asked_at <= began_at + self.told_seconds:
            asked_at = now()
            if kind in self.problems(**settings) or self._has_ended(kind, since):
                self.told_after = max(self.told_after, asked_at - began_at)
                return True
        self.wrong.append(f"status does not name {kind} within {self.told_seconds:.0f} s")
        return False

    def _has_ended(self, kind: str, since: float) -> bool:
        after = utc(round((time.time() - now() + since) * 1000)) if since < inf else "never"
        lines = [line for child in self.projectors.values() for line in child.log.read_text("utf-8").splitlines()]
        ended = [line for line in lines if "no longer a problem" in line and f'"problem":"{kind}"' in line]
        return any(orjson.loads(line)["time"] >= after for line in ended)

    def judge(self, kind: str, began_at: float, way_out: Callable[[], object]) -> None:
        """Check that `status` names this break, and does so no more after its way out, which is applied if it was
        named: otherwise nobody knows of it. Until then, wrong answers are explained.
        """
        if not self.is_told(kind, began_at):
            return
        way_out()
        wait_until(lambda: kind not in self.problems(), f"{kind} has ended", RECOVER_SECONDS, interval=1.0)
        self.history.losses.append(Loss(began_at, now(), -inf, named=True))

    def set_clock(self, seconds: int) -> None:
        """Let the clock of Redis be so many seconds ahead."""
        assert self._clock, "the clock of Redis cannot be changed here"
        self._clock.set(seconds)

    def unavailable(self, organizations: frozenset[str]) -> None:
        """Note that from now on until all is recovered, 503 is right for these organizations."""
        self.history.outages.append(Outage(organizations, now()))

    def wait_until(self, predicate: Callable[[], object], description: str) -> None:
        """Wait for something that can be asked of Redis only while it is there. Raises TimeoutError."""

        def holds() -> object:
            with suppress(*ABSENT):
                return predicate()
            return False

        wait_until(holds, description, RECOVER_SECONDS)

    def _is_served_by_api(self) -> bool:
        keys = [key_of(id_) for id_ in ORGANIZATIONS]
        return all(
            api.is_ready() and all(api.get(LEADS + UNKNOWN, key=key).status != 503 for key in keys)
            for api in map(ApiServer, self.ports)
        )

    def is_settled(self) -> bool:
        """Is each partition read by one projector, and does each projector read some? Until then a group rebalances,
        and what is published next waits, although all before it was applied.
        """
        heartbeats = projectors(self.leadview.redis)
        shares = [share for heartbeat in heartbeats.values() for share in heartbeat.partitions.values()]
        everyone = heartbeats.keys() == {child.pid for child in self.projectors.values()}
        return everyone and sum(shares) == sum(self.partitions.values()) and all(shares)


class Clock:
    """A clock for `redis-server` that can be ahead or behind, by libfaketime."""

    def __init__(self, directory: Path) -> None:
        self._offset = directory / "clock"
        self.set(0)
        printed = printed_by([FAKETIME, "-f", "+0", "env"])  # it says itself where its library is
        library = next(line for line in printed.splitlines() if line.startswith("LD_PRELOAD="))
        self.redis_program = directory / "redis-server-with-clock"
        self.redis_program.write_text(
            f"#!/bin/sh\nexec env '{library}' FAKETIME_TIMESTAMP_FILE={self._offset} FAKETIME_NO_CACHE=1 "
            f'FAKETIME_DONT_FAKE_MONOTONIC=1 {redis_program()} "$@"\n'
        )
        self.redis_program.chmod(0o755)

    def set(self, seconds: int) -> None:
        """Let the clock be so many seconds ahead."""
        written = self._offset.with_suffix(".new")
        written.write_text(f"{seconds:+d}")
        written.replace(self._offset)


def projectors(client: Any) -> dict[int, Heartbeat]:
    """Returns the recent heartbeats of projectors by process id. Redis and this program read the same clock."""
    found = {}
    for id_, written in client.hgetall(names.WRITERS).items():
        at, _, stored = written.partition(b" ")
        heartbeat = msgspec.json.decode(stored, type=Heartbeat)
        if heartbeat.role == "run" and time.time() - int(at) / 1000 < _HEARTBEAT_SECONDS:
            found[int(id_.split(b"-")[-2])] = heartbeat
    return found
