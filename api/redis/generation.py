"""Which generation of documents is served: one number in Redis, read twice a second by each worker."""

import asyncio
from contextlib import suppress

from api.errors import Rebuilding, Unavailable
from api.redis.link import Link
from api.redis.servers import Servers
from schemas import names

FIRST = 1
POLL_SECONDS = 0.5
TRUSTED_SECONDS = 2.0
"""How long after the question the answer may be used: a promoted generation is served everywhere by then."""


class LiveGeneration:
    """The generation to serve, as last read over the present connection to where it is kept."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._loop = asyncio.get_running_loop()
        self._number: int | None = None
        self._trusted_until = 0.0
        self._connection: tuple[Link, int] | None = None
        self._seen = False
        self._began_empty = False

    @property
    def last_known(self) -> int:
        """For the metrics; 0 where it is not known."""
        return self._number or 0

    def current(self) -> int | None:
        """The number, or None where it must be read first: too old, or from before a break."""
        if self._loop.time() > self._trusted_until or self._connection != self._present():
            return None
        return self._number

    async def refresh(self) -> int:
        """Read the number from Redis. Raises Unavailable, and Rebuilding where Redis was emptied."""
        connection, asked_at = self._present(), self._loop.time()
        number = self._read(await self._servers.call(names.GENERATIONS, b"HGET", names.GENERATIONS, b"live"))
        if not self._seen and not await self._may_begin():
            number = None
        self._number, self._connection = number, connection
        self._trusted_until = asked_at + TRUSTED_SECONDS
        if number is None:
            raise Rebuilding("the first projection is not complete, or Redis was emptied")
        return number

    async def _may_begin(self) -> bool:
        """Where no generation is declared live: was there nothing at all when this was first asked?

        Then nobody can miss anything. Else a projector has begun, and what it fills is not complete yet.
        """
        if not self._began_empty:
            self._began_empty = not await self._servers.call(names.HOME, b"EXISTS", names.POSITIONS)
        return self._began_empty

    async def keep(self) -> None:
        """Reads it again and again until cancelled."""
        while True:
            with suppress(Unavailable):  # nobody trusts an old answer for long
                await self.refresh()
            await asyncio.sleep(POLL_SECONDS)

    def _present(self) -> tuple[Link, int] | None:
        try:
            link = self._servers.link(names.GENERATIONS)
        except Unavailable:
            return None
        return link, link.times_connected

    def _read(self, reply: bytes | None) -> int | None:
        if reply is None:
            return None if self._seen else FIRST
        if not reply.isdigit():
            raise Unavailable(f"the live generation in Redis is no number: {reply[:20]!r}")
        self._seen = True
        return int(reply)
