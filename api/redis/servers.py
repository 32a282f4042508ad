"""The Redis servers that the API calls: one server, or the primaries of a cluster. There is a link to each of them,
which all requests for its keys share.

On a cluster, a request takes one round trip, because its slot follows from the organization in the API key. The slot
map is read again after a redirection, and for as long as a primary cannot be reached.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from asyncio import Task, TaskGroup
from collections.abc import Collection
from typing import Any

from api.background import keep
from api.redis.link import Link
from leadview.redis import cluster
from leadview.redis.access import Address, SlotMap, location
from leadview.redis.connection import pack
from leadview.redis.errors import ErrorReply, ReadOnly, Redirected, ScriptMissing, Unavailable
from schemas import names
from schemas.settings import ApiSettings

_TRYAGAIN_PAUSE_SECONDS = 0.01
_MAP_PAUSE_SECONDS = 0.1
"""The shortest time between two reads of the slot map."""
_CHECK_SECONDS = 0.25

logger = logging.getLogger(__name__)


class Servers(ABC):
    """What the rest of the API needs from Redis, whatever the number of servers."""

    sharded = False
    """Whether there are several servers, each with a part of the keys."""

    def __init__(self, timeout: float) -> None:
        """`timeout` is the time, in seconds, during which a call may be retried."""
        self._timeout = timeout

    @property
    @abstractmethod
    def links(self) -> Collection[Link]:
        """The links to all servers that hold keys."""

    @property
    def in_flight(self) -> int:
        """The number of commands without a reply."""
        return sum(link.in_flight for link in self.links)

    @property
    def map_version(self) -> int:
        """Increases whenever keys may have moved from one server to another."""
        return 0

    @abstractmethod
    def link(self, tag: bytes) -> Link:
        """Returns the link to the server that holds the keys with this hash tag, or the key of this name if the name
        has no hash tag. Raises Unavailable.
        """

    @abstractmethod
    async def redirect(self, error: ErrorReply, link: Link, tag: bytes) -> tuple[Link, bool]:
        """Returns the link to call after this error reply, and whether ASKING has to be sent first. Raises ErrorReply
        if the error reply names no other server.
        """

    @abstractmethod
    async def run(self) -> None:
        """Keeps the connections until it is cancelled, then closes them."""

    @abstractmethod
    async def first_attempt(self) -> None:
        """Returns when the first attempt to connect has succeeded or failed."""

    async def call(self, tag: bytes, *command: Any, script: bytes = b"") -> Any:
        """Returns the reply to a command whose keys have this hash tag. Raises Unavailable.

        `script` is the source of the script that the command calls.
        """
        link, packed = self.link(tag), pack(command)
        try:
            return await link.call_packed(packed)
        except ErrorReply as error:
            reply, _ = await self.retry(error, link, tag, packed, script)
            return reply

    async def retry(
        self, error: ErrorReply, link: Link, tag: bytes, packed: bytes, script: bytes = b""
    ) -> tuple[Any, Link]:
        """Do what an error reply asks for, then repeat the packed command. Redis did not execute a command that it
        answered with such an error, so nothing is charged twice. Returns the reply, and the link that it came over.

        `script` is the source of the script that the command calls; it is loaded if the server does not know it.
        Raises Unavailable, and ErrorReply if the error reply asks for nothing that can be done.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        asking = False
        while True:
            if loop.time() > deadline:
                raise error
            if isinstance(error, ScriptMissing) and script:
                await link.call(b"SCRIPT", b"LOAD", script)
            else:
                link, asking = await self.redirect(error, link, tag)
            try:
                if asking:
                    link.call(b"ASKING").cancel()  # applies to the next command; its own reply is not needed
                return await link.call_packed(packed), link
            except ErrorReply as next_error:
                error = next_error


