"""The primaries of a cluster: one link to each, which all requests for its keys share.

A request takes one round trip, because its slot follows from the organization in the API key. While slots are being
moved, or after a replica was promoted, Redis redirects: MOVED and ASK name the node to call, TRYAGAIN means that both
nodes have a part of the keys. The slot map is read again after a redirection, and for as long as a primary cannot be
reached.
"""

import asyncio
import logging
from asyncio import Task, TaskGroup
from collections.abc import Collection

from api.background import keep
from api.errors import ErrorReply, Unavailable
from api.redis.address import ClusterMap
from api.redis.link import Link
from api.redis.servers import Servers
from schemas import names
from schemas.redis_url import Host

_TRYAGAIN_PAUSE_SECONDS = 0.01
_MAP_PAUSE_SECONDS = 0.1
"""The shortest time between two reads of the slot map."""
_CHECK_SECONDS = 0.25

logger = logging.getLogger(__name__)


class Cluster(Servers):
    """A Redis Cluster. `run` reads the slot map and keeps the links."""

    sharded = True

    def __init__(self, map_: ClusterMap, *, timeout: float, max_in_flight: int) -> None:
        """`timeout` and `max_in_flight` apply to each link."""
        super().__init__(timeout)
        self._map = map_
        self._max_in_flight = max_in_flight
        self._links: dict[Host, Link] = {}
        self._running: dict[Host, Task[None]] = {}
        self._owners: list[Link | None] = [None] * names.SLOTS
        self._map_version = 0
        self._tasks: TaskGroup | None = None
        self._map_outdated = asyncio.Event()
        self._map_attempted = asyncio.Event()

    @property
    def in_flight(self) -> int:
        return sum(link.in_flight for link in self._links.values())

    @property
    def links(self) -> Collection[Link]:
        return self._links.values()

    @property
    def map_version(self) -> int:
        return self._map_version

    def link(self, tag: bytes) -> Link:
        link = self._owners[names.tag_slot(tag)]
        if link is None:
            if self._map_attempted.is_set():
                self._map_outdated.set()
            raise Unavailable("no primary of the Redis Cluster is known to serve this slot")
        return link

    async def redirect(self, error: ErrorReply, link: Link, tag: bytes) -> tuple[Link, bool]:
        word, *rest = str(error).split(" ")
        match word:
            case "MOVED":
                self._map_outdated.set()
                return await self._link_to(rest[1], link), False
            case "ASK":
                return await self._link_to(rest[1], link), True
            case "TRYAGAIN":
                await asyncio.sleep(_TRYAGAIN_PAUSE_SECONDS)
                return self.link(tag), False
        self._map_outdated.set()  # CLUSTERDOWN, READONLY and the like
        raise error

    async def run(self) -> None:
        try:
            async with TaskGroup() as self._tasks:
                while True:
                    await keep("the reading of the slot map", self._update)
                    await asyncio.sleep(_MAP_PAUSE_SECONDS)
                    await self._wait_until_outdated()
        finally:
            await self._map.close()

    async def first_attempt(self) -> None:
        await self._map_attempted.wait()
        await asyncio.gather(*(link.first_attempt() for link in self._links.values()))

    async def _update(self) -> None:
        """Read the slot map, open links to new primaries, and close the links to nodes that are no longer primaries."""
        self._map_outdated.clear()
        try:
            owners = await self._map.read()
        except Unavailable as error:
            if not self._map_attempted.is_set():
                logger.warning("the slot map of the Redis Cluster cannot be read", extra={"reason": str(error)})
            return
        finally:
            self._map_attempted.set()
        primaries = {host for host in owners if host}
        links = {host: self._open(host) for host in primaries}
        before, self._owners = self._owners, [links[host] if host else None for host in owners]
        self._map_version += self._owners != before
        for host in self._links.keys() - primaries:
            del self._links[host]
            # A primary that has handed over still answers what it was asked before, for example with MOVED. No caller
            # waits longer than the timeout.
            asyncio.get_running_loop().call_later(self._timeout, self._running.pop(host).cancel)

    async def _wait_until_outdated(self) -> None:
        """Returns when the slot map has to be read again: Redis redirected, or a primary is not connected."""
        while all(link.connected for link in self._links.values()) and self._links:
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._map_outdated.wait()
            except TimeoutError:
                continue
            return

    async def _link_to(self, node: str, named_by: Link) -> Link:
        """Returns the link to a node that Redis named as `host:port`; it is opened if it is new."""
        host, _, port = node.rpartition(":")
        link = self._open((host or named_by.host, int(port)))
        await link.first_attempt()
        return link

    def _open(self, host: Host) -> Link:
        if host not in self._links:
            if self._tasks is None:
                raise Unavailable("the API is shutting down")
            link = Link(self._map.address(host), timeout=self._timeout, max_in_flight=self._max_in_flight)
            self._links[host] = link
            self._running[host] = self._tasks.create_task(link.run())
        return self._links[host]
