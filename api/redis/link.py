"""The connection to one Redis server, which all requests for its keys share, and a second one for large values."""

import asyncio
import logging
import random
from asyncio import Future, Task
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from api.redis.fair_queue import FairQueue
from runtime.redis.access import Address, Sentinels
from runtime.redis.connection import Check, Connection, connect, pack
from runtime.redis.errors import Busy, ConnectionLost, ErrorReply, Unavailable
from schemas.control import GenerationId
from schemas.layouts import CERTAIN, PART

# The first retries are fast, because most outages are restarts. Later ones stay fast enough that service resumes
# within a second of Redis's return, however long the outage was.
_PAUSES_SECONDS = (0.01, 0.05, 0.1, 0.2, 0.3)

LARGE_EACH, LARGE_TOGETHER = 1, 8
"""Large values that are under way from one server at the same time: for one organization, and for all of them."""

_DRAIN_PAUSE_SECONDS = 0.01
_PROMPT = 1 / 3
"""The share of the timeout after which a connection for large values that says nothing is replaced by another one."""

logger = logging.getLogger(__name__)


class LiveGeneration(Struct, frozen=True):
    """The last answer of a shard, and the generation that is served from it (`api/redis/serving.py`).

    On a cluster it holds for one version of the slot map, and `slots` has 1 for each slot for which the shard is
    believed. Otherwise `slots` is None.
    """

    reply: list[bytes | None]
    generation: GenerationId
    map_version: int = 0
    slots: bytes | None = None


