"""The primaries of a cluster: one link to each, shared by all requests whose keys it holds.

A request costs one trip: its slot is known from the organization in the key. Where slots are on their way, or a replica
has taken over, Redis says so: MOVED and ASK name the node to go to, TRYAGAIN asks for patience. The map is read
again then, and for as long as a primary cannot be reached.
"""

import asyncio
import logging
from asyncio import Task, TaskGroup

from api.errors import ErrorReply, Unavailable
from api.redis.address import ClusterMap
from api.redis.link import Link
from api.redis.servers import Servers
from schemas import names
from schemas.redis_url import Host

_TRYAGAIN_PAUSE_SECONDS = 0.01
_PAUSE_SECONDS = 0.1
_LOOK_SECONDS = 0.25

logger = logging.getLogger(__name__)


class Cluster(Servers):
    """A cluster. `keep` reads the map and keeps the links."""

    def __init__(self, map_: ClusterMap, *, timeout: float, max_in_flight: int) -> None:
        """As Link, for each of them."""
        super().__init__(timeout)
        self._map = map_
        self._max_in_flight = max_in_flight
        self._links: dict[Host, Link] = {}
        self._keeping: dict[Host, Task[None]] = {}
        self._owners: list[Link | None] = [None] * names.SLOTS
        self._tasks: TaskGroup | None = None
        self._changed = asyncio.Event()
        self._tried = asyncio.Event()

    @property
    def in_flight(self) -> int:
        return sum(link.in_flight for link in self._links.values())

    def link(self, tag: bytes) -> Link:
        link = self._owners[names.tag_slot(tag)]
        if link is None:
            if self._tried.is_set():
                self._changed.set()
            raise Unavailable("no primary of the Redis Cluster is known to serve this slot")
        return link

    async def redirected(self, error: ErrorReply, link: Link, tag: bytes) -> tuple[Link, bool]:
        word, *rest = str(error).split(" ")
        match word:
            case "MOVED":
                self._changed.set()
                return await self._link_to(rest[1], link), False
            case "ASK":
                return await self._link_to(rest[1], link), True
            case "TRYAGAIN":
                await asyncio.sleep(_TRYAGAIN_PAUSE_SECONDS)
                return self.link(tag), False
        self._changed.set()  # CLUSTERDOWN, READONLY and the like
        raise error

    async def keep(self) -> None:
        try:
            async with TaskGroup() as self._tasks:
                while True:
                    await self._follow()
                    self._tried.set()
                    await asyncio.sleep(_PAUSE_SECONDS)
                    await self._wait()
        finally:
            await self._map.close()

    async def first_attempt(self) -> None:
        await self._tried.wait()
        await asyncio.gather(*(link.first_attempt() for link in self._links.values()))

    async def _follow(self) -> None:
        """Read the map, link to new primaries, leave those that are none any more."""
        self._changed.clear()
        try:
            owners = await self._map.read()
        except Unavailable as error:
            if not self._tried.is_set():
                logger.warning("the map of the Redis Cluster cannot be read", extra={"reason": str(error)})
            return
        primaries = {host for host in owners if host}
        links = {host: self._open(host) for host in primaries}
        self._owners = [links[host] if host else None for host in owners]
        for host in self._links.keys() - primaries:
            del self._links[host]
            self._keeping.pop(host).cancel()

    async def _wait(self) -> None:
        """Until the map is to be read again."""
        while all(link.connected for link in self._links.values()) and self._links:
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue
            return

    async def _link_to(self, place: str, said_by: Link) -> Link:
        """The link to a node that Redis named, which may be new."""
        host, _, port = place.rpartition(":")
        link = self._open((host or said_by.host, int(port)))
        await link.first_attempt()
        return link

    def _open(self, host: Host) -> Link:
        if host not in self._links:
            if self._tasks is None:
                raise Unavailable("the API is shutting down")
            link = Link(self._map.address(host), timeout=self._timeout, max_in_flight=self._max_in_flight)
            self._links[host] = link
            self._keeping[host] = self._tasks.create_task(link.keep())
        return self._links[host]
