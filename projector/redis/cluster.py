"""The primaries of a Redis Cluster, each a `Node`."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from redis.asyncio import ConnectionPool, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError, TryAgainError

from projector.redis.fence import Fence
from projector.redis.node import ClientConnection, Node, ReplicationEpoch, Request, pack
from schemas.redis_url import Host

# A slot that is being moved refuses calls with several keys until the move is done.
_REDIRECTED_SECONDS = 5.0
_REDIRECT_PAUSE = 0.02
# How often the map of slots is read. Slots may move without any redirection, so a server is asked more often whether
# its map is another one: redis-py takes 10 ms to read one.
_MAP_SECONDS, _SHORTEST_MAP_SECONDS = 10.0, 0.5
_LOOK_SECONDS = 0.9
_PING_SECONDS = 0.8
"""Which servers do not answer is found out while somebody waits for the status."""


class _Route(NamedTuple):
    """The server that a request is sent to. `number` is the index of the request among all requests."""

    number: int
    request: Request
    to: Host
    asking: bool = False


class Cluster:
    """The primaries of a cluster. redis-py keeps the map of slots to servers."""

    sharded = True

    def __init__(self, hosts: Sequence[Host], options: dict[str, Any]) -> None:
        self.replication_epoch = ReplicationEpoch()
        self.map_version = 0
        self._shards: tuple[int, list[frozenset[int]]] = 0, []
        self._hosts = list(hosts)
        self._options = options
        self._nodes: dict[Host, Node] = {}
        self._read_at = -inf
        self._looked_at = -inf
        self._seen: Any = None
        """The map as it was when a server was asked for it last."""
        self._stale = True
        self._failed: Host | None = None
        self._reading = asyncio.Lock()
        encrypted = options.get("connection_class") is SSLConnection
        other = {name: value for name, value in options.items() if name not in ("connection_class", "host", "port")}
        seeds = [ClusterNode(*host) for host in hosts]
        self.client = RedisCluster(startup_nodes=seeds, require_full_coverage=False, ssl=encrypted, **other)
        self._map = self.client.nodes_manager

    async def send(
        self, requests: Sequence[Request], replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        """Send one pipeline to each primary, concurrently. Redirected requests are sent again, to the right primary."""
        await self._refresh_map()
        replies: list[Any] = [None] * len(requests)
        routes = [_Route(number, request, self._owner(request.key)) for number, request in enumerate(requests)]
        deadline = time.monotonic() + _REDIRECTED_SECONDS
        while True:
            for route, reply in zip(routes, await self._send(routes, replication_epoch, fence), strict=True):
                replies[route.number] = reply
            again = [route for route in routes if isinstance(replies[route.number], (AskError, TryAgainError))]
            if not again or time.monotonic() > deadline:
                self._stale |= any(isinstance(reply, ClusterDownError) for reply in replies)
                return replies
            if all(isinstance(replies[route.number], TryAgainError) for route in again):
                await asyncio.sleep(_REDIRECT_PAUSE)
            routes = [await self._redirected(route, replies[route.number]) for route in again]

    async def info(self, section: str) -> list[dict[str, Any]]:
        found = await self.client.info(section, target_nodes=RedisCluster.PRIMARIES)
        # redis-py leaves out the name of the server if there is only one.
        return list(found.values()) if all(isinstance(fields, dict) for fields in found.values()) else [found]

    async def shards(self) -> list[frozenset[int]]:
        await self._look_for_moves()
        await self._refresh_map()
        if self._shards[0] != self.map_version:
            found = defaultdict(set)
            for slot, nodes in self._map.slots_cache.items():
                found[nodes[0].name].add(slot)
            self._shards = self.map_version, list(map(frozenset, found.values()))
        return self._shards[1]

    def address(self, key: bytes) -> str:
        host, port = self._owner(key)
        return f"{host}:{port}"

    async def silent(self) -> tuple[list[str], int]:
        hosts = [(node.host, int(node.port)) for node in self.client.get_primaries()]

        async def answers(host: Host) -> bool:
            try:
                async with asyncio.timeout(_PING_SECONDS):
                    return bool(await self._node(host).send([pack(b"PING")]))
            except (OSError, RedisError):  # TimeoutError is an OSError
                return False

        answering = await asyncio.gather(*map(answers, hosts))
        silent = [f"{host}:{port}" for (host, port), answer in zip(hosts, answering, strict=True) if not answer]
        return silent, len(hosts)

    async def wrong_url(self) -> str | None:
        return None

    async def load(self, scripts: Sequence[str]) -> None:
        await self._refresh_map()
        packed = [pack(b"SCRIPT", b"LOAD", script.encode()) for script in scripts]
        primaries = [(node.host, int(node.port)) for node in self.client.get_primaries()]
        await _all([self._node(host).send(packed) for host in primaries])

    async def clients(self) -> list[ClientConnection]:
        await self._refresh_map()
        return [
            ClientConnection(node, found["id"], found["name"])
            for node in self.client.get_primaries()
            for found in await self.client.client_list(target_nodes=node)
        ]

    async def kill(self, clients: Sequence[ClientConnection]) -> None:
        for client in clients:
            await self.client.client_kill_filter(_id=client.id, target_nodes=client.server)

    async def close(self) -> None:
        await self.client.aclose()
        await self._map.aclose()
        await self._map.aclose("startup_nodes")
        for node in self._nodes.values():
            await node.close()

    async def _send(self, routes: Sequence[_Route], replication_epoch: int | None, fence: Fence | None) -> list[Any]:
        """Returns the replies to these requests, in the order of `routes`."""
        groups: dict[Host, list[int]] = defaultdict(list)
        for at, route in enumerate(routes):
            groups[route.to].append(at)
        found: list[Any] = [None] * len(routes)

        async def pipeline(host: Host, group: list[int]) -> None:
            packed = [word for at in group for word in _packed(routes[at])]
            try:
                replies = iter(await self._node(host).send(packed, replication_epoch, fence))
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
        """Returns the next route. ASK redirects one command, MOVED the later ones as well, TRYAGAIN none."""
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
            node = self._nodes[host] = Node(ConnectionPool(**options), self.replication_epoch)
        return node

    async def _refresh_map(self) -> None:
        """Read the map of slots if it may have changed, and otherwise every ten seconds."""
        if time.monotonic() - self._read_at < (_SHORTEST_MAP_SECONDS if self._stale else _MAP_SECONDS):
            return
        async with self._reading:
            if time.monotonic() - self._read_at < _SHORTEST_MAP_SECONDS:
                return
            before = self._ownership()
            failed = self._failed and f"{self._failed[0]}:{self._failed[1]}"
            # The hosts of the URL are asked last, unless they are asked anyway: redis-py makes nodes of them that it
            # never closes.
            others = [host for host in self._hosts if ClusterNode(*host).name not in self._map.startup_nodes]
            await self.client.initialize(others, failed)  # has an effect at first use and after errors only
            await self._map.initialize(others, failed)
            self._read_at, self._stale, self._failed = time.monotonic(), False, None
            self.map_version += before != self._ownership()
            await self._close_others()

    async def _look_for_moves(self) -> None:
        """Once a second, compare the map that a server has with the one that it had before."""
        if time.monotonic() - self._looked_at < _LOOK_SECONDS or not self._nodes:
            return
        self._looked_at = time.monotonic()
        host = next(iter(self._nodes))
        try:
            [found] = await self._nodes[host].send([pack(b"CLUSTER", b"SLOTS")])
        except (OSError, RedisError):
            self._stale, self._failed = True, host
        else:
            self._stale |= found != self._seen
            self._seen = found

    def _ownership(self) -> list[str]:
        return [nodes[0].name for nodes in self._map.slots_cache.values()]

    async def _close_others(self) -> None:
        """Close connections to other servers: a demoted primary may return with other data, on its old connections."""
        primaries = {(node.host, int(node.port)) for node in self.client.get_primaries()}
        for host in self._nodes.keys() - primaries:
            await self._nodes.pop(host).close()


_ASKING = pack(b"ASKING")


def _packed(route: _Route) -> tuple[bytes, ...]:
    return (_ASKING, route.request.packed) if route.asking else (route.request.packed,)


async def _all(sending: Sequence[Any]) -> None:
    """Await all of them concurrently. All are finished before the first error is raised."""
    if len(sending) == 1:
        await sending[0]
        return
    for result in await asyncio.gather(*sending, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
