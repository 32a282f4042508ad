"""The Redis servers behind the store: one, the master that Sentinels name, or the primaries of a cluster.

The only module of this package that imports redis-py, which knows the forms of addresses, TLS, Sentinel and the map of
a cluster's slots. Commands go out as bytes, in one pipeline to each server, side by side.

A *history* is what a server and its replicas have in common: the stream of writes that Redis names by its replication
id. After a restart or a failover it is another one, and what was acknowledged before may be missing. So each new
connection asks for the id, and `history` counts the changes: a caller that wrote in one history can make sure that
what it sends next reaches the same one.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any, NamedTuple, Protocol, cast
from weakref import WeakKeyDictionary

import hiredis
from redis.asyncio import ConnectionPool, Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from schemas.redis_url import Host, RedisUrl, redis_url
from schemas.settings import RedisSettings

ERRORS = (RedisError, RedisClusterException, OSError, TimeoutError)
"""All that can go wrong with Redis."""

_TIMEOUT = 10.0
_SENTINEL_TIMEOUT = 1.0
# A slot that is being moved refuses calls with several keys for as long as it takes.
_REDIRECTED_SECONDS = 5.0
_REDIRECT_PAUSE = 0.02
# Another shard may have come without a word to us.
_MAP_SECONDS, _SHORTEST_MAP_SECONDS = 10.0, 0.5

__all__ = ["ERRORS", "NoScriptError", "Request", "ResponseError", "Servers", "pack", "servers"]


class Request(NamedTuple):
    """A command as it is sent, and a key of it, which says where to."""

    key: bytes
    packed: bytes


class HistoryChanged(RedisError):
    """Redis restarted or failed over since: what was written before may be missing."""


class Histories:
    """Counts how often a server turned out to have another history than before."""

    def __init__(self) -> None:
        self.number = 0


class Servers(Protocol):
    """What the store needs. Raises `ERRORS`."""

    sharded: bool
    """Several servers, each with a part of the keys."""
    client: Any
    """redis-py's client, for single commands: Redis or RedisCluster."""
    histories: Histories
    map_version: int
    """Grows whenever slots have moved."""

    async def send(self, requests: Sequence[Request], history: int | None = None) -> list[Any]:
        """The replies in order, errors among them. With `history`, HistoryChanged where it is not this one any more."""

    async def memories(self) -> list[dict[str, Any]]:
        """INFO memory of each server."""

    async def shards(self) -> list[set[int]]:
        """The slots of each primary; none where this is no cluster."""

    async def wrong_url(self) -> str | None:
        """Why this kind of URL cannot be right for what answers there."""

    async def load(self, scripts: Sequence[str]) -> None:
        """Let every server know these scripts."""

    async def close(self) -> None:
        """Close all connections."""


def servers(settings: RedisSettings) -> Servers:
    """Those that the settings name. Nothing is connected yet."""
    url = redis_url(settings.redis_url)
    options = {**parse_url(url.server), **_overrides(settings)}
    # redis-py sends a timed-out command again by itself, ten times by default: whether to try again is the
    # line's decision, which also looks where Redis stands.
    options |= {
        "protocol": 2,
        "socket_timeout": _TIMEOUT,
        "socket_connect_timeout": _TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "client_name": "leadview-projector",
    }
    match url.kind:
        case "cluster":
            return Cluster(url.hosts, options)
        case "sentinel":
            return OneServer(_sentinel_pool(settings, url, options), must_be_master=True)
        case _:
            return OneServer(ConnectionPool(**options))


def _sentinel_pool(settings: RedisSettings, url: RedisUrl, options: dict[str, Any]) -> ConnectionPool:
    options = {name: value for name, value in options.items() if name not in ("host", "port")}
    encrypted = options.pop("connection_class", None) is SSLConnection
    ours = {
        "username": settings.redis_sentinel_username,
        "password": settings.redis_sentinel_password,
        "socket_timeout": _SENTINEL_TIMEOUT,
        "socket_connect_timeout": _SENTINEL_TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "ssl": encrypted,
    } | {name: value for name, value in options.items() if name.startswith("ssl_")}
    sentinel = Sentinel(list(url.hosts), sentinel_kwargs=ours)  # type: ignore[no-untyped-call]
    return SentinelConnectionPool(url.master, sentinel, ssl=encrypted, **options)  # type: ignore[no-untyped-call]


