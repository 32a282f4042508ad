"""A connection to one Redis server that is re-established whenever it is lost."""

import asyncio
import logging
import random
from asyncio import Future
from typing import Any

from api.errors import Busy, ConnectionLost, ErrorReply, Unavailable
from api.redis.address import Address, Sentinels
from api.redis.connection import Command, Connection

# The first retries are fast, because most outages are restarts. Later ones stay fast enough that service resumes
# within a second of Redis's return, however long the outage was.
_PAUSES_SECONDS = (0.01, 0.05, 0.1, 0.2, 0.3)

logger = logging.getLogger(__name__)


class Link:
    """Keeps one connection to one server. `run` connects and reconnects; while there is no connection, calls fail at
    once, and only after a loss it may be worthwhile to wait for the first attempt to reconnect (`reconnected`).
    """

    def __init__(self, location: Address | Sentinels, *, timeout: float, max_in_flight: int) -> None:
        """`timeout`, in seconds, applies to each reply and to each attempt to connect."""
        self._location = location
        self.host = ""
        """The host of the last attempt to connect."""
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._connection: Connection | None = None
        self._attempted = asyncio.Event()
        self._next_attempt = asyncio.Event()
        """Is set when the first attempt after a loss has ended, and not set while there is a connection."""
        self._busy: Busy | None = None
        """What the last attempt to connect failed with, if Redis was busy with a script."""
        self.times_connected = 0
        """Grows with each connection. What was read over an earlier connection may come from another Redis."""
        self.serving: Any = None
        """What the present connection's server was found to serve last (`api.redis.serving`)."""

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def in_flight(self) -> int:
        return self._connection.in_flight if self._connection else 0

    def call(self, *command: Any) -> Future[Any]:
        """Send a command over the present connection, as Connection.call does. Raises Unavailable."""
        return self._present().call(command)

    def call_packed(self, packed: bytes) -> Future[Any]:
        """Send a packed command over the present connection, as Connection.call_packed does. Raises Unavailable."""
        return self._present().call_packed(packed)

    def call_checked(self, packed: bytes, check: bytes) -> Future[Any]:
        """Send a packed command and a check after it, as Connection.call_checked does. Raises Unavailable."""
        return self._present().call_checked(packed, check)

    def _present(self) -> Connection:
        if self._connection is not None:
            return self._connection
        if self.times_connected and not self._next_attempt.is_set():
            raise ConnectionLost("the connection to Redis was lost a moment ago")
        raise Busy(str(self._busy)) if self._busy else Unavailable("there is no connection to Redis")

    async def reconnected(self) -> None:
        """Returns when there is a connection, or the first attempt to reconnect has failed, within the timeout."""
        if self._connection is None or self._connection.closed:
            await self._next_attempt.wait()

    def disconnect(self, reason: str) -> None:
        """Close the connection to this server. `run` then finds the current address of Redis and connects."""
        if self._connection is not None:
            self._connection.close(reason)

    async def first_attempt(self) -> None:
        """Returns when the first attempt to connect has succeeded or failed, within the timeout."""
        await self._attempted.wait()

    async def run(self) -> None:
        """Connects and reconnects until it is cancelled, then closes the connection."""
        failures = 0
        try:
            while True:
                try:
                    connection = await self._connect(await self._location.find())
                except Exception as error:  # noqa: BLE001 - whatever it is, a later attempt may succeed
                    self._log_failure(failures, error)
                    self._busy = error if isinstance(error, Busy) else None
                    self._attempted.set()
                    self._next_attempt.set()
                    failures += 1
                else:
                    failures = 0
                    await self._use(connection)
                await asyncio.sleep(_pause(failures))
        finally:
            self._attempted.set()  # no other attempt will follow
            self._next_attempt.set()
            await self._location.close()

    async def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._busy = None
        self.times_connected += 1
        self.serving = None
        self._attempted.set()
        self._next_attempt.set()  # for those who wait, and then not until the next loss
        self._next_attempt.clear()
        logger.info("connected to Redis", extra={"redis": repr(self._location)})
        try:
            reason = await connection.lost
            logger.warning("lost the connection to Redis", extra={"redis": repr(self._location), "reason": reason})
        finally:
            self._connection = None
            connection.close("the API is shutting down")
            if not connection.closed_by_peer:  # it did not answer, so the next attempt may take long
                self._next_attempt.set()

    async def _connect(self, address: Address) -> Connection:
        """Returns a connection that is ready for commands. Raises OSError, TimeoutError and Unavailable."""
        self.host = address.host
        async with asyncio.timeout(self._timeout):
            connection = await self._open(address)
            try:
                await self._set_up(connection, address)
            except BaseException:
                connection.close("the connection could not be set up")
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
            raise Unavailable("the server that the Sentinels name as master is a replica")
        try:
            await connection.call((b"CLIENT", b"SETNAME", b"leadview-api"))
        except ErrorReply as error:  # a Redis user without this permission can still be used
            logger.debug("the connection could not be named", extra={"reason": str(error)})

    def _log_failure(self, failures: int, error: Exception) -> None:
        if failures == 0:  # once per outage, not once per attempt
            reason = str(error) or type(error).__name__
            unexpected = None if isinstance(error, OSError | Unavailable) else error
            fields = {"redis": repr(self._location), "reason": reason}
            logger.warning("cannot connect to Redis", extra=fields, exc_info=unexpected)


def _set_up_commands(address: Address) -> list[Command]:
    commands: list[Command] = []
    if credentials := address.credentials():
        commands.append((b"AUTH", *credentials))
    if address.db:
        commands.append((b"SELECT", address.db))
    return commands


def _pause(failures: int) -> float:
    longest = _PAUSES_SECONDS[min(failures, len(_PAUSES_SECONDS) - 1)]
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the workers' attempts, not a secret
