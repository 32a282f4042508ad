"""The Redis servers that the API calls: one server, or the primaries of a cluster. There is a link to each of them,
which all requests for its keys share.

On a cluster, a request takes one round trip, because its slot follows from the organization in the API key. The slot
map is read again after a redirection, and for as long as a primary cannot be reached.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from asyncio import Task, TaskGroup
from contextlib import suppress
from typing import Any

from api.redis.link import Link
from runtime.background import keep
from runtime.redis import routing
from runtime.redis.access import Address, SlotMap, location
from runtime.redis.connection import pack
from runtime.redis.errors import ErrorReply, ReadOnly, Redirected, Unavailable
from runtime.redis.routing import Route
from runtime.redis.scripts import Script
from schemas.settings import ApiSettings

_MAP_PAUSE_SECONDS = 0.1
"""The shortest time between two reads of the slot map."""
_CHECK_SECONDS = 0.25

logger = logging.getLogger(__name__)


class Links(ABC):
    """The links to the Redis servers as the rest of the API uses them, whatever their number."""

    def __init__(self, servers: routing.Routing[Link], timeout: float) -> None:
        """`timeout` is the time, in seconds, during which a call may be retried."""
        self._servers = servers
        self._timeout = timeout
        self._cluster_reported = False
        self.sharded = servers.sharded
        self.link = servers.node
        """Returns the link to the server that holds the keys with this hash tag. Raises Unavailable."""

    @property
    def links(self) -> list[Link]:
        """The links to all servers that hold keys."""
        return [*self._servers.nodes]

    @property
    def map_version(self) -> int:
        """Increases whenever keys may have moved from one server to another."""
        return self._servers.version

    async def renew(self) -> None:
        """Open other connections, to where Redis is now, in place of the present ones. No request fails. Raises
        Unavailable.
        """
        await asyncio.gather(*(link.renew() for link in self.links))

    @abstractmethod
    async def run(self) -> None:
        """Keeps the connections until it is cancelled, then closes them."""

    async def first_attempt(self) -> None:
        """Returns when the first attempt to connect has succeeded or failed."""
        await asyncio.gather(*(link.first_attempt() for link in self.links))

    async def call(self, tag: bytes, *command: Any, script: Script[...] | None = None) -> Any:
        """Returns the reply to a command whose keys have this hash tag. Raises Unavailable.

        `script` is what the command calls, if it calls one.
        """
        link, packed = self.link(tag), pack(command)
        try:
            return await link.connection.call_packed(packed)
        except ErrorReply as error:
            reply, _ = await self.retry(error, link, tag, packed, script)
            return reply

    async def retry(
        self, error: ErrorReply, link: Link, tag: bytes, packed: bytes, script: Script[...] | None = None
    ) -> tuple[Any, Link]:
        """Do what an error reply asks for, then repeat the packed command. Redis did not execute a command that it
        answered with such an error, so nothing is charged twice. Returns the reply, and the link that it came over.

        The `script` that the command calls is loaded if the server does not know it.
        Raises Unavailable, and ErrorReply if the error reply asks for nothing that can be done.
        """
        route = Route(tag, packed, link, script, reply=error)
        await self._servers.repeat([route], Link.exchange, self._timeout)
        match route.reply:
            case ReadOnly():
                route.to.disconnect("the server was demoted to a replica")
            case Redirected() if not (self.sharded or self._cluster_reported):
                self._cluster_reported = True
                logger.error("this Redis is a node of a cluster: write redis+cluster:// in LEADVIEW_REDIS_URL")
        if isinstance(route.reply, ErrorReply):
            raise route.reply
        return route.reply, route.to


class OneLink(Links):
    """The link to a single server, or to the master that Sentinels name."""

    def __init__(self, link: Link, timeout: float) -> None:
        super().__init__(routing.OneServer(link), timeout)
        self._link = link

    async def run(self) -> None:
        await self._link.run()


class ClusterLinks(Links):
    """The links to the primaries of a cluster. `run` reads the slot map and keeps the links."""

    def __init__(self, slot_map: SlotMap, *, timeout: float, max_in_flight: int) -> None:
        """`timeout` and `max_in_flight` apply to each link."""
        self._cluster = routing.Cluster(slot_map, self._open, self._drop)
        super().__init__(self._cluster, timeout)
        self._max_in_flight = max_in_flight
        self._running: dict[Link, Task[None]] = {}
        self._tasks: TaskGroup  # of `run`, which reads the map that names the first nodes
        self._map_attempted = asyncio.Event()

    async def run(self) -> None:
        try:
            async with TaskGroup() as self._tasks:
                while True:
                    await keep("the reading of the slot map", self._update)
                    await asyncio.sleep(_MAP_PAUSE_SECONDS)
                    await self._wait_until_outdated()
        finally:
            await self._cluster.close()

    async def renew(self) -> None:
        await self._cluster.renew()
        await super().renew()

    async def first_attempt(self) -> None:
        await self._map_attempted.wait()
        await super().first_attempt()

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
        while self.links and all(link.connected for link in self.links):
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._cluster.outdated.wait()
                    return

    def _open(self, address: Address) -> Link:
        link = Link(address, timeout=self._timeout, max_in_flight=self._max_in_flight)
        self._running[link] = self._tasks.create_task(link.run())
        return link

    def _drop(self, link: Link) -> None:
        # A primary that has handed over still answers what it was asked before, for example with MOVED. No caller waits
        # longer than the timeout.
        asyncio.get_running_loop().call_later(self._timeout, self._running.pop(link).cancel)


def links(settings: ApiSettings) -> Links:
    """Returns the links to the servers that the settings name. It has to be called in an event loop. Raises
    AddressError.
    """
    timeout, max_in_flight = settings.api_redis_timeout, settings.api_max_in_flight
    where = location(settings, timeout)
    if isinstance(where, SlotMap):
        return ClusterLinks(where, timeout=timeout, max_in_flight=max_in_flight)
    return OneLink(Link(where, timeout=timeout, max_in_flight=max_in_flight), timeout)
