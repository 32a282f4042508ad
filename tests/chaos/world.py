"""Everything that runs in a chaos run: Leadview, and Redis behind two fault proxies or watched by a Sentinel."""

import shutil
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
from schemas import names, resources
from tests.chaos import brokers as kafka_brokers
from tests.chaos.history import CaughtUp, History, Loss, now
from tests.chaos.proxy import FaultProxy
from tests.harness.api_server import ApiServer
from tests.harness.crm import Message
from tests.harness.leadview import Finished, Leadview
from tests.harness.processes import while_running
from tests.harness.services import Kafka
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

PROJECTORS = ("projector-1", "projector-2")
RECOVER_SECONDS = 3 * PATIENCE_SECONDS
# The log is written before the reply, whatever the disk does: a killed Redis has lost nothing that it acknowledged.
_REDIS_OPTIONS = ("--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")


_ABSENT = (redis.RedisError, OSError)


class World:
    """Starts with `start`, ends with the block. `brokers` are given if faults may affect them as well.

    With `sentinel`, the processes use the Redis that a Sentinel names, and the proxies are not used.
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
        self.leadview = self._stack.enter_context(Leadview(kafka, prefix, self.sentinel or self.redis, directory))
        self.projectors: dict[str, Child] = {}
        self.partitions = dict.fromkeys(resources.KINDS, 0)
        self.publishing = threading.Lock()
        """Held while something is being published."""
        self.operating = threading.Lock()
        """Held while an operator's command runs."""
        self.bad_keys: set[str] = set()
        """Message keys of all bad records that the topics hold."""
        self.again: Callable[[resources.Kind], Iterable[Message]] = lambda _: ()
        """What the core product publishes if it publishes all entities of a kind once more."""
        self.api_port = free_port()
        self._api: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    @property
    def client(self) -> Any:
        """The present Redis, without a proxy."""
        return self.leadview.redis

    @property
    def api(self) -> Child:
        assert self._api is not None, "the API has not been started"
        return self._api

    def start(self, partitions: int = 2) -> None:
        """Topics, projectors, the API."""
        if self.brokers:
            kafka_brokers.compact_often(self.leadview.kafka.bootstrap_servers)
        self.leadview.topics.create(partitions)
        for kind in resources.KINDS:
            self._compact_soon(kind, partitions)
        for name in PROJECTORS:
            self.start_projector(name)
        self.start_api()

    def start_projector(self, name: str) -> None:
        self.projectors[name] = self.leadview.start("run", log=name, **self.projector_settings())

    def projector_settings(self) -> dict[str, Any]:
        """Small batches, so that much can happen between them."""
        return {"redis_url": self._url(self.to_projector), "batch_records": 200, "kafka_session_timeout": 2}

    def start_api(self) -> None:
        """The API on its port; returns when it answers."""
        self._api = self.leadview.start_api(
            self.api_port, redis_url=self._url(self.to_api), api_redis_timeout=self._api_redis_timeout
        )
        wait_until(while_running(self._api, ApiServer(self.api_port).answers), "the API answers")

    def _url(self, proxy: FaultProxy) -> str:
        return self.sentinel.url if self.sentinel else proxy.url

    def _compact_soon(self, kind: resources.Kind, partitions: int) -> None:
        kafka_brokers.compact_soon(self.leadview.kafka.bootstrap_servers, self.leadview.topics.name(kind))
        self.partitions[kind] = partitions

    def recreate_topic(self, kind: resources.Kind, partitions: int = 2) -> None:
        """Delete the topic of a kind, create it again, and publish to it what the core product holds."""
        self.leadview.topics.recreate(kind, partitions)
        self._compact_soon(kind, partitions)
        self.leadview.publish_all(self.again(kind))

    def command(self, *words: str) -> Finished:
        """An operator's command, to its end. Raises subprocess.TimeoutExpired."""
        return self.leadview.run(*words, redis_url=self._url(self.to_projector), kafka_session_timeout=2)

    def add_partition(self, kind: resources.Kind) -> None:
        """Add a partition to the topic of this kind."""
        with self.publishing:
            self.partitions[kind] += 1
            self.leadview.topics.add_partitions(kind, self.partitions[kind])

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

    def copy_redis(self) -> Path:
        """Copy the log of Redis as it is now. Redis can be restored from the copy."""
        copy = self.directory / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for path in self._log_files():
            target = copy / path.relative_to(self.redis.directory)
            target.parent.mkdir(exist_ok=True)
            shutil.copy(path, target)
        return copy

    def restore_redis(self, copy: Path) -> None:
        """Replace the log of a Redis that does not run by the copy, and start it."""
        for path in self._log_files():
            path.unlink()
        shutil.copytree(copy, self.redis.directory, dirs_exist_ok=True)
        self.redis.restart()

    def _log_files(self) -> list[Path]:
        """Returns the files of the log: Redis 7 has a folder of them, older ones have one file."""
        folder = self.redis.directory / "appendonlydir"
        return [path for path in (self.redis.directory / "appendonly.aof", *folder.glob("*")) if path.is_file()]

    def live(self) -> int:
        """Returns the generation that is served; 0 if there is none or Redis is not available."""
        with suppress(*_ABSENT):
            return self.leadview.state().live if self.leadview.is_served() else 0
        return 0

    def catch_up(self, seconds: float = RECOVER_SECONDS) -> None:
        """Wait until everything that Kafka has by now is applied and served, and note it. Raises TimeoutError."""
        up_to, end_offsets = now(), dict(self.leadview.topics.end_offsets)
        wait_until(lambda: self._has_applied(end_offsets), "all is applied again", seconds)
        wait_until(ApiServer(self.api_port).is_ready, "the API is ready again", seconds)
        self.history.caught_up.append(CaughtUp(up_to, now()))

    def lost(self, began_at: float, back_to: float, dark: tuple[float, float] = (inf, -inf)) -> None:
        """Note that Redis has just lost what it acknowledged since `back_to`."""
        self.history.losses.append(Loss(began_at, now(), back_to, dark))

    def wait_until(self, predicate: Callable[[], object], description: str) -> None:
        wait_until(predicate, description, RECOVER_SECONDS)

    def _has_applied(self, end_offsets: dict[tuple[str, int], int]) -> bool:
        with suppress(*_ABSENT):
            applied = self.leadview.has_applied(end_offsets)
            return applied and not self.client.exists(names.JOBS) and self.live() > 0
        return False