class Node:
    """Connections to one place: whatever server answers there."""

    def __init__(self, pool: ConnectionPool, histories: Histories, *, must_be_master: bool = False) -> None:
        pool.connection_kwargs["redis_connect_func"] = self._greet
        self.pool = pool
        self._histories = histories
        self._must_be_master = must_be_master
        self._id = b""
        self._ids: WeakKeyDictionary[AbstractConnection, bytes] = WeakKeyDictionary()

    async def send(self, packed: Sequence[bytes], history: int | None = None) -> list[Any]:
        """The replies in order, errors among them: all are read, so that none is left for the next user."""
        async with self._connection() as connection:
            if history not in (None, self._histories.number):
                raise HistoryChanged("it restarted or failed over while a batch was being written")
            await connection.send_packed_command(b"".join(packed), check_health=False)
            replies: list[Any] = []
            async with asyncio.timeout(_TIMEOUT):  # one for all: one for each reply would cost as much as reading it
                for _ in packed:
                    try:
                        replies.append(await connection.read_response(disable_decoding=True, timeout=inf))
                    except ReadOnlyError:
                        raise  # demoted: this connection leads nowhere
                    except ResponseError as error:
                        replies.append(error)
            return replies

    async def close(self) -> None:
        await self.pool.disconnect()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AbstractConnection]:
        connection = await self.pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            if self._ids.get(connection) != self._id:  # to the server that was here before
                await connection.disconnect(nowait=True)
                await connection.connect()
            yield connection
        except BaseException:
            # Replies may still be on their way: they must never meet another caller.
            await connection.disconnect(nowait=True)
            raise
        finally:
            await asyncio.shield(self.pool.release(connection))

    async def _greet(self, connection: AbstractConnection) -> None:
        """Called by redis-py for each new connection."""
        await connection.on_connect()
        await connection.send_command("INFO", "replication")
        text: bytes = await connection.read_response(disable_decoding=True)
        lines = (line.partition(b":") for line in text.splitlines())
        found = {name: value for name, _, value in lines}
        if self._must_be_master and found[b"role"] != b"master":
            raise ConnectionError("the Sentinels name a server that is a replica")
        self._ids[connection] = found[b"master_replid"]
        if self._id != found[b"master_replid"]:
            self._id = found[b"master_replid"]
            self._histories.number += 1


class OneServer:
    """A single server, or the master that Sentinels name."""

    sharded = False
    map_version = 0

    def __init__(self, pool: ConnectionPool, *, must_be_master: bool = False) -> None:
        self.histories = Histories()
        self._node = Node(pool, self.histories, must_be_master=must_be_master)
        self.client = Redis(connection_pool=pool)

    async def send(self, requests: Sequence[Request], history: int | None = None) -> list[Any]:
        return await self._node.send([request.packed for request in requests], history)

    async def memories(self) -> list[dict[str, Any]]:
        return [await self.client.info("memory")]

    async def shards(self) -> list[set[int]]:
        return []

    async def wrong_url(self) -> str | None:
        if not (await self.client.info("cluster")).get("cluster_enabled"):
            return None
        # Lists of first slot, last slot, primary, replicas.
        found: Any = await self.client.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
        if len({tuple(primary[:2]) for _, _, primary, *_ in found}) < 2:
            return None
        return "it is one node of a cluster: write redis+cluster:// (or rediss+cluster://) in LEADVIEW_REDIS_URL"

    async def load(self, scripts: Sequence[str]) -> None:
        for script in scripts:
            await self.client.script_load(script)

    async def close(self) -> None:
        await self.client.aclose()
        await self._node.close()
        sentinel = getattr(self._node.pool, "sentinel_manager", None)
        if sentinel:
            await sentinel.aclose()


class _Route(NamedTuple):
    """Where a request goes: `number` is its place among all of them."""

    number: int
    request: Request
    to: Host
    asking: bool = False


