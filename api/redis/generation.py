"""The generation of documents that is served: one number in Redis, which each worker reads twice a second."""

import asyncio
from contextlib import suppress

from api.errors import Rebuilding, Unavailable
from api.redis.link import Link
from api.redis.servers import Servers
from schemas import names

FIRST = 1
POLL_SECONDS = 0.5
TRUSTED_SECONDS = 2.0
"""How long the number may be used after it was requested. All workers serve a promoted generation after this time at
the latest."""


class LiveGeneration:
    """The generation to serve, as last read over the present connection to the server that stores it."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._loop = asyncio.get_running_loop()
        self._number: int | None = None
        self._trusted_until = 0.0
        self._connection: tuple[Link, int] | None = None
        self._was_declared = False
        self._started_empty = False

    @property
    def last_known(self) -> int:
        """The number for the metrics; 0 if it is not known."""
        return self._number or 0

    def current(self) -> int | None:
        """Returns the number, or None if it has to be read first: it is too old, or was read over a connection that
        has been lost since.
        """
        if self._loop.time() > self._trusted_until or self._connection != self._present_connection():
            return None
        return self._number

    async def refresh(self) -> int:
        """Read the number from Redis. Raises Unavailable, and Rebuilding if Redis was emptied."""
        connection, asked_at = self._present_connection(), self._loop.time()
        number = self._read(await self._servers.call(names.GENERATIONS, b"HGET", names.GENERATIONS, b"live"))
        if not self._was_declared and not await self._may_serve_undeclared():
            number = None
        self._number, self._connection = number, connection
        self._trusted_until = asked_at + TRUSTED_SECONDS
        if number is None:
            raise Rebuilding("the first projection is not complete, or Redis was emptied")
        return number

    async def poll(self) -> None:
        """Reads the number twice a second until it is cancelled."""
        while True:
            with suppress(Unavailable):  # the last number expires soon: requests then read it themselves, and fail
                await self.refresh()
            await asyncio.sleep(POLL_SECONDS)

    async def _may_serve_undeclared(self) -> bool:
        """Returns whether generation 1 may be served although no generation was declared live.

        It may if this worker once found Redis without any positions: then no document could be missing. Otherwise a
        projector has begun to fill Redis, and the documents are not complete yet.
        """
        if not self._started_empty:
            self._started_empty = not await self._servers.call(names.HOME, b"EXISTS", names.POSITIONS)
        return self._started_empty

    def _present_connection(self) -> tuple[Link, int] | None:
        try:
            link = self._servers.link(names.GENERATIONS)
        except Unavailable:
            return None
        return link, link.times_connected

    def _read(self, reply: bytes | None) -> int | None:
        if reply is None:
            return None if self._was_declared else FIRST
        if not reply.isdigit():
            raise Unavailable(f"the live generation in Redis is not a number: {reply!r:.20}")
        self._was_declared = True
        return int(reply)
