"""Servers for tests: real ones, started once a session.

Every test gets an empty Redis, and topics of its own where it takes `topic_prefix`.
"""

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from devstack.embedded_kafka import EmbeddedKafka
from devstack.fault_proxy import FaultyProxy, faulty_proxy
from devstack.jars import JarsMissing
from devstack.redis_cluster import RedisCluster
from devstack.redis_sentinel import RedisSentinel
from devstack.redis_server import RedisServer, RedisServerMissing
from projector.redis.store import Store
from schemas.settings import ProjectorSettings
from tests.harness import certificates
from tests.harness.api_server import UNLIMITED, ApiServer, patient, running_api
from tests.harness.certificates import Certificate
from tests.harness.leadview import Leadview
from tests.harness.projection import Projection, open_projection
from tests.harness.records import Caller, Records
from tests.harness.services import (
    Kafka,
    RedisService,
    client_of,
    empty_redis,
    not_available,
    redis_with_users,
    start_kafka,
    start_redis,
)

_REDIS_FIXTURES = ("redis_server", "redis_cluster_server", "redis_shards")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, object, object]:
    with _skipped_without_servers():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    with _skipped_without_servers():
        return (yield)


@contextmanager
def _skipped_without_servers() -> Iterator[None]:
    try:
        yield
    except (RedisServerMissing, JarsMissing) as error:
        not_available(str(error))


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisService]:
    with ExitStack() as stack:
        yield start_redis(stack, tmp_path_factory.mktemp("redis"))


@pytest.fixture
def records(redis_server: RedisService) -> Iterator[Records]:
    with redis_server.client() as client:
        yield Records(client)


@pytest.fixture
def caller(records: Records) -> Caller:
    return records.caller()


@pytest.fixture
def proxy(redis_server: RedisService) -> Iterator[FaultyProxy]:
    """A way to the same Redis that fails as the test wants."""
    with faulty_proxy(urlsplit(redis_server.url).port or 6379) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def api(redis_server: RedisService) -> Iterator[ApiServer]:
    with running_api(patient(redis_server.url)) as api:
        yield api


@pytest.fixture(scope="session")
def redis_cluster_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisService]:
    """A single node in cluster mode: it serves every slot, and refuses scripts whose keys are in several."""
    with RedisServer.start(tmp_path_factory.mktemp("redis-cluster"), cluster=True) as server:
        yield RedisService(server.url)


@pytest.fixture(scope="session")
def three_primaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """A cluster. A test that moves its slots moves them back: `cluster` does that."""
    with RedisCluster(tmp_path_factory.mktemp("redis-shards")) as cluster:
        yield cluster


@pytest.fixture
def cluster(three_primaries: RedisCluster) -> Iterator[RedisCluster]:
    """Three primaries. Afterwards they are empty, and all slots are where they were."""
    with three_primaries.keeping_slots():
        yield three_primaries
        with client_of(three_primaries.url) as client:
            client.flushall(target_nodes="primaries")


@pytest.fixture
async def cluster_store(cluster: RedisCluster) -> AsyncIterator[Store]:
    store = Store(ProjectorSettings(redis_url=cluster.url))
    yield store
    await store.close()


@pytest.fixture(scope="session")
def redis_shards(three_primaries: RedisCluster) -> RedisService:
    return RedisService(three_primaries.url)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Kafka]:
    """One for all processes of pytest-xdist, whose temporary directories are in the same one."""
    own = tmp_path_factory.getbasetemp()
    with ExitStack() as stack:
        shared = (own if worker_id == "master" else own.parent) / "shared-kafka"
        yield start_kafka(stack, tmp_path_factory.mktemp("kafka"), shared)


