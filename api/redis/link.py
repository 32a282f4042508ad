"""A connection to one Redis server that is re-established whenever it is lost, and one beside it for large values."""

import asyncio
import logging
import random
from asyncio import Future
from typing import Any

from api.redis.turns import Turns
from leadview.redis.access import Address, Sentinels
from leadview.redis.connection import Connection, connect
from leadview.redis.errors import Busy, ConnectionLost, ErrorReply, Unavailable

# The first retries are fast, because most outages are restarts. Later ones stay fast enough that service resumes
# within a second of Redis's return, however long the outage was.
_PAUSES_SECONDS = (0.01, 0.05, 0.1, 0.2, 0.3)

LARGE_EACH, LARGE_TOGETHER = 1, 8
"""Large values that are under way from one server at the same time: for one organization, and for all of them."""

logger = logging.getLogger(__name__)


class Link:
    """Keeps one connection to one server. `run` connects and reconnects; while there is no connection, calls fail at
    once, and only after a loss it may be worthwhile to wait for the first attempt to reconnect (`reconnected`).

    Large values come over a second connection to the same server, which is opened when the first one is asked for, and
    closed with the first connection. So a small reply never waits for a large one.
    """

    def __init__(self, location: Address | Sentinels, *, timeout: float, max_in_flight: int) -> None:
        """`timeout`, in seconds, applies to each reply and to each attempt to connect."""
        self._location = location
        self.host = ""
        """The host of the last attempt to connect."""
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._connection: Connection | None = None
        self._address = Address()
        """Where the present connection leads to."""
        self._large: Connection | None = None
        self._opening_large = asyncio.Lock()
        self._large_turns = Turns(LARGE_EACH, LARGE_TOGETHER, most=max_in_flight, timeout=timeout)
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
        return sum(connection.in_flight for connection in (self._connection, self._large) if connection)

    def call(self, *command: Any) -> Future[Any]:
        """Send a command over the present connection, as Connection.call does. Raises Unavailable."""
        return self._present().call(command)

    def call_packed(self, packed: bytes) -> Future[Any]:
        """Send a packed command over the present connection, as Connection.call_packed does. Raises Unavailable."""
        return self._present().call_packed(packed)

    def call_checked(self, packed: bytes, check: bytes) -> Future[Any]:
        """Send a packed command and a check after it, as Connection.call_checked does. Raises Unavailable."""
        return self._present().call_checked(packed, check)

    async def call_large(self, share: bytes, packed: bytes, check: bytes | None) -> Any:
        """Returns the reply to a packed command that reads a large value, or both replies if there is a check, as
        `Connection.call_checked` does. `share` names whose turn it takes (`Turns`). If it is cancelled, the turn lasts
        until the reply has arrived all the same. Raises Unavailable.
        """
        turn = self._large_turns.take(share)
        if turn is not None:
            await self._large_turns.wait(share, turn)
        try:
            connection = await self._connection_for_large()
            reply = connection.call_checked(packed, check) if check else connection.call_packed(packed)
        except BaseException:
            self._large_turns.leave(share)
            raise

        def arrived(reply: Future[Any]) -> None:
            self._large_turns.leave(share)
            if not reply.cancelled():
                reply.exception()  # whoever asked may not be there any more

        reply.add_done_callback(arrived)
        return await asyncio.shield(reply)

    async def _connection_for_large(self) -> Connection:
        async with self._opening_large:
            present, large = self._present(), self._large
            if large is None or large.closed:
                large = await self._connect(self._address, late=True)
                if self._connection is not present:
                    large.close("it belongs to an earlier connection")
                    raise ConnectionLost("the connection to Redis was lost a moment ago")
                self._large = large
            return large

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
                    address = await self._location.find()
                    connection = await self._connect(address)
                except Exception as error:  # noqa: BLE001 - whatever it is, a later attempt may succeed
                    self._log_failure(failures, error)
                    self._busy = error if isinstance(error, Busy) else None
                    self._attempted.set()
                    self._next_attempt.set()
                    failures += 1
                else:
                    failures = 0
                    await self._use(connection, address)
                await asyncio.sleep(_pause(failures))
        finally:
            self._attempted.set()  # no other attempt will follow
            self._next_attempt.set()
            await self._location.close()

    async def _use(self, connection: Connection, address: Address) -> None:
        self._connection, self._address = connection, address
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
            if self._large is not None:
                self._large.closed_by_peer |= connection.closed_by_peer  # then its callers ask again, too
                self._large.close("the connection to this server was lost")
            if not connection.closed_by_peer:  # it did not answer, so the next attempt may take long
                self._next_attempt.set()

    async def _connect(self, address: Address, *, late: bool = False) -> Connection:
        """Returns a connection that is ready for commands. Raises Unavailable."""
        self.host = address.host
        connection, _ = await connect(
            address, _named, within=self._timeout, max_in_flight=self._max_in_flight, late=late
        )
        return connection

    def _log_failure(self, failures: int, error: Exception) -> None:
        if failures == 0:  # once per outage, not once per attempt
            reason = str(error) or type(error).__name__
            unexpected = None if isinstance(error, Unavailable) else error
            fields = {"redis": repr(self._location), "reason": reason}
            logger.warning("cannot connect to Redis", extra=fields, exc_info=unexpected)


async def _named(connection: Connection) -> None:
    """Give the connection a name, for operators who list the connections of Redis."""
    try:
        await connection.call((b"CLIENT", b"SETNAME", b"leadview-api"))
    except ErrorReply as error:  # a Redis user without this permission can still be used
        logger.debug("the connection could not be named", extra={"reason": str(error)})


def _pause(failures: int) -> float:
    longest = _PAUSES_SECONDS[min(failures, len(_PAUSES_SECONDS) - 1)]
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the workers' attempts, not a secret
