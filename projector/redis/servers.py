"""The Redis servers behind the store: one server, the master that Sentinels monitor, or the primaries of a cluster.

redis-py parses URLs, and implements TLS, Sentinel and the map of a cluster's slots. Commands are sent as bytes, in one
pipeline to each server, concurrently.

A server and its replicas share a replication id. It changes with a restart or a failover, and writes that were
acknowledged before may then be missing. So every new connection asks for the id, and the *replication epoch* counts its
changes. A caller passes the epoch in which it wrote, so that its next commands fail unless they reach the same data.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from redis.asyncio import ConnectionPool, Redis, Sentinel
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisClusterException, RedisError, ResponseError

from projector.redis.cluster import Cluster
from projector.redis.fence import Fence
from projector.redis.node import TIMEOUT, ClientConnection, Node, ReplicationEpoch, Request, pack
from schemas.redis_access import RedisAccess, redis_access
from schemas.settings import RedisSettings

ERRORS = (RedisError, RedisClusterException, OSError, TimeoutError)
"""All errors that a call to Redis can raise."""

_SENTINEL_TIMEOUT = 5.0
"""Seconds that a Sentinel has to answer, also over TLS from a region that is far away. Then the next one is asked."""

__all__ = ["ERRORS", "NoScriptError", "Request", "ResponseError", "Servers", "pack", "servers"]


class Servers(Protocol):
    """What the store needs from Redis. Every method may raise `ERRORS`."""

    sharded: bool
    """Whether there are several servers, each with a part of the keys."""
    client: Any
    """redis-py's client, for single commands: Redis or RedisCluster."""
    replication_epoch: ReplicationEpoch
    map_version: int
    """Increases whenever slots have moved."""

    async def send(
        self, requests: Sequence[Request], replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        """Returns the replies in order, including errors.

        Raises ReplicationEpochChanged if `replication_epoch` is no longer the current one, and what the fence raises.
        """

    async def info(self, section: str) -> list[dict[str, Any]]:
        """Returns the fields of this section of INFO, for each server."""

    async def shards(self) -> list[frozenset[int]]:
        """Returns the slots of each primary, the same sets while the map is the same; nothing if this is no cluster."""

    def address(self, key: bytes) -> str:
        """Returns the address of the server of a key; of a cluster only. Raises RedisError if nobody serves it."""

    async def silent(self) -> tuple[list[str], int]:
        """Returns the addresses of the primaries of a cluster that do not answer, and how many primaries there are."""

    async def wrong_url(self) -> str | None:
        """Returns why the kind of URL does not fit the server; None if it fits."""

    async def load(self, scripts: Sequence[str]) -> None:
        """Load these scripts into every server."""

    async def clients(self) -> list[ClientConnection]:
        """Returns all connections that any program has to the servers."""

    async def kill(self, clients: Sequence[ClientConnection]) -> None:
        """Close these connections."""

    async def close(self) -> None:
        """Close all connections."""


def servers(settings: RedisSettings, client_name: str) -> Servers:
    """Returns the servers that the settings name. It does not connect yet. All connections have the name."""
    access = redis_access(settings)
    options = access.over({**parse_url(access.server)})
    # By default redis-py sends a command that timed out again, ten times. Only the line may decide to retry, because it
    # first compares the positions in Redis.
    options |= {
        "protocol": 2,
        "socket_timeout": TIMEOUT,
        "socket_connect_timeout": TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "client_name": client_name,
    }
    match access.kind:
        case "cluster":
            return Cluster(access.hosts, options)
        case "sentinel":
            return OneServer(_sentinel_pool(access, options), must_be_master=True)
        case _:
            return OneServer(ConnectionPool(**options))


def _sentinel_pool(access: RedisAccess, options: dict[str, Any]) -> ConnectionPool:
    options = {name: value for name, value in options.items() if name not in ("host", "port", "connection_class")}
    sentinel_options: dict[str, Any] = {
        **access.sentinel_user,
        "socket_timeout": _SENTINEL_TIMEOUT,
        "socket_connect_timeout": _SENTINEL_TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "ssl": access.encrypted,
    } | {name: value for name, value in options.items() if name.startswith("ssl_")}
    sentinel = Sentinel(list(access.hosts), sentinel_kwargs=sentinel_options)  # type: ignore[no-untyped-call]
    return SentinelConnectionPool(access.master, sentinel, ssl=access.encrypted, **options)  # type: ignore[no-untyped-call]


class OneServer:
    """A single server, or the master that Sentinels monitor."""

    sharded = False
    map_version = 0

    def __init__(self, pool: ConnectionPool, *, must_be_master: bool = False) -> None:
        self.replication_epoch = ReplicationEpoch()
        self._node = Node(pool, self.replication_epoch, must_be_master=must_be_master)
        self.client = Redis(connection_pool=pool)

    async def send(
        self, requests: Sequence[Request], replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        return await self._node.send([request.packed for request in requests], replication_epoch, fence)

    async def info(self, section: str) -> list[dict[str, Any]]:
        return [await self.client.info(section)]

    async def shards(self) -> list[frozenset[int]]:
        return []

    async def silent(self) -> tuple[list[str], int]:
        return [], 0

    def address(self, _key: bytes) -> str:
        raise NotImplementedError("only a cluster has several servers")

    async def wrong_url(self) -> str | None:
        if not (await self.client.info("cluster")).get("cluster_enabled"):
            return None
        # The reply is a list of lists: first slot, last slot, primary, replicas.
        found: Any = await self.client.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
        if len({(host, port) for _, _, (host, port, *_), *_ in found}) < 2:
            return None
        return "it is one node of a cluster: write redis+cluster:// (or rediss+cluster://) in LEADVIEW_REDIS_URL"

    async def load(self, scripts: Sequence[str]) -> None:
        for script in scripts:
            await self.client.script_load(script)

    async def clients(self) -> list[ClientConnection]:
        return [ClientConnection(None, found["id"], found["name"]) for found in await self.client.client_list()]

    async def kill(self, clients: Sequence[ClientConnection]) -> None:
        for client in clients:
            await self.client.client_kill_filter(_id=client.id)

    async def close(self) -> None:
        await self.client.aclose()
        await self._node.close()
        sentinel = getattr(self._node.pool, "sentinel_manager", None)
        if sentinel:
            await sentinel.aclose()