class Link:
    """Keeps one connection to one server. `run` connects and reconnects; while there is no connection, calls fail at
    once. Only at the beginning and after a loss it may be worthwhile to wait for the first attempt (`reconnected`): a
    promoted node of a cluster is named before it is connected.

    Large values come over a second connection to the same server, which is opened when the first one is asked for, and
    closed with the first connection. So a small reply never waits for a large one.
    """

    def __init__(self, location: Address | Sentinels, *, timeout: float, max_in_flight: int) -> None:
        """`timeout`, in seconds, applies to each reply and to each attempt to connect."""
        self._location = location
        self.address = Address()
        """The server of the last attempt to connect."""
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._connection: Connection | None = None
        self._large: Connection | None = None
        self._opening_large = asyncio.Lock()
        self._large_turns = FairQueue(LARGE_EACH, LARGE_TOGETHER, most=max_in_flight, timeout=timeout)
        self._attempted = asyncio.Event()
        self._next_attempt = asyncio.Event()
        """Is set when the first attempt, at the beginning or after a loss, has failed; not set while there is a
        connection."""
        self._failure: Exception | None = None
        """The error of the last attempt to connect; None if it has succeeded."""
        self.served: LiveGeneration | None = None
        """The live generation that was last read over the present connection; None if the server has to be asked."""

    @property
    def host(self) -> str:
        """The host of the server of the last attempt to connect."""
        return self.address.host

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def in_flight(self) -> int:
        """The number of commands without a reply."""
        return sum(connection.in_flight for connection in (self._connection, self._large) if connection)

    @property
    def connection(self) -> Connection:
        """The present connection. Raises Unavailable if there is none."""
        if self._connection is not None:
            return self._connection
        if not self._next_attempt.is_set():
            raise ConnectionLost("the connection to Redis was lost a moment ago, or is being opened for the first time")
        if isinstance(self._failure, Busy):
            raise Busy(str(self._failure))
        raise Unavailable(f"there is no connection to Redis: {_text(self._failure)}")

    async def read_large(self, queue: bytes, name: bytes, check: Check | None) -> tuple[list[bytes], Any, Any]:
        """Returns the parts of a large value (one empty part if there is none), the reply of the check from before the
        first part, and that from after the last part. All parts are of one version of the value.

        It takes a turn in this `queue` (`FairQueue`). Even if it is cancelled, the turn lasts until all parts have
        arrived. Raises Unavailable.
        """
        turn = self._large_turns.take(queue)
        if turn is not None:
            await self._large_turns.wait(queue, turn)
        reading = asyncio.create_task(self._parts(name, check))

        def ended(reading: Task[Any]) -> None:
            self._large_turns.leave(queue)
            if not reading.cancelled():
                reading.exception()  # the request may not be there any more

        reading.add_done_callback(ended)
        await asyncio.wait([reading])  # unlike `shield`, it reports nothing if the request is not there any more
        return reading.result()

    async def _parts(self, name: bytes, check: Check | None) -> tuple[list[bytes], Any, Any]:
        connection, is_new = await self._connection_for_large()
        again = pack((b"GETRANGE", name, CERTAIN.start, CERTAIN.stop - 1))
        first = connection.call_packed(check.before if check else again)
        before = await (first if is_new else self._prompt(connection, first))
        while True:
            parts: list[bytes] = []
            while not parts or len(parts[-1]) == PART:
                place = len(parts) * PART
                parts.append(await connection.call_packed(pack((b"GETRANGE", name, place, place + PART - 1))))
            if check is None:
                beginning, after = await connection.call_packed(again), None
            else:
                beginning, _, after = await connection.call_packed(again, check)
            if parts[0][CERTAIN] == beginning:  # otherwise it was written between two parts
                return parts, before, after

    async def _prompt(self, connection: Connection, reply: Future[Any]) -> Any:
        """Returns the reply to the first command of a value. Raises ConnectionLost if nothing arrives for a third of
        the timeout (`_PROMPT`): the network may have forgotten the connection, and there is time to use another one.
        """
        sent_at = asyncio.get_running_loop().time()
        await asyncio.wait([reply], timeout=self._timeout * _PROMPT)
        if not reply.done() and connection.received_at < sent_at:
            connection.closed_by_peer = True  # then its callers ask again
            connection.close("nothing arrives over the connection for large values")
        return await reply

    async def keep_large(self, *words: Any) -> None:
        """Send a command over the second connection, if there is one: so nothing on the way forgets it, and a dead one
        is found while nobody waits for it. Raises Unavailable.
        """
        if self._large is not None and not self._large.closed:
            await self._large.call(words)

    async def _connection_for_large(self) -> tuple[Connection, bool]:
        """Returns the second connection, and whether it was opened now."""
        async with self._opening_large:
            present, large = self.connection, self._large
            if is_new := large is None or large.closed:
                large = await self._connect(late=True)
                if self._connection is not present:
                    large.close("it belongs to an earlier connection")
                    raise ConnectionLost("the connection to Redis was lost a moment ago")
                self._large = large
            return large, is_new

    async def exchange(self, packed: Sequence[bytes]) -> list[Any]:
        """Send packed commands, as soon as the first attempt to connect is over. Returns the replies in order; each may
        be an ErrorReply. Raises Unavailable.
        """
        await self.first_attempt()
        return await self.connection.pipeline(packed)

    async def reconnected(self) -> None:
        """Returns when there is a connection, or the first attempt to open one has failed, within the timeout."""
        if self._connection is None or self._connection.closed:
            await self._next_attempt.wait()

    def disconnect(self, reason: str) -> None:
        """Close the connection to this server. `run` then finds the current address of Redis and connects."""
        if self._connection is not None:
            self._connection.close(reason)

    async def renew(self) -> None:
        """Open another connection to where Redis is now, and use it from then on. What waits for a reply over the
        former one gets it, and no request fails. Raises Unavailable; then the former one stays.
        """
        former = self._connection
        if former is None:
            return  # one is being opened
        await self._location.renew()
        address = await self._location.find()
        connection = await self._connect_to(address)
        if self._connection is not former:
            connection.close("the former connection was lost meanwhile")
            return
        self.address, self._connection, self.served = address, connection, None
        large, self._large = self._large, None
        if large is not None:
            large.closed_by_peer = True  # then its callers ask again
            large.close("another connection has taken its place")
        try:
            while former.in_flight and not former.closed:  # noqa: ASYNC110 - requests pay for no event
                await asyncio.sleep(_DRAIN_PAUSE_SECONDS)
        finally:
            former.close("another connection has taken its place")

    async def first_attempt(self) -> None:
        """Returns when the first attempt to connect has succeeded or failed, within the timeout."""
        await self._attempted.wait()

    async def run(self) -> None:
        """Connects and reconnects until it is cancelled, then closes the connection."""
        failures = 0
        try:
            while True:
                try:
                    self.address = await self._location.find()
                    connection = await self._connect()
                except Exception as error:  # noqa: BLE001 - whatever it is, a later attempt may succeed
                    self._log_failure(failures, error)
                    self._failure = error
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
        self._failure = None
        self.served = None  # it may be another Redis than before
        self._attempted.set()
        self._next_attempt.set()  # for those who wait, and then not until the next loss
        self._next_attempt.clear()
        logger.info("connected to Redis", extra={"redis": repr(self._location)})
        try:
            reason = await connection.lost
            while self._connection is not connection:
                connection = self._connection  # it was renewed
                reason = await connection.lost
            self._failure = Unavailable(reason)
            logger.warning("lost the connection to Redis", extra={"redis": repr(self._location), "reason": reason})
        finally:
            connection, self._connection = self._connection, None
            connection.close("the API is shutting down")
            if self._large is not None:
                self._large.closed_by_peer |= connection.closed_by_peer  # then its callers ask again, too
                self._large.close("the connection to this server was lost")
            if not connection.closed_by_peer:  # it did not answer, so the next attempt may take long
                self._next_attempt.set()

    async def _connect(self, *, late: bool = False) -> Connection:
        """Returns a connection that is ready for commands. Raises Unavailable."""
        return await self._connect_to(self.address, late=late)

    async def _connect_to(self, address: Address, *, late: bool = False) -> Connection:
        connection, _ = await connect(
            address, _prove, within=self._timeout, max_in_flight=self._max_in_flight, late=late
        )
        return connection

    def _log_failure(self, failures: int, error: Exception) -> None:
        if failures == 0:  # once per outage, not once per attempt
            logger.warning(
                "cannot connect to Redis",
                extra={"redis": repr(self._location), "reason": _text(error)},
                exc_info=None if isinstance(error, Unavailable) else error,
            )


def _text(error: Exception | None) -> str:
    return str(error) or type(error).__name__


async def _prove(connection: Connection) -> None:
    """Give the connection a name, for operators who list the connections of Redis. Raises Unavailable if the server is
    a replica, in which no request can be charged.
    """
    await _call_if_permitted(connection, b"CLIENT", b"SETNAME", b"leadview-api")
    role = await _call_if_permitted(connection, b"ROLE")
    if role and role[0] != b"master":
        raise Unavailable("Redis is a replica, and its master is needed")


async def _call_if_permitted(connection: Connection, *command: bytes) -> Any:
    """Returns the reply; None if it is an error: a Redis user without this permission can still be used."""
    try:
        return await connection.call(command)
    except ErrorReply as error:
        logger.debug("a new connection could not be set up completely", extra={"reason": str(error)})
        return None


def _pause(failures: int) -> float:
    longest = _PAUSES_SECONDS[min(failures, len(_PAUSES_SECONDS) - 1)]
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the workers' attempts, not a secret
