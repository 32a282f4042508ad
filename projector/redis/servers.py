"""The Redis servers behind the store: one server, the master that Sentinels monitor, or the primaries of a cluster.

Commands are sent as bytes, in one pipeline to each server, concurrently. What error replies ask for is done by
`runtime/redis/routing.py`; the connections of a server are those of its `Node`.
"""

import asyncio
import time
from collections.abc import Sequence
from math import inf
from typing import Any

from projector.errors import Unavailable
from projector.redis.node import Fence, Node, ReplicationEpoch, as_unavailable
from runtime.redis import routing
from runtime.redis.access import Address, Sentinels, SlotMap, location
from runtime.redis.connection import pack
from runtime.redis.errors import Redirected
from runtime.redis.routing import Cluster, OneServer, Route
from runtime.redis.scripts import Script
from schemas import names
from schemas.settings import RedisSettings

_ASKED_SECONDS = 5.0
"""Seconds that a Sentinel or a node has to say where Redis is, also over TLS from a region that is far away."""
_REDIRECTED_SECONDS = 5.0
"""For this time, redirected commands are sent again. A slot that is being moved refuses calls with several keys until
the move is done."""
# How often the map of slots is read. Slots may move without any redirection, so a server is asked more often whether
# its map is another one: redis-py takes 10 ms to read one.
_MAP_SECONDS, _SHORTEST_MAP_SECONDS = 10.0, 0.5
_LOOK_SECONDS = 0.9
_SLOTS = (b"CLUSTER", b"SLOTS")


class Servers:
    """One server, or the primaries of a cluster. Every method may raise Unavailable."""

    def __init__(self, settings: RedisSettings, client_name: str, timeout: float) -> None:
        """All connections have the name. `timeout`, in seconds, applies to each of them (`Node`). It does not connect
        yet. Raises AddressError.
        """
        where = location(settings, _ASKED_SECONDS, first=_ASKED_SECONDS)
        self.replication_epoch = ReplicationEpoch()
        self._client_name = client_name
        self._timeout = timeout
        self._where = where
        self._cluster: Cluster[Node] | None = None
        if isinstance(where, SlotMap):
            # A demoted primary may return with other data, on its old connections: so they are closed.
            self._cluster = Cluster(where, self._node, Node.close)
            self._servers: routing.Routing[Node] = self._cluster
        else:
            self._servers = OneServer(self._node(where))
        self.sharded = self._cluster is not None
        """True if there are several servers, each with a part of the keys."""
        self._read_at = -inf
        self._looked_at = -inf
        self._seen: Any = None
        """The map as it was when a server was asked for it last."""
        self._reading = asyncio.Lock()

    async def send(
        self,
        commands: Sequence[tuple[bytes, bytes, Script[...] | None]],
        replication_epoch: int | None = None,
        fence: Fence | None = None,
    ) -> list[Any]:
        """Returns the replies in order; each may be an ErrorReply. Raises what `Node.send` raises.

        A command has a key, which decides the server that it is sent to, the packed command, and its script or None.
        """

        async def exchange(node: Node, packed: list[bytes]) -> list[Any]:
            return await node.send(packed, replication_epoch, fence)

        await self._refresh_map()
        with as_unavailable():
            node = self._servers.node
            routes = [Route(tag := names.tag(key), packed, node(tag), script) for key, packed, script in commands]
            await self._servers.send(routes, exchange, _REDIRECTED_SECONDS)
        return [route.reply for route in routes]

    async def nodes(self) -> list[Node]:
        """Returns all servers."""
        await self._refresh_map()
        return self.known()

    def known(self) -> list[Node]:
        """Returns the servers that are known by now."""
        return [*self._servers.nodes]

    async def nodes_of(self, key: bytes) -> list[Node]:
        """Returns the servers that may hold keys of the slot of this key, which does not exist: two while the slot is
        being moved.
        """
        await self._look_for_moves()
        await self._refresh_map(0)
        node = self.node(key)
        if self._cluster is None:
            return [node]
        # While a slot is being moved, its server redirects each request for a key that it does not have.
        [reply] = await node.send([pack((b"EXISTS", key))])
        other = reply.node(node.host) if isinstance(reply, Redirected) else None
        return [node] if other is None else [node, self._cluster.node_at(other)]

    def node(self, key: bytes) -> Node:
        """Returns the server of a key."""
        with as_unavailable():
            return self._servers.node(names.tag(key))

    async def shards(self) -> list[frozenset[int]]:
        """Returns the slots of each primary, the same sets while the map is the same; nothing if this is no cluster."""
        await self._look_for_moves()
        await self._refresh_map(0)
        return self._cluster.shards() if self._cluster else []

    async def close(self) -> None:
        """Close all connections."""
        for node in self.known():
            node.close()
        await self._where.close()

    def _node(self, where: Address | Sentinels) -> Node:
        return Node(where, self.replication_epoch, self._client_name, self._timeout)

    async def _refresh_map(self, shortest: float = _SHORTEST_MAP_SECONDS) -> None:
        """Read the map of slots every ten seconds, or after `shortest` seconds if it may have changed."""
        cluster = self._cluster
        if cluster is None or self._has_map(cluster, shortest):
            return
        async with self._reading:
            if not self._has_map(cluster, shortest):
                with as_unavailable():
                    await cluster.read()
                self._read_at = time.monotonic()

    def _has_map(self, cluster: Cluster[Node], shortest: float) -> bool:
        return time.monotonic() - self._read_at < (shortest if cluster.outdated.is_set() else _MAP_SECONDS)

    async def _look_for_moves(self) -> None:
        """Once a second, compare the map that a server has with the one that it had before."""
        if self._cluster is None or time.monotonic() - self._looked_at < _LOOK_SECONDS or not self._cluster.nodes:
            return
        self._looked_at = time.monotonic()
        node = next(iter(self._cluster.nodes))
        try:
            found = await node.ask(*_SLOTS)
        except Unavailable:
            self._cluster.outdate(node)
        else:
            if found != self._seen:
                self._cluster.outdated.set()
            self._seen = found
