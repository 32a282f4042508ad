"""Every connection to Redis, to Sentinels and to Kafka is kept alive by the kernel: what stands on the way must not
forget one that is idle, and one whose other side is gone must end.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from api.redis.links import links
from devstack.redis_cluster import RedisCluster
from devstack.redis_sentinel import RedisSentinel
from projector.kafka.reader import open_reader
from projector.redis.store import Store
from runtime.redis.access import location
from schemas import resources
from schemas.redis_url import redis_url
from schemas.settings import ApiSettings, ProjectorSettings
from tests.harness.api_server import connected
from tests.harness.services import Kafka, RedisService
from tests.harness.topics import Topics

_OPTIONS = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))


def kept_alive(*ports: int) -> list[tuple[bool, bool]]:
    """Returns, for each connection of this process to these ports, whether it is kept alive, and whether it ends if
    what is sent over it is not acknowledged.
    """
    found = []
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(file.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(file.name))) as connection:
                    if connection.family != socket.AF_UNIX and connection.getpeername()[1] in ports:
                        keeps, ends = (connection.getsockopt(*option) for option in _OPTIONS)
                        found.append((bool(keeps), 0 < ends <= 60_000))
    return found


def port_of(url: str) -> int:
    return redis_url(url).hosts[0][1]


async def test_connections_of_a_worker_of_the_api_are_kept_alive(redis_server: RedisService) -> None:
    api_servers = links(ApiSettings(redis_url=redis_server.url))
    async with connected(api_servers):
        await api_servers.link(b"").read_large(b"", b"nothing", None)
        assert kept_alive(port_of(redis_server.url)) == [(True, True)] * 2


async def test_connections_of_a_projector_are_kept_alive(redis_server: RedisService) -> None:
    store = Store(ProjectorSettings(redis_url=redis_server.url))
    await store.ask_one(b"GET", b"nothing")
    assert kept_alive(port_of(redis_server.url)) == [(True, True)]
    await store.close()


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
async def test_connections_that_ask_where_redis_is_are_kept_alive(kind: str, request: pytest.FixtureRequest) -> None:
    service: RedisSentinel | RedisCluster = request.getfixturevalue(kind)
    where = location(ProjectorSettings(redis_url=service.url), 5.0, first=5.0)
    await (where.read() if kind == "cluster" else where.find())  # type: ignore[union-attr]  # as the kind says
    found = kept_alive(*(port for _, port in redis_url(service.url).hosts))
    assert found == [(True, True)] * len(found) != []
    await where.close()


async def test_connections_to_kafka_are_kept_alive(kafka: Kafka, topic_prefix: str) -> None:
    Topics(kafka, topic_prefix).create(1)
    settings = ProjectorSettings(kafka_bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    async with open_reader(settings, [resources.LEAD]) as reader:
        await reader.range(await reader.existing_partitions())
        # Not those of this process to that port: the client that has created the topic has some as well.
        sockets = [it._writer.get_extra_info("socket") for it in reader._client._conns.values()]
        found = [tuple(bool(each.getsockopt(*option)) for option in _OPTIONS) for each in sockets]
        assert found == [(True, True)] * len(found) != []
