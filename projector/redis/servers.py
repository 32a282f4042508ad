"""The Redis servers behind the store: one server, the master that Sentinels monitor, or the primaries of a cluster.

Commands are sent as bytes, in one pipeline to each server, concurrently. Connections are opened when they are needed.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from leadview.redis import cluster, errors
from leadview.redis.access import Address, Sentinels, SlotMap, location
from leadview.redis.connection import pack
from leadview.redis.errors import ErrorReply, Redirected
from projector.errors import Unavailable
from projector.redis.node import Fence, Node, ReplicationEpoch, good
from schemas import names
from schemas.settings import RedisSettings

_ASKED_SECONDS = 5.0
"""Seconds that a Sentinel or a node has to say where Redis is, also over TLS from a region that is far away."""
# A slot that is being moved refuses calls with several keys until the move is done.
_REDIRECTED_SECONDS = 5.0
_REDIRECT_PAUSE = 0.02
# How often the map of slots is read. Slots may move without any redirection, so a server is asked more often whether
# its map is another one: redis-py takes 10 ms to read one.
_MAP_SECONDS, _SHORTEST_MAP_SECONDS = 10.0, 0.5
_LOOK_SECONDS = 0.9
_ASKING, _SLOTS = pack((b"ASKING",)), pack((b"CLUSTER", b"SLOTS"))


class Request(NamedTuple):
    """A command in the protocol of Redis, and one of its keys, which decides the server that it is sent to."""

    key: bytes
    packed: bytes


class OneServer:
    """A single server, or the master that Sentinels monitor. Every method may raise Unavailable."""

    sharded = False
    """Whether there are several servers, each with a part of the keys."""

    def __init__(self, where: Address | Sentinels, client_name: str, timeout: float) -> None:
        """All connections have the name. `timeout`, in seconds, applies to each of them (`Node`)."""
        self.replication_epoch = ReplicationEpoch()
        self._where = where
        self._node = Node(where, self.replication_epoch, client_name, timeout)

    async def send(
        self, requests: Sequence[Request], replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        """Returns the replies in order; each may be an ErrorReply. Raises what `Node.send` raises."""
        return await self._node.send([request.packed for request in requests], replication_epoch, fence)

    async def nodes(self) -> list[Node]:
        """Returns all servers."""
        return [self._node]

    def known(self) -> list[Node]:
        """Returns the servers that are known by now."""
        return [self._node]

    def node(self, key: bytes) -> Node:  # noqa: ARG002 - one server holds all keys
        """Returns the server of a key."""
        return self._node

    async def shards(self) -> list[frozenset[int]]:
        """Returns the slots of each primary, the same sets while the map is the same; nothing if this is no cluster."""
        return []

    async def close(self) -> None:
        """Close all connections."""
        self._node.close()
        await self._where.close()


class _Route(NamedTuple):
    """The server that a request is sent to. `number` is the index of the request among all requests."""

    number: int
    request: Request
    to: Node
    asking: bool = False


class Cluster:
    """The primaries of a cluster. Its methods are those of `OneServer`."""

    sharded = True

    def __init__(self, slot_map: SlotMap, client_name: str, timeout: float) -> None:
        self.replication_epoch = ReplicationEpoch()
        self._client_name = client_name
        self._timeout = timeout
        # A demoted primary may return with other data, on its old connections: so they are closed.
        self._cluster = cluster.Cluster(slot_map, self._node, Node.close)
        self._read_at = -inf
        self._looked_at = -inf
        self._seen: Any = None
        """The map as it was when a server was asked for it last."""
        self._failed: Node | None = None
        self._reading = asyncio.Lock()

    async def send(
        self, requests: Sequence[Request], replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        """Redirected requests are sent again, to the right primary."""
        await self._refresh_map()
        replies: list[Any] = [None] * len(requests)
        routes = [_Route(number, request, self.node(request.key)) for number, request in enumerate(requests)]
        deadline = time.monotonic() + _REDIRECTED_SECONDS
        while True:
            for route, reply in zip(routes, await self._send(routes, replication_epoch, fence), strict=True):
                replies[route.number] = reply
            again = [route for route in routes if isinstance(replies[route.number], Redirected)]
            if not again or time.monotonic() > deadline:
                if any(str(reply).startswith("CLUSTERDOWN") for reply in replies if isinstance(reply, ErrorReply)):
                    self._cluster.outdated.set()
                return replies
            if all(replies[route.number].node("") is None for route in again):
                await asyncio.sleep(_REDIRECT_PAUSE)
            routes = [self._redirected(route, replies[route.number]) for route in again]

    async def nodes(self) -> list[Node]:
        await self._refresh_map()
        return self.known()

    async def shards(self) -> list[frozenset[int]]:
        await self._look_for_moves()
        await self._refresh_map()
        return self._cluster.shards()

    def known(self) -> list[Node]:
        return list(self._cluster.nodes.values())

    def node(self, key: bytes) -> Node:
        try:
            return self._cluster.owner(_slot(key))
        except errors.Unavailable as error:
            raise Unavailable(f"Redis: {error}") from error

    async def close(self) -> None:
        for node in self._cluster.nodes.values():
            node.close()
        await self._cluster.close()

    async def _send(self, routes: Sequence[_Route], replication_epoch: int | None, fence: Fence | None) -> list[Any]:
        """Send one pipeline to each primary, concurrently. Returns the replies in order."""
        groups: defaultdict[Node, list[int]] = defaultdict(list)
        for at, route in enumerate(routes):
            groups[route.to].append(at)
        found: list[Any] = [None] * len(routes)

        async def pipeline(node: Node, group: list[int]) -> None:
            packed = [word for at in group for word in _packed(routes[at])]
            try:
                replies = iter(await node.send(packed, replication_epoch, fence))
            except Unavailable:
                self._cluster.outdated.set()
                self._failed = node
                raise
            for at in group:
                if routes[at].asking:
                    next(replies)
                found[at] = next(replies)

        await all_of([pipeline(node, group) for node, group in groups.items()])
        return found

    def _redirected(self, route: _Route, error: Redirected) -> _Route:
        """Returns the next route. ASK redirects one command, MOVED the later ones as well, TRYAGAIN none."""
        host = error.node(route.to.at[0])
        if host is None:
            return _Route(route.number, route.request, self.node(route.request.key))
        node = self._cluster.node(host)
        if error.moved:
            self._cluster.outdated.set()
            self._cluster.move(_slot(route.request.key), node)
        return _Route(route.number, route.request, node, error.asking)

    def _node(self, address: Address) -> Node:
        return Node(address, self.replication_epoch, self._client_name, self._timeout)

    async def _refresh_map(self) -> None:
        """Read the map of slots if it may have changed, and otherwise every ten seconds."""
        outdated = self._cluster.outdated
        if time.monotonic() - self._read_at < (_SHORTEST_MAP_SECONDS if outdated.is_set() else _MAP_SECONDS):
            return
        async with self._reading:
            if time.monotonic() - self._read_at < _SHORTEST_MAP_SECONDS:
                return
            try:
                await self._cluster.read(self._failed.at if self._failed else None)
            except errors.Unavailable as error:
                outdated.set()
                raise Unavailable(f"Redis: {error}") from error
            self._read_at, self._failed = time.monotonic(), None

    async def _look_for_moves(self) -> None:
        """Once a second, compare the map that a server has with the one that it had before."""
        if time.monotonic() - self._looked_at < _LOOK_SECONDS or not self._cluster.nodes:
            return
        self._looked_at = time.monotonic()
        node = next(iter(self._cluster.nodes.values()))
        try:
            found = good(await node.send([_SLOTS]))[0]
        except Unavailable:
            self._cluster.outdated.set()
            self._failed = node
        else:
            if found != self._seen:
                self._cluster.outdated.set()
            self._seen = found


def _slot(key: bytes) -> int:
    return names.tag_slot(names.tag(key))


def _packed(route: _Route) -> tuple[bytes, ...]:
    return (_ASKING, route.request.packed) if route.asking else (route.request.packed,)


async def all_of(sending: Sequence[Any]) -> list[Any]:
    """Await all of them concurrently. All are finished before the first error is raised."""
    if len(sending) == 1:
        return [await sending[0]]
    results = await asyncio.gather(*sending, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def servers(settings: RedisSettings, client_name: str, timeout: float) -> OneServer | Cluster:
    """Returns the servers that the settings name. It does not connect yet. Raises AddressError."""
    where = location(settings, _ASKED_SECONDS, first=_ASKED_SECONDS)
    if isinstance(where, SlotMap):
        return Cluster(where, client_name, timeout)
    return OneServer(where, client_name, timeout)
