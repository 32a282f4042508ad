"""The Redis servers behind the store: one server, the master that Sentinels monitor, or the primaries of a cluster.

Commands are sent as bytes, in one pipeline to each server, concurrently. Connections are opened when they are needed.

Each pipeline has a connection of its own while it lasts. If it is given up, that connection is closed, and what was not
sent is discarded: nothing arrives after the program has acknowledged that its generation is gone. For the same reason a
session is not continued over a connection that was opened after it had begun, unless its *fence* allows it: a program
that stood still (SIGSTOP, a suspended machine) may wake up in the middle of its session, long after the generation that
it writes was dropped. Therefore `drop` closes the connections of each program that has not acknowledged the change
(`operate/rebuild/generations.py`), and the control record is read once more before a later connection is used.

A server and its replicas share a replication id. It changes with a restart or a failover, and writes that were
acknowledged before may then be missing. So every new connection asks for the id, and the *replication epoch* counts its
changes. A caller passes the epoch in which it wrote, so that its next commands fail unless they reach the same data.
The first pipeline to an address counts as a change, too.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple, Protocol

from projector.errors import Denied, Unavailable
from runtime.redis import errors
from runtime.redis.access import Address, Sentinels, SlotMap, location
from runtime.redis.cluster import Primaries
from runtime.redis.connection import Connection, connect, pack
from runtime.redis.errors import ErrorReply, Redirected
from schemas import names
from schemas.redis_url import Host
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
_RENEW_SECONDS = 30.0
"""After this time another connection is opened, although there is one: the address may lead to another server by now,
while the former one still runs, as after a promotion by hand. The new server has another replication id."""
_ASKING, _SLOTS = pack((b"ASKING",)), (b"CLUSTER", b"SLOTS")
_INFO = pack((b"INFO", b"replication"))


class Fence(Protocol):
    """The connections that a session (`projector/ledger/ledger.py`) may use."""

    opened: int
    """The number of connections that the program had opened when the session began. Later ones have higher numbers."""
    confirmed: set[int]
    """The numbers of the later connections that were confirmed: `drop` will find them, as it finds the earlier ones."""

    async def confirm(self) -> None:
        """Raises Unavailable if the control record is no longer the one that the session began with."""


class ReplicationEpoch:
    """Counts how often a server had another replication id than before, and how many connections were opened. It checks
    whether a session may use one of them.
    """

    def __init__(self) -> None:
        self.number = 0
        self.opened = 0
        self._fenced = 0

    def require_confirmation(self) -> None:
        """From now on, the sessions that this program has open have to confirm each connection before they use it."""
        self.opened += 1
        self._fenced = self.opened

    async def check(self, connection_number: int, replication_epoch: int | None, fence: Fence | None) -> None:
        """Check that a session may use the connection with this number. Raises Unavailable."""
        is_later = fence is not None and (connection_number > fence.opened or fence.opened < self._fenced)
        if fence is not None and is_later and connection_number not in fence.confirmed:
            await fence.confirm()
            fence.confirmed.add(connection_number)
        if replication_epoch not in (None, self.number):
            raise Unavailable("Redis: it restarted or failed over while a batch was being written")


class _Opened(NamedTuple):
    """A connection, its number, and the replication id that its server had when it was opened."""

    connection: Connection
    number: int
    replication_id: bytes


class Node:
    """Connections to one address, no matter which server answers there."""

    def __init__(
        self,
        where: Address | Sentinels,
        epoch: ReplicationEpoch,
        client_name: str,
        timeout: float,
        *,
        renew: float = _RENEW_SECONDS,
    ) -> None:
        """All connections have the name. `timeout`, in seconds, applies to connecting, and to sending a pipeline and
        receiving all of its replies. Another connection is opened every `renew` seconds.
        """
        self.at: Host = (where.host, where.port) if isinstance(where, Address) else ("", 0)
        """Host and port, unless a Sentinel names them."""
        self._where = where
        self._epoch = epoch
        self._client_name = client_name.encode()
        self._timeout = timeout
        self._renew = renew
        self._replication_id = b""
        """That of the connection that was opened last."""
        self._counted_id = b""
        """That of the last pipeline."""
        self._opened_at = -inf
        self._all: set[_Opened] = set()
        self._idle: list[_Opened] = []

    async def send(
        self, packed: Sequence[bytes], replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        """Returns the replies in order; each may be an ErrorReply. Raises Unavailable, also if `replication_epoch` is
        no longer the current one, or if the fence refuses the connection.
        """
        if not packed:
            return []
        with _errors():
            opened = await self._take()
            if self._counted_id != opened.replication_id:
                self._counted_id = opened.replication_id
                self._epoch.number += 1
            return await self._exchange(opened, packed, replication_epoch, fence)

    async def ask(self, *words: Any) -> Any:
        """Returns the reply to a single command about the server. No session depends on it, so it does not count a new
        replication id. Raises Unavailable.
        """
        with _errors():
            return good(await self._exchange(await self._take(), [pack(words)]))[0]

    def close(self) -> None:
        """Close all connections. Calls that use one fail."""
        for opened in list(self._all):
            self._drop(opened, "the connection was closed meanwhile")
        self._idle.clear()

    async def _exchange(
        self,
        opened: _Opened,
        packed: Sequence[bytes],
        replication_epoch: int | None = None,
        fence: Fence | None = None,
    ) -> list[Any]:
        try:
            await self._epoch.check(opened.number, replication_epoch, fence)
            replies = await opened.connection.pipeline(packed)
        except BaseException:
            self._drop(opened, "a pipeline was given up")
            raise
        for reply in replies:
            if isinstance(reply, errors.ReadOnly):  # the server was demoted: this connection must not be used again
                self._drop(opened, str(reply))
                raise reply
        self._idle.append(opened)
        return replies

    def __repr__(self) -> str:
        return f"{self.at[0]}:{self.at[1]}"

    async def _take(self) -> _Opened:
        while self._idle:
            opened = self._idle.pop()
            if opened.connection.closed or opened.replication_id != self._replication_id:
                self._drop(opened, "Redis has restarted or failed over")
            elif time.monotonic() - self._opened_at < self._renew:
                return opened
            else:
                return await self._renewed(opened)
        return await self._open()

    async def _renewed(self, former: _Opened) -> _Opened:
        """Returns another connection in place of this one; this one if no other one can be opened."""
        try:
            opened = await self._open()
        except (errors.Unavailable, Unavailable):
            self._opened_at = time.monotonic()
            return former
        except BaseException:
            self._drop(former, "it was given up while another one was opened")
            raise
        self._drop(former, "another connection has taken its place")
        return opened

    async def _open(self) -> _Opened:
        connection, replication_id = await connect(
            await self._where.find(), self._prove, within=self._timeout, max_in_flight=1
        )
        self._opened_at = time.monotonic()
        self._epoch.opened += 1
        self._replication_id = replication_id
        opened = _Opened(connection, self._epoch.opened, replication_id)
        self._all.add(opened)
        return opened

    def _drop(self, opened: _Opened, reason: str) -> None:
        self._all.discard(opened)
        opened.connection.close(reason)

    async def _prove(self, connection: Connection) -> bytes:
        """Sets the name of the connection, and returns the replication id of its server."""
        await connection.call((b"CLIENT", b"SETNAME", self._client_name))
        return fields(await connection.call_packed(_INFO))["master_replid"].encode()


@contextmanager
def _errors() -> Iterator[None]:
    """Raise every error of the client as the projector's Unavailable."""
    try:
        yield
    except errors.Unavailable as error:
        raise Unavailable(f"Redis: {error}") from error


