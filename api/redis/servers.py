"""The Redis servers that the API calls: one server, or the primaries of a cluster. There is a link to each of them,
which all requests for its keys share.

On a cluster, a request takes one round trip, because its slot follows from the organization in the API key. The slot
map is read again after a redirection, and for as long as a primary cannot be reached.
"""

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from asyncio import CancelledError, Future, Task, TaskGroup
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from msgspec import Struct

from runtime.background import keep
from runtime.redis.access import Address, Sentinels, SlotMap, location
from runtime.redis.cluster import Primaries
from runtime.redis.connection import Check, Connection, connect, pack
from runtime.redis.errors import Busy, ConnectionLost, ErrorReply, ReadOnly, Redirected, ScriptMissing, Unavailable
from runtime.redis.scripts import Script
from schemas import names
from schemas.control import GenerationId
from schemas.layouts import CERTAIN, PART
from schemas.settings import ApiSettings

SHARED_BY = 4
"""The least number of organizations that share the places of the calls that wait or are under way."""
# The first retries are fast, because most outages are restarts. Later ones stay fast enough that service resumes
# within a second of Redis's return, however long the outage was.
_PAUSES_SECONDS = (0.01, 0.05, 0.1, 0.2, 0.3)

LARGE_EACH, LARGE_TOGETHER = 1, 8
"""Large values that are under way from one server at the same time: for one organization, and for all of them."""

_TRYAGAIN_PAUSE_SECONDS = 0.01
_MAP_PAUSE_SECONDS = 0.1
"""The shortest time between two reads of the slot map."""
_CHECK_SECONDS = 0.25
_DRAIN_PAUSE_SECONDS = 0.01
_PROMPT = 1 / 3
"""The share of the timeout after which a connection for large values that says nothing is replaced by another one."""

logger = logging.getLogger(__name__)


