"""Redis as the store sees it: a connection that is there, or is being made again."""

import asyncio
import logging
import random
from asyncio import Future
from typing import Any

from api.errors import ErrorReply, Unavailable
from api.redis.address import Address, Sentinels
from api.redis.connection import Command, Connection

# Fast at first: most breaks are a restart. Never slow: service is back within a second of Redis, however long it
# was away.
_PAUSES_SECONDS = (0.01, 0.05, 0.1, 0.2, 0.3)

logger = logging.getLogger(__name__)


class Link:
    """Keeps one connection to one server. `keep` makes it and makes it again; until then calls fail at once."""

    def __init__(self, where: Address | Sentinels, *, timeout: float, max_in_flight: int) -> None:
        """`timeout`, in seconds, holds for each reply and for each attempt to connect."""
        self._where = where
        self.host = ""
        """As it was connected to last."""
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._connection: Connection | None = None
        self._tried = asyncio.Event()
        self.times_connected = 0
        """Grows with each connection: what was read over an earlier one may have been of another Redis."""

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def in_flight(self) -> int:
        return self._connection.in_flight if self._connection else 0

    def call(self, *command: Any) -> Future[Any]:
        """As Connection.call."""
        if self._connection is None:
            raise Unavailable("there is no connection to Redis")
        return self._connection.call(command)

    def drop(self, reason: str) -> None:
        """Leave this server; `keep` looks where Redis is now."""
        if self._connection is not None:
            self._connection.close(reason)

    async def first_attempt(self) -> None:
        """Returns when the first attempt to connect is over, well or not: within the timeout."""
        await self._tried.wait()

    async def keep(self) -> None:
        """Runs until it is cancelled, then closes the connection."""
        failures = 0
        try:
            while True:
                try:
                    connection = await self._connect(await self._where.find())
                except (OSError, TimeoutError, Unavailable) as error:
                    self._report(failures, error)
                    self._tried.set()
                    failures += 1
                else:
                    failures = 0
                    await self._use(connection)
                await asyncio.sleep(_pause(failures))
        finally:
            self._tried.set()  # there will be no other
            await self._where.close()

    async def _use(self, connection: Connection) -> None:
        self._connection = connection
        self.times_connected += 1
        self._tried.set()
        logger.info("connected to Redis", extra={"redis": repr(self._where)})
        try:
            reason = await connection.lost
            logger.warning("lost Redis", extra={"redis": repr(self._where), "reason": reason})
        finally:
            self._connection = None
            connection.close("the API is shutting down")

    async def _connect(self, address: Address) -> Connection:
        """A connection that is ready for commands. Raises OSError, TimeoutError, Unavailable."""
        self.host = address.host
        async with asyncio.timeout(self._timeout):
            connection = await self._open(address)
            try:
                await self._set_up(connection, address)
            except BaseException:
                connection.close("it could not be set up")
                raise
            return connection

    async def _open(self, address: Address) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._timeout, self._max_in_flight),
            address.host,
            address.port,
            ssl=address.tls,
        )
        return connection

    async def _set_up(self, connection: Connection, address: Address) -> None:
        for command in _set_up_commands(address):
            await connection.call(command)
        if address.must_be_master and (await connection.call((b"ROLE",)))[0] != b"master":
            raise Unavailable("the Sentinels name a server that is a replica")
        try:
            await connection.call((b"CLIENT", b"SETNAME", b"leadview-api"))
        except ErrorReply as error:  # a user with few rights may not name itself, and need not
            logger.debug("the connection has no name", extra={"reason": str(error)})

    def _report(self, failures: int, error: Exception) -> None:
        if failures == 0:  # once an outage, not once an attempt
            reason = str(error) or type(error).__name__
            logger.warning("cannot reach Redis", extra={"redis": repr(self._where), "reason": reason})


def _set_up_commands(address: Address) -> list[Command]:
    commands: list[Command] = []
    if address.password is not None:
        user = (address.username,) if address.username is not None else ()
        commands.append((b"AUTH", *user, address.password))
    if address.db:
        commands.append((b"SELECT", address.db))
    return commands


def _pause(failures: int) -> float:
    longest = _PAUSES_SECONDS[min(failures, len(_PAUSES_SECONDS) - 1)]
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads workers, guards no secret