class OneServer(Servers):
    """A single server, or the master that Sentinels name."""

    def __init__(self, link: Link, timeout: float) -> None:
        super().__init__(timeout)
        self._link = link
        self._cluster_reported = False

    @property
    def links(self) -> Collection[Link]:
        return (self._link,)

    def link(self, tag: bytes) -> Link:  # noqa: ARG002 - one server holds all keys
        return self._link

    async def redirect(self, error: ErrorReply, link: Link, tag: bytes) -> tuple[Link, bool]:  # noqa: ARG002
        match error:
            case ReadOnly():
                link.disconnect("the server was demoted to a replica")
            case Redirected() if not self._cluster_reported:
                self._cluster_reported = True
                logger.error("this Redis is a node of a cluster: write redis+cluster:// in LEADVIEW_REDIS_URL")
        raise error

    async def run(self) -> None:
        await self._link.run()

    async def first_attempt(self) -> None:
        await self._link.first_attempt()


class Cluster(Servers):
    """A Redis Cluster. `run` reads the slot map and keeps the links."""

    sharded = True

    def __init__(self, slot_map: SlotMap, *, timeout: float, max_in_flight: int) -> None:
        """`timeout` and `max_in_flight` apply to each link."""
        super().__init__(timeout)
        self._max_in_flight = max_in_flight
        self._cluster = cluster.Cluster(slot_map, self._open, self._drop)
        self._running: dict[Link, Task[None]] = {}
        self._tasks: TaskGroup | None = None
        self._map_attempted = asyncio.Event()

    @property
    def links(self) -> Collection[Link]:
        return self._cluster.nodes.values()

    @property
    def map_version(self) -> int:
        return self._cluster.version

    def link(self, tag: bytes) -> Link:
        slot = names.tag_slot(tag)
        return self._cluster.owners[slot] or self._cluster.owner(slot)

    async def redirect(self, error: ErrorReply, link: Link, tag: bytes) -> tuple[Link, bool]:
        if isinstance(error, Redirected):
            host = error.node(link.host)
            if host is None:
                await asyncio.sleep(_TRYAGAIN_PAUSE_SECONDS)
                return self.link(tag), False
            if error.moved:
                self._cluster.outdated.set()
            link = self._cluster.node(host)
            await link.first_attempt()
            return link, error.asking
        self._cluster.outdated.set()  # CLUSTERDOWN, READONLY and the like
        raise error

    async def run(self) -> None:
        try:
            async with TaskGroup() as self._tasks:
                while True:
                    await keep("the reading of the slot map", self._update)
                    await asyncio.sleep(_MAP_PAUSE_SECONDS)
                    await self._wait_until_outdated()
        finally:
            await self._cluster.close()

    async def first_attempt(self) -> None:
        await self._map_attempted.wait()
        await asyncio.gather(*(link.first_attempt() for link in self.links))

    async def _update(self) -> None:
        """Read the slot map, open links to new primaries, and close the links to nodes that are no longer primaries."""
        try:
            await self._cluster.read()
        except Unavailable as error:
            if not self._map_attempted.is_set():
                logger.warning("the slot map of the Redis Cluster cannot be read", extra={"reason": str(error)})
        finally:
            self._map_attempted.set()

    async def _wait_until_outdated(self) -> None:
        """Returns when the slot map has to be read again: Redis redirected, or a primary is not connected."""
        while all(link.connected for link in self.links) and self.links:
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._cluster.outdated.wait()
            except TimeoutError:
                continue
            return

    def _open(self, address: Address) -> Link:
        if self._tasks is None:
            raise Unavailable("the API is shutting down")
        link = Link(address, timeout=self._timeout, max_in_flight=self._max_in_flight)
        self._running[link] = self._tasks.create_task(link.run())
        return link

    def _drop(self, link: Link) -> None:
        # A primary that has handed over still answers what it was asked before, for example with MOVED. No caller waits
        # longer than the timeout.
        asyncio.get_running_loop().call_later(self._timeout, self._running.pop(link).cancel)


def servers(settings: ApiSettings) -> Servers:
    """Returns the servers that the settings name. It has to be called in an event loop. Raises AddressError."""
    timeout, max_in_flight = settings.api_redis_timeout, settings.api_max_in_flight
    where = location(settings, timeout)
    if isinstance(where, SlotMap):
        return Cluster(where, timeout=timeout, max_in_flight=max_in_flight)
    return OneServer(Link(where, timeout=timeout, max_in_flight=max_in_flight), timeout)