class FairQueue:
    """Decides who may call Redis now: at most `each` calls of one organization, and `together` calls of all, are under
    way. The waiting calls of an organization get their turns in order, and the organizations one after the other.

    All organizations share a connection to Redis, and its replies arrive in the order of the calls. So the calls of one
    organization that are under way delay all others: their number must not grow with what that organization sends.

    At most `most` calls are under way or wait, a quarter of them of one organization. None waits longer than `timeout`
    seconds for its turn.

    `queue` names the organization for which a call is counted. Its calls with keys that are not known yet have a queue
    of their own (`api/documents.py`).
    """

    def __init__(self, each: int, together: int, *, most: int, timeout: float) -> None:
        self._each = each
        self._together = together
        self._most_each = max(each, most // SHARED_BY)
        self._most = most
        self._timeout = timeout
        self._under_way: dict[bytes, int] = {}
        self._count = 0
        self._waiting: dict[bytes, deque[Future[None]]] = {}
        self._waiters = 0
        self._line: deque[bytes] = deque()
        """Those who wait and may have a turn: they have fewer than `each` calls under way."""

    @property
    def pending(self) -> int:
        """The calls that are under way or wait."""
        return self._count + self._waiters

    def take(self, queue: bytes) -> Future[None] | None:
        """Take a turn. Returns None if it is this call's turn now, otherwise what to pass to `wait`. In the end, call
        `leave`. Raises Unavailable.
        """
        under_way = self._under_way.get(queue, 0)
        if self._count + self._waiters >= self._most:
            raise Unavailable(f"{self._most} requests are waiting for Redis already")
        if under_way < self._each and self._count < self._together:
            self._under_way[queue] = under_way + 1
            self._count += 1
            return None
        waiting = self._waiting.get(queue)
        if under_way + (len(waiting) if waiting else 0) >= self._most_each:
            raise Unavailable(f"{self._most_each} requests of this organization are waiting for Redis already")
        if waiting is None:
            waiting = self._waiting[queue] = deque()
            if under_way < self._each:
                self._line.append(queue)
        turn: Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._waiters += 1
        return turn

    async def wait(self, queue: bytes, turn: Future[None]) -> None:
        """Returns when this turn has come. Raises Unavailable."""
        timer = asyncio.get_running_loop().call_later(self._timeout, self._expire, turn)
        try:
            await turn
        except CancelledError:
            if not turn.cancelled() and not turn.exception():
                self.leave(queue)  # it had its turn in the same moment
            raise
        finally:
            timer.cancel()
            self._waiters -= 1

    def leave(self, queue: bytes) -> None:
        """End a call."""
        self._count -= 1
        left = self._under_way[queue] - 1
        if left:
            self._under_way[queue] = left
        else:
            del self._under_way[queue]
        if self._waiting:
            if left + 1 == self._each and queue in self._waiting:
                self._line.append(queue)
            self._give()

    def _give(self) -> None:
        while self._line and self._count < self._together:
            queue = self._line.popleft()
            waiting = self._waiting[queue]
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._under_way[queue] = self._under_way.get(queue, 0) + 1
                self._count += 1
            if not waiting:
                del self._waiting[queue]
            elif self._under_way.get(queue, 0) < self._each:
                self._line.append(queue)

    def _expire(self, turn: Future[None]) -> None:
        if not turn.done():
            turn.set_exception(Unavailable(f"it was not this request's turn within {self._timeout:g} s"))


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
        """Returns the parts of a large value, one empty part if there is none, and the replies to the check, whose
        first command Redis executed before the first part, and the other one after the last part. All parts are of one
        version of the value.

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
        return await asyncio.shield(reading)

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


class Servers(ABC):
    """The Redis servers as the rest of the API uses them, whatever their number."""

    sharded = False
    """True if there are several servers, each with a part of the keys."""
    links: Collection[Link]
    """The links to all servers that hold keys."""

    def __init__(self, timeout: float) -> None:
        """`timeout` is the time, in seconds, during which a call may be retried."""
        self._timeout = timeout

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

    async def renew(self) -> None:
        """Open other connections, to where Redis is now, in place of the present ones. No request fails. Raises
        Unavailable.
        """
        await asyncio.gather(*(link.renew() for link in list(self.links)))

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
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        asking = False
        while True:
            if loop.time() > deadline:
                raise error
            if isinstance(error, ScriptMissing) and script:
                await link.connection.call((b"SCRIPT", b"LOAD", script.text))
            else:
                link, asking = await self.redirect(error, link, tag)
            try:
                if asking:
                    # It applies to the next command. Its own reply is not needed.
                    link.connection.call((b"ASKING",)).cancel()
                return await link.connection.call_packed(packed), link
            except ErrorReply as next_error:
                error = next_error


class OneServer(Servers):
    """A single server, or the master that Sentinels name."""

    def __init__(self, link: Link, timeout: float) -> None:
        super().__init__(timeout)
        self.links = (link,)
        self._link = link
        self._cluster_reported = False

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


class Cluster(Servers):
    """A Redis Cluster. `run` reads the slot map and keeps the links."""

    sharded = True

    def __init__(self, slot_map: SlotMap, *, timeout: float, max_in_flight: int) -> None:
        """`timeout` and `max_in_flight` apply to each link."""
        super().__init__(timeout)
        self._max_in_flight = max_in_flight
        self._primaries = Primaries(slot_map, self._open, self._drop)
        self.links = self._primaries.nodes.values()  # a view: always those of now
        self._running: dict[Link, Task[None]] = {}
        self._tasks: TaskGroup  # of `run`, which reads the map that names the first nodes
        self._map_attempted = asyncio.Event()

    @property
    def map_version(self) -> int:
        return self._primaries.version

    def link(self, tag: bytes) -> Link:
        slot = names.tag_slot(tag)
        return self._primaries.owners[slot] or self._primaries.owner(slot)

    async def redirect(self, error: ErrorReply, link: Link, tag: bytes) -> tuple[Link, bool]:
        if isinstance(error, Redirected):
            host = error.node(link.address.host)
            if host is None:
                await asyncio.sleep(_TRYAGAIN_PAUSE_SECONDS)
                return self.link(tag), False
            if error.moved:
                self._primaries.outdated.set()
            link = self._primaries.node(host)
            await link.first_attempt()
            return link, error.asking
        self._primaries.outdated.set()  # CLUSTERDOWN, READONLY and the like
        raise error

    async def run(self) -> None:
        try:
            async with TaskGroup() as self._tasks:
                while True:
                    await keep("the reading of the slot map", self._update)
                    await asyncio.sleep(_MAP_PAUSE_SECONDS)
                    await self._wait_until_outdated()
        finally:
            await self._primaries.close()

    async def renew(self) -> None:
        await self._primaries.renew()
        await super().renew()

    async def first_attempt(self) -> None:
        await self._map_attempted.wait()
        await super().first_attempt()

    async def _update(self) -> None:
        """Read the slot map, open links to new primaries, and close the links to nodes that are no longer primaries."""
        try:
            await self._primaries.read()
        except Unavailable as error:
            if not self._map_attempted.is_set():
                logger.warning("the slot map of the Redis Cluster cannot be read", extra={"reason": str(error)})
        finally:
            self._map_attempted.set()

    async def _wait_until_outdated(self) -> None:
        """Returns when the slot map has to be read again: Redis redirected, or a primary is not connected."""
        while all(link.connected for link in self.links) and self.links:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._primaries.outdated.wait()
                    return

    def _open(self, address: Address) -> Link:
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
