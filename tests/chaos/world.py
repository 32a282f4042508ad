"""All that runs in a chaos run: Kafka, Redis behind two fault proxies or watched by a Sentinel, projectors, the API."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from math import inf
from pathlib import Path
from typing import Any, Self

import redis

from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.ports import free_port
from devstack.redis_sentinel import RedisSentinel
from devstack.redis_server import RedisServer
from devstack.waiting import wait_until
from schemas import names, resources
from tests.chaos import brokers as kafka_brokers
from tests.chaos.history import CaughtUp, History, Loss, now
from tests.chaos.proxy import FaultProxy
from tests.harness.api_server import ApiServer
from tests.harness.crm import Message
from tests.harness.flow import Flow
from tests.harness.services import Kafka
from tests.harness.waiting import PATIENCE_SECONDS

PROJECTORS = ("projector-1", "projector-2")
RECOVER_SECONDS = 3 * PATIENCE_SECONDS
_ABSENT = (redis.RedisError, OSError)
# The log is written before the reply, whatever the disk does: a killed Redis has lost nothing that it acknowledged.
_REDIS_OPTIONS = ("--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")


class World:
    """Starts with `start`, ends with the block. `brokers` are there where they may be harmed, too.

    `sentinel`: Redis is what a Sentinel names, and the proxies lead nobody anywhere.
    """

    def __init__(
        self,
        kafka: Kafka,
        prefix: str,
        directory: Path,
        brokers: ApacheKafka | None = None,
        *,
        api_redis_timeout: float = 0.5,
        sentinel: bool = False,
    ) -> None:
        self.brokers = brokers
        self._api_redis_timeout = api_redis_timeout
        self.history = History()
        self.directory = directory
        self._stack = ExitStack()
        self._servers = 0
        self.sentinel = self._stack.enter_context(RedisSentinel(directory / "redis")) if sentinel else None
        self.redis = self.sentinel.master if self.sentinel else self.new_redis()
        self.to_projector = self._stack.enter_context(FaultProxy(self.redis.port))
        self.to_api = self._stack.enter_context(FaultProxy(self.redis.port))
        self.flow = self._stack.enter_context(Flow(kafka, prefix, self.sentinel or self.redis, directory))
        self.projectors: dict[str, Child] = {}
        self.partitions = dict.fromkeys(resources.KINDS, 0)
        self.publishing = threading.Lock()
        """Held while something is being published."""
        self.operating = threading.Lock()
        """Held while an operator's command runs."""
        self.bad_keys: set[str] = set()
        """Message keys of all bad records that the topics hold."""
        self.again: Callable[[resources.Kind], Iterable[Message]] = lambda _: ()
        """What the core product publishes where it publishes all of a kind once more."""
        self.api_port = free_port()
        self._api: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    @property
    def client(self) -> Any:
        """The present Redis, without a proxy."""
        return self.flow.client

    @property
    def api(self) -> Child:
        assert self._api is not None, "the API has not been started"
        return self._api

    def start(self, partitions: int = 2) -> None:
        """Topics, projectors, the API."""
        if self.brokers:
            kafka_brokers.compact_often(self.flow.kafka.bootstrap_servers)
        for kind in resources.KINDS:
            self._create_topic(kind, partitions)
        for name in PROJECTORS:
            self.start_projector(name)
        self.start_api()

    def start_projector(self, name: str) -> None:
        self.projectors[name] = self.flow.start(name, "run", **self.projector_settings())

    def projector_settings(self) -> dict[str, object]:
        """Small batches, so that much can happen between them."""
        return {"redis_url": self._url(self.to_projector), "batch_records": 200, "kafka_session_timeout": 2}

    def start_api(self) -> None:
        """The API on its port; returns when it answers."""
        environment = self.flow.environment(
            redis_url=self._url(self.to_api), api_port=self.api_port, api_redis_timeout=self._api_redis_timeout
        )
        self._api = Child([sys.executable, "-m", "api"], log=self.directory / "api.log", environment=environment)
        self._stack.callback(self._api.kill)
        wait_until(self.answers, "the API answers")

    def _url(self, proxy: FaultProxy) -> str:
        return self.sentinel.url if self.sentinel else proxy.url

    def answers(self) -> bool:
        """Does the API answer at all?"""
        self.api.check_running()
        with suppress(OSError):
            return ApiServer(self.api_port).get("/healthz").status == 200
        return False

    def is_ready(self) -> bool:
        with suppress(OSError):
            return ApiServer(self.api_port).get("/readyz").status == 200
        return False

    def _create_topic(self, kind: resources.Kind, partitions: int) -> None:
        self.flow.kafka.create_topic(self.flow.topic(kind), partitions)
        kafka_brokers.compact_soon(self.flow.kafka.bootstrap_servers, self.flow.topic(kind))
        self.partitions[kind] = partitions

    def make_topic_again(self, kind: resources.Kind, partitions: int = 2) -> None:
        """Delete the topic of a kind, create it anew, and publish into it what the core product holds."""
        topic = self.flow.topic(kind)
        kafka_brokers.delete_topic(self.flow.kafka.bootstrap_servers, topic)
        self._create_topic(kind, partitions)
        self.flow.topic_is_new(kind)
        self.flow.publish_all(self.again(kind))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """An operator's command, to its end. Raises subprocess.TimeoutExpired."""
        return self.flow.command(*words, redis_url=self._url(self.to_projector), kafka_session_timeout=2)

    def add_partition(self, kind: resources.Kind) -> None:
        """One more for the topic of this kind."""
        with self.publishing:
            self.partitions[kind] += 1
            self.flow.add_partitions(kind, self.partitions[kind])

    def new_redis(self) -> RedisServer:
        """One more server, empty."""
        self._servers += 1
        directory = self.directory / f"redis-{self._servers}"
        server = RedisServer.start(directory, appendonly=True, options=_REDIS_OPTIONS)
        self._stack.callback(server.kill)
        return server

    def promote(self, server: RedisServer) -> None:
        """Make another server the one that everybody uses."""
        self.redis = self.flow.server = server
        self.flow.client.close()
        self.flow.client = redis.Redis(port=server.port, socket_timeout=20)
        self.to_projector.switch(server.port)
        self.to_api.switch(server.port)

    def copy_redis(self) -> Path:
        """The log of Redis as it is now: what it could be restored from."""
        copy = self.directory / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for path in self._log_files():
            target = copy / path.relative_to(self.redis.directory)
            target.parent.mkdir(exist_ok=True)
            shutil.copy(path, target)
        return copy

    def restore_redis(self, copy: Path) -> None:
        """Put the copy in the place of the log, of a Redis that does not run, and start it."""
        for path in self._log_files():
            path.unlink()
        shutil.copytree(copy, self.redis.directory, dirs_exist_ok=True)
        self.redis.restart()

    def _log_files(self) -> list[Path]:
        """Redis 7 has a folder of them, older ones have one file."""
        folder = self.redis.directory / "appendonlydir"
        return [path for path in (self.redis.directory / "appendonly.aof", *folder.glob("*")) if path.is_file()]

    def live(self) -> int:
        """The generation that is served; 0 where there is none, or no Redis."""
        with suppress(*_ABSENT):
            return int(self.client.hget(names.GENERATIONS, "live") or 0)
        return 0

    def catch_up(self, seconds: float = RECOVER_SECONDS) -> None:
        """Until all that Kafka has by now is applied and served, and note it. Raises TimeoutError."""
        up_to, ends = now(), dict(self.flow.ends)
        wait_until(lambda: self._has_applied(ends), "all is applied again", seconds)
        wait_until(self.is_ready, "the API is ready again", seconds)
        self.history.caught_up.append(CaughtUp(up_to, now()))

    def lost(self, began_at: float, back_to: float, dark: tuple[float, float] = (inf, -inf)) -> None:
        """Note that Redis has just lost what it had acknowledged since."""
        self.history.losses.append(Loss(began_at, now(), back_to, dark))

    def wait_until(self, predicate: Callable[[], object], description: str) -> None:
        wait_until(predicate, description, RECOVER_SECONDS)

    def _has_applied(self, ends: dict[tuple[str, int], int]) -> bool:
        with suppress(*_ABSENT):
            positions = self.flow.positions()
            applied = all(positions.get(place, 0) >= end for place, end in ends.items())
            return applied and not self.client.exists(names.JOBS) and self.live() > 0
        return False