@pytest.fixture(scope="session")
def embedded_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with EmbeddedKafka.start(tmp_path_factory.mktemp("embedded-kafka")) as embedded:
        yield Kafka("embedded", embedded.bootstrap_servers, embedded.create_topic)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificates.create(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def topic_prefix() -> str:
    return f"t{uuid4().hex[:12]}."


@pytest.fixture(autouse=True)
def _real_kafka_where_marked(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("apache") and request.getfixturevalue("kafka").kind == "embedded":
        not_available("the embedded Kafka is not enough for this test, and there is no other")


@pytest.fixture(autouse=True)
def _only_our_keys(request: pytest.FixtureRequest) -> Iterator[None]:
    services = [request.getfixturevalue(name) for name in _REDIS_FIXTURES if name in request.fixturenames]
    yield
    for service in services:
        empty_redis(service)


@pytest.fixture(
    params=[
        pytest.param("redis_server", id="single"),
        pytest.param("redis_cluster_server", id="cluster", marks=pytest.mark.long),
        pytest.param("redis_shards", id="shards", marks=pytest.mark.long),
    ]
)
async def projection(request: pytest.FixtureRequest) -> AsyncIterator[Projection]:
    """The projector's way into Redis: on a single server, on one in cluster mode, and on a cluster of three. The tables
    of the scripts find on one server what they find on all three; `everywhere` is for a call of each script.
    """
    service = request.getfixturevalue(request.param)
    async with open_projection(service) as projection:
        yield projection
    empty_redis(service)


@pytest.fixture
async def alone(redis_server: RedisService) -> AsyncIterator[Projection]:
    """The projector's way into a single server."""
    async with open_projection(redis_server) as projection:
        yield projection


@pytest.fixture
async def sharded(redis_shards: RedisService) -> AsyncIterator[Projection]:
    async with open_projection(redis_shards) as projection:
        yield projection


@pytest.fixture
def served(projection: Projection) -> Iterator[ApiServer]:
    """The API on the Redis of `projection`, without limits but those of organizations."""
    with running_api(patient(projection.settings.redis_url, **UNLIMITED)) as api:
        yield api


everywhere = pytest.mark.parametrize(
    "projection",
    [
        pytest.param("redis_server", id="single"),
        pytest.param("redis_cluster_server", id="cluster"),
        pytest.param("redis_shards", id="shards"),
    ],
    indirect=True,
)
"""For a test that `make test` runs on every kind of Redis."""


@pytest.fixture
def leadview(kafka: Kafka, redis_server: RedisService, topic_prefix: str, tmp_path: Path) -> Iterator[Leadview]:
    """A Leadview with topics; no process runs yet."""
    with new_leadview(kafka, topic_prefix, redis_server, tmp_path) as leadview:
        yield leadview


@pytest.fixture(params=[pytest.param("redis_server", id="one server"), pytest.param("redis_shards", id="three shards")])
def any_redis(request: pytest.FixtureRequest) -> Iterator[RedisService]:
    service: RedisService = request.getfixturevalue(request.param)
    yield service
    empty_redis(service)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of one test, because the test pauses it or changes its configuration."""
    with RedisServer.start(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def durable_redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer.start(tmp_path / "redis", appendonly=True, options=["--appendfsync", "always"]) as server:
        yield server


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[RedisSentinel]:
    with RedisSentinel(tmp_path / "sentinel") as sentinel:
        yield sentinel


@pytest.fixture
def users_redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_with_users(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def leadview_with_own_redis(
    kafka: Kafka, topic_prefix: str, own_redis: RedisServer, tmp_path: Path
) -> Iterator[Leadview]:
    """A Leadview without topics, with a Redis of its own; no process runs yet."""
    with Leadview(kafka, topic_prefix, own_redis, tmp_path, kafka_session_timeout=2) as leadview:
        yield leadview


@pytest.fixture
def leadview_on_cluster(
    kafka: Kafka, redis_shards: RedisService, topic_prefix: str, tmp_path: Path
) -> Iterator[Leadview]:
    """The same on a cluster of three primaries."""
    with new_leadview(kafka, topic_prefix, redis_shards, tmp_path) as leadview:
        yield leadview


def new_leadview(kafka: Kafka, topic_prefix: str, redis: RedisService, directory: Path) -> Leadview:
    settings = {"batch_records": 300}  # many checkpoints
    if kafka.kind == "apache":  # others may refuse less than the six seconds that are Kafka's own default
        settings["kafka_session_timeout"] = 2
    leadview = Leadview(kafka, topic_prefix, redis, directory, **settings)
    leadview.topics.create()
    return leadview