class Cluster:
    """The primaries of a cluster. redis-py keeps the map of slots."""

    sharded = True

    def __init__(self, hosts: Sequence[Host], options: dict[str, Any]) -> None:
        self.histories = Histories()
        self.map_version = 0
        self._hosts = list(hosts)
        self._options = options
        self._nodes: dict[Host, Node] = {}
        self._read_at = -inf
        self._stale = True
        self._failed: Host | None = None
        self._reading = asyncio.Lock()
        encrypted = options.get("connection_class") is SSLConnection
        other = {name: value for name, value in options.items() if name not in ("connection_class", "host", "port")}
        seeds = [ClusterNode(*host) for host in hosts]
        self.client = RedisCluster(startup_nodes=seeds, require_full_coverage=False, ssl=encrypted, **other)
        self._map = self.client.nodes_manager

    async def send(self, requests: Sequence[Request], history: int | None = None) -> list[Any]:
        """One pipeline to each primary, side by side; what is redirected is sent again to where it belongs."""
        await self._look_at_map()
        replies: list[Any] = [None] * len(requests)
        routes = [_Route(number, request, self._owner(request.key)) for number, request in enumerate(requests)]
        deadline = time.monotonic() + _REDIRECTED_SECONDS
        while True:
            for route, reply in zip(routes, await self._send(routes, history), strict=True):
                replies[route.number] = reply
            again = [route for route in routes if isinstance(replies[route.number], (AskError, TryAgainError))]
            if not again or time.monotonic() > deadline:
                self._stale |= any(isinstance(reply, ClusterDownError) for reply in replies)
                return replies
            if all(isinstance(replies[route.number], TryAgainError) for route in again):
                await asyncio.sleep(_REDIRECT_PAUSE)
            routes = [await self._redirected(route, replies[route.number]) for route in again]

    async def memories(self) -> list[dict[str, Any]]:
        found = await self.client.info("memory", target_nodes=RedisCluster.PRIMARIES)
        # redis-py leaves out the name of the server where there is one only.
        return [found] if "used_memory" in found else list(found.values())

    async def shards(self) -> list[set[int]]:
        await self._look_at_map()
        found = defaultdict(set)
        for slot, nodes in self._map.slots_cache.items():
            found[nodes[0].name].add(slot)
        return list(found.values())

    async def wrong_url(self) -> str | None:
        return None

    async def load(self, scripts: Sequence[str]) -> None:
        await self._look_at_map()
        packed = [pack(b"SCRIPT", b"LOAD", script.encode()) for script in scripts]
        primaries = [(node.host, int(node.port)) for node in self.client.get_primaries()]
        await _all([self._node(host).send(packed) for host in primaries])

    async def close(self) -> None:
        await self.client.aclose()
        await self._map.aclose()
        await self._map.aclose("startup_nodes")
        for node in self._nodes.values():
            await node.close()

    async def _send(self, routes: Sequence[_Route], history: int | None) -> list[Any]:
        """The replies of one round, in the order of `routes`."""
        groups: dict[Host, list[int]] = defaultdict(list)
        for at, route in enumerate(routes):
            groups[route.to].append(at)
        found: list[Any] = [None] * len(routes)

        async def pipeline(host: Host, group: list[int]) -> None:
            packed = [word for at in group for word in _packed(routes[at])]
            try:
                replies = iter(await self._node(host).send(packed, history))
            except (OSError, RedisError):
                self._stale, self._failed = True, host
                raise
            for at in group:
                if routes[at].asking:
                    next(replies)
                found[at] = next(replies)

        await _all([pipeline(host, group) for host, group in groups.items()])
        return found

    async def _redirected(self, route: _Route, error: AskError | TryAgainError) -> _Route:
        """ASK holds for one command, MOVED from now on; TRYAGAIN says to begin again."""
        if isinstance(error, TryAgainError):
            return _Route(route.number, route.request, self._owner(route.request.key))
        host = (error.host or route.to[0], int(error.port))
        if isinstance(error, MovedError):
            self._stale = True
            if self._owner(route.request.key) != host:
                error.host, error.port = host
                await self._map.move_slot(error)
                self.map_version += 1
        return _Route(route.number, route.request, host, asking=not isinstance(error, MovedError))

    def _owner(self, key: bytes) -> Host:
        node = self._map.get_node_from_slot(key_slot(key)) if key_slot(key) in self._map.slots_cache else None
        if node is None:
            self._stale = True
            raise ClusterDownError("no primary serves one of the slots")
        return node.host, int(node.port)

    def _node(self, host: Host) -> Node:
        node = self._nodes.get(host)
        if node is None:
            options = self._options | {"host": host[0], "port": host[1]}
            node = self._nodes[host] = Node(ConnectionPool(**options), self.histories)
        return node

    async def _look_at_map(self) -> None:
        """Read it where it may have changed, and now and then."""
        if time.monotonic() - self._read_at < (_SHORTEST_MAP_SECONDS if self._stale else _MAP_SECONDS):
            return
        async with self._reading:
            if time.monotonic() - self._read_at < _SHORTEST_MAP_SECONDS:
                return
            before = self._ownership()
            failed = self._failed and f"{self._failed[0]}:{self._failed[1]}"
            await self.client.initialize(self._hosts, failed)  # redis-py's own first use, or after an error
            await self._map.initialize(self._hosts, failed)
            self._read_at, self._stale, self._failed = time.monotonic(), False, None
            self.map_version += before != self._ownership()
            await self._forget_others()

    def _ownership(self) -> list[str]:
        return [nodes[0].name for nodes in self._map.slots_cache.values()]

    async def _forget_others(self) -> None:
        """A primary that was demoted may come back with another history, on connections from before."""
        primaries = {(node.host, int(node.port)) for node in self.client.get_primaries()}
        for host in self._nodes.keys() - primaries:
            await self._nodes.pop(host).close()


def pack(*words: Any) -> bytes:
    """A command as it is sent."""
    return cast(bytes, hiredis.pack_command(words))


_ASKING = pack(b"ASKING")


def _packed(route: _Route) -> tuple[bytes, ...]:
    return (_ASKING, route.request.packed) if route.asking else (route.request.packed,)


async def _all(sending: Sequence[Any]) -> None:
    """Side by side. All are finished, well or not, before the first error is raised."""
    if len(sending) == 1:
        await sending[0]
        return
    for result in await asyncio.gather(*sending, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _overrides(settings: RedisSettings) -> dict[str, Any]:
    """Settings of their own win over the URL's parameters."""
    found = {
        "username": settings.redis_username,
        "password": settings.redis_password,
        "ssl_ca_certs": settings.redis_tls_ca_file,
        "ssl_certfile": settings.redis_tls_cert_file,
        "ssl_keyfile": settings.redis_tls_key_file,
    }
    return {name: value for name, value in found.items() if value is not None}