_IN_A_SCRIPT = "can't run this command"
"""The text that Redis sends instead of NOPERM if a script calls a command that its user may not run."""


def good(replies: list[Any]) -> list[Any]:
    """Returns the replies. Raises Unavailable if there is an error among them; Denied if this user lacks a right."""
    for reply in replies:
        if isinstance(reply, errors.ErrorReply):
            denied = str(reply).startswith("NOPERM") or _IN_A_SCRIPT in str(reply)
            raise (Denied if denied else Unavailable)(f"Redis: {reply}") from reply
    return replies


def fields(info: bytes) -> dict[str, str]:
    """Returns the fields of a reply to INFO."""
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


class RoutedCommand(NamedTuple):
    """A command in the protocol of Redis, and one of its keys, which decides the server that it is sent to."""

    key: bytes
    packed: bytes


class OneServer:
    """A single server, or the master that Sentinels monitor. Every method may raise Unavailable."""

    sharded = False
    """True if there are several servers, each with a part of the keys."""

    def __init__(self, where: Address | Sentinels, client_name: str, timeout: float) -> None:
        """All connections have the name. `timeout`, in seconds, applies to each of them (`Node`)."""
        self.replication_epoch = ReplicationEpoch()
        self._where = where
        self._node = Node(where, self.replication_epoch, client_name, timeout)

    async def send(
        self, requests: Sequence[RoutedCommand], replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        """Returns the replies in order; each may be an ErrorReply. Raises what `Node.send` raises."""
        return await self._node.send([request.packed for request in requests], replication_epoch, fence)

    async def nodes(self) -> list[Node]:
        """Returns all servers."""
        return [self._node]

    def known(self) -> list[Node]:
        """Returns the servers that are known by now."""
        return [self._node]

    async def nodes_of(self, key: bytes) -> list[Node]:  # noqa: ARG002 - one server holds all keys
        """Returns the servers that may hold keys of the slot of this key, which does not exist: two while the slot is
        being moved.
        """
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
    request: RoutedCommand
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
        self._primaries = Primaries(slot_map, self._node, Node.close)
        self._read_at = -inf
        self._looked_at = -inf
        self._seen: Any = None
        """The map as it was when a server was asked for it last."""
        self._failed: Node | None = None
        self._reading = asyncio.Lock()

    async def send(
        self, requests: Sequence[RoutedCommand], replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        """Sends redirected requests again, to the right primary, for up to 5 seconds."""
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
                    self._primaries.outdated.set()
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
        return self._primaries.shards()

    def known(self) -> list[Node]:
        return list(self._primaries.nodes.values())

    async def nodes_of(self, key: bytes) -> list[Node]:
        await self._look_for_moves()
        await self._refresh_map()
        node = self.node(key)
        # While a slot is being moved, its server redirects each request for a key that it does not have.
        [reply] = await node.send([pack((b"EXISTS", key))])
        other = reply.node(node.at[0]) if isinstance(reply, Redirected) else None
        return [node] if other is None else [node, self._primaries.node(other)]

    def node(self, key: bytes) -> Node:
        try:
            return self._primaries.owner(_slot(key))
        except errors.Unavailable as error:
            raise Unavailable(f"Redis: {error}") from error

    async def close(self) -> None:
        for node in self._primaries.nodes.values():
            node.close()
        await self._primaries.close()

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
                self._primaries.outdated.set()
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
        node = self._primaries.node(host)
        if error.moved:
            self._primaries.outdated.set()
            self._primaries.move(_slot(route.request.key), node)
        return _Route(route.number, route.request, node, error.asking)

    def _node(self, address: Address) -> Node:
        return Node(address, self.replication_epoch, self._client_name, self._timeout)

    async def _refresh_map(self) -> None:
        """Read the map of slots if it may have changed, and otherwise every ten seconds."""
        outdated = self._primaries.outdated
        if time.monotonic() - self._read_at < (_SHORTEST_MAP_SECONDS if outdated.is_set() else _MAP_SECONDS):
            return
        async with self._reading:
            if time.monotonic() - self._read_at < _SHORTEST_MAP_SECONDS:
                return
            try:
                await self._primaries.read(self._failed.at if self._failed else None)
            except errors.Unavailable as error:
                outdated.set()
                raise Unavailable(f"Redis: {error}") from error
            self._read_at, self._failed = time.monotonic(), None

    async def _look_for_moves(self) -> None:
        """Once a second, compare the map that a server has with the one that it had before."""
        if time.monotonic() - self._looked_at < _LOOK_SECONDS or not self._primaries.nodes:
            return
        self._looked_at = time.monotonic()
        node = next(iter(self._primaries.nodes.values()))
        try:
            found = await node.ask(*_SLOTS)
        except Unavailable:
            self._primaries.outdated.set()
            self._failed = node
        else:
            if found != self._seen:
                self._primaries.outdated.set()
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
