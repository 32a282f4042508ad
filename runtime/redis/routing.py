"""Chooses the server of each command, and does what error replies ask for, such as sending it to another server.

There is one server, or there are the primaries of a cluster. Each program has a class of its own for a server (`N`): it
may keep a connection, or open connections when they are needed. The program also gives the function that sends commands
to a server (`Exchange`).

A command of a cluster goes to the primary of the slot of its hash tag. While slots are being moved, or after a replica
was promoted, Redis redirects (`runtime/redis/errors.py`), and the slot map has to be read again. Redis has not executed
a command that it answers with a redirection, or whose script it does not know, so such a command is sent again.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from msgspec import Struct

from runtime.redis.access import Address, SlotMap
from runtime.redis.connection import pack
from runtime.redis.errors import ClusterDown, ErrorReply, ReadOnly, Redirected, ScriptMissing, Unavailable
from runtime.redis.scripts import Script
from schemas import names
from schemas.redis_url import Host

_PAUSE_SECONDS = 0.01
"""The time between two attempts of a command whose keys are on two nodes. They are on one when
their slot has moved completely."""
_ASKING = pack((b"ASKING",))


class Server(Protocol):
    """The object that a program has for a server."""

    @property
    def host(self) -> str:
        """The host of its address."""


N = TypeVar("N", bound=Server)
Exchange = Callable[[N, list[bytes]], Awaitable[list[Any]]]
"""Sends packed commands to a server in one pipeline. Returns the replies in order; each may be an ErrorReply."""


class Route(Struct, Generic[N], eq=False):
    """A packed command, the server that it is sent to, and its reply, which may be an ErrorReply.

    All its keys have the hash tag `tag`. `script` is what it calls, if it calls one.
    """

    tag: bytes
    packed: bytes
    to: N
    script: Script[...] | None = None
    asking: bool = False
    """True if ASKING has to be sent before it."""
    reply: Any = None


class Routing(ABC, Generic[N]):
    """The servers that hold keys."""

    sharded: ClassVar[bool]
    """True if each of them has a part of the keys."""
    version = 0
    """Increases whenever keys may have moved from one server to another."""

    @property
    @abstractmethod
    def nodes(self) -> Collection[N]:
        """All servers that are known by now."""

    @abstractmethod
    def node(self, tag: bytes) -> N:
        """Returns the server that holds the keys with this hash tag, or the key of this name if the name has no hash
        tag. Raises Unavailable.
        """

    @abstractmethod
    def redirect(self, route: Route[N], error: Redirected) -> bool:
        """Change the server of a command, and whether ASKING is sent before it, as this reply says. Returns whether the
        command can be sent again.
        """

    def outdate(self, node: N) -> None:
        """Note that a server does not answer, or is no longer what it was."""

    async def send(self, routes: Sequence[Route[N]], exchange: Exchange[N], within: float) -> None:
        """Send commands in one pipeline to each server, concurrently. Their order is kept on each server. Those whose
        replies ask for it are sent again for `within` seconds. Raises what `exchange` raises.
        """
        await self._exchange(routes, exchange)
        await self.repeat(routes, exchange, within)

    async def repeat(self, routes: Iterable[Route[N]], exchange: Exchange[N], within: float) -> None:
        """Do what the replies of these commands ask for, and send such commands again, for `within` seconds. Raises
        what `exchange` raises, and ErrorReply if a script cannot be loaded.
        """
        deadline = time.monotonic() + within
        while failed := [route for route in routes if isinstance(route.reply, ErrorReply)]:
            routes = await self._prepared(failed, exchange)
            if not routes or time.monotonic() > deadline:
                return
            await self._exchange(routes, exchange)

    async def _prepared(self, failed: Iterable[Route[N]], exchange: Exchange[N]) -> list[Route[N]]:
        """Returns those of the failed commands that can be sent again now."""
        again: list[Route[N]] = []
        missing: dict[N, set[str]] = {}
        is_split = False
        for route in failed:
            match route.reply:
                case ScriptMissing() if route.script:
                    missing.setdefault(route.to, set()).add(route.script.text)
                    again.append(route)
                case Redirected() as error if self.redirect(route, error):
                    is_split |= not (error.moved or error.asking)  # TRYAGAIN: two servers have a part of the keys
                    again.append(route)
                case ClusterDown() | ReadOnly():
                    self.outdate(route.to)
        for node, texts in missing.items():
            for reply in await exchange(node, [pack((b"SCRIPT", b"LOAD", text)) for text in texts]):
                if isinstance(reply, ErrorReply):
                    raise reply
        if is_split:
            await asyncio.sleep(_PAUSE_SECONDS)
        return again

    async def _exchange(self, routes: Iterable[Route[N]], exchange: Exchange[N]) -> None:
        groups: dict[N, list[Route[N]]] = {}
        for route in routes:
            groups.setdefault(route.to, []).append(route)
        await all_of([self._pipeline(node, group, exchange) for node, group in groups.items()])

    async def _pipeline(self, node: N, group: Sequence[Route[N]], exchange: Exchange[N]) -> None:
        packed: list[bytes] = []
        for route in group:
            packed += (_ASKING, route.packed) if route.asking else (route.packed,)
        try:
            replies = iter(await exchange(node, packed))
        except Exception:
            self.outdate(node)
            raise
        for route in group:
            if route.asking:
                next(replies)
            route.reply = next(replies)


class OneServer(Routing[N]):
    """A single server, or the master that Sentinels name."""

    sharded = False

    def __init__(self, node: N) -> None:
        self._node = node

    @property
    def nodes(self) -> Collection[N]:
        return (self._node,)

    def node(self, tag: bytes) -> N:  # noqa: ARG002 - one server holds all keys
        return self._node

    def redirect(self, route: Route[N], error: Redirected) -> bool:  # noqa: ARG002
        return False  # it is a node of a cluster, and the settings do not say so


class Cluster(Routing[N]):
    """The primaries of a cluster, as its slot map said it last."""

    sharded = True

    def __init__(self, slot_map: SlotMap, opened: Callable[[Address], N], dropped: Callable[[N], None]) -> None:
        """`opened` makes the program's object for a primary, and `dropped` is called with it when the node is no longer
        a primary.
        """
        self._map = slot_map
        self._opened = opened
        self._dropped = dropped
        self._owners: list[N | None] = [None] * names.SLOTS
        self._nodes: dict[Host, N] = {}
        """The primaries, and nodes that were named by a redirection since the map was read."""
        self._shards: tuple[int, list[frozenset[int]]] = 0, []
        self._silent: N | None = None
        """The server that has not answered."""
        self._failure = ""
        """Why the map could not be read last; nothing if it was read."""
        self.outdated = asyncio.Event()
        """Is set if the map has to be read again."""

    @property
    def nodes(self) -> Collection[N]:
        return self._nodes.values()

    def node(self, tag: bytes) -> N:
        node = self._owners[names.tag_slot(tag)]
        if node is None:
            if self.version:  # otherwise the map was never read, and soon will be
                self.outdated.set()
            raise Unavailable(f"no primary of the Redis Cluster is known to serve this slot{self._failure}")
        return node

    def node_at(self, host: Host) -> N:
        """Returns the program's object for the node at this address."""
        if host not in self._nodes:
            self._nodes[host] = self._opened(self._map.address(host))
        return self._nodes[host]

    def redirect(self, route: Route[N], error: Redirected) -> bool:
        host = error.node(route.to.host)
        if error.moved:
            self.outdated.set()
        route.to, route.asking = self.node_at(host) if host else self.node(route.tag), error.asking
        return True

    def outdate(self, node: N) -> None:
        self._silent = node
        self.outdated.set()

    async def read(self) -> None:
        """Read the slot map. The server that has not answered is asked last. Raises Unavailable."""
        self.outdated.clear()
        silent = next((host for host, node in self._nodes.items() if node is self._silent), None)
        try:
            hosts = await self._map.read(silent)
        except Unavailable as error:
            self._failure = f" ({error})"
            self.outdated.set()
            raise
        self._failure, self._silent = "", None
        primaries = {host: self.node_at(host) for host in set(filter(None, hosts))}
        owners = [primaries[host] if host else None for host in hosts]
        self.version += owners != self._owners
        self._owners = owners
        for host in self._nodes.keys() - primaries.keys():
            self._dropped(self._nodes.pop(host))

    def shards(self) -> list[frozenset[int]]:
        """Returns the slots of each primary, the same sets while the map is the same."""
        if self._shards[0] != self.version:
            slots_of: dict[int, set[int]] = {}
            for slot, node in enumerate(self._owners):
                if node is not None:
                    slots_of.setdefault(id(node), set()).add(slot)
            self._shards = self.version, list(map(frozenset, slots_of.values()))
        return self._shards[1]

    async def renew(self) -> None:
        """Read the map over new connections, as soon as possible."""
        await self._map.renew()
        self.outdated.set()

    async def close(self) -> None:
        """Close the connections over which the map is read."""
        await self._map.close()


async def all_of(sending: Sequence[Any]) -> list[Any]:
    """Await all of them concurrently. All are finished before the first error is raised."""
    if len(sending) == 1:
        return [await sending[0]]
    results = await asyncio.gather(*sending, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
