"""One connection to Redis, which many callers may share. Commands that are issued in the same turn of the event loop go
out in one write, and Redis replies in the order of the commands.

    call ──► unsent ──(one write per turn, or per 16 commands)──► Redis ──► reader ──► callers, first in, first out

This order is the only link between a reply and its caller. A caller that gave up therefore keeps its place in the
queue, and its reply is discarded when it arrives: if replies shifted by one, an organization would be handed another
organization's document (CVE-2023-28858). For the same reason, a connection on which anything went wrong is closed and
never used again, whatever may still arrive on it.

A caller that has waited too long fails alone while anything arrives, because the others may still get their replies.
Only if nothing arrives, or if one reply takes much too long, the connection counts as dead.

A *checked* command is answered together with the replies to two others, its check: Redis executes one of them before
all checked commands of a write, and the other one after them. So every caller learns, in the same
round trip, the state of the server when it executed the command. The replies to a *pipeline* reach its caller together.
"""

import asyncio
import os
import socket
import struct
from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import Any, TypeVar

import hiredis
from hiredis import ReplyError
from msgspec import Struct

from runtime.keep_alive import keep_alive
from runtime.redis.access import Address
from runtime.redis.errors import AddressError, ConnectionLost, ErrorReply, Unavailable

T = TypeVar("T")

Argument = bytes | str | int
Words = tuple[Argument, ...]
"""A command of Redis: its name and its arguments."""

_CHECKS_PER_TIMEOUT = 10
_LONGEST_TIMEOUTS = 4
"""A connection is given up if a reply takes this number of timeouts, even if bytes arrive: they may be a trickle."""
_MAX_UNSENT = 16
"""Maximum number of commands in one write. Redis executes the first ones while this process still prepares the others;
otherwise the two would wait for each other in turns."""
_INCOMPLETE = object()
_NO_LINGER = struct.pack("ii", 1, 0)
pack: Callable[[Words], bytes] = hiredis.pack_command  # type: ignore[assignment]  # declared as a 1-tuple
"""Returns a command in the protocol of Redis."""


class Check(Struct, frozen=True):
    """The packed commands that Redis executes right before and right after checked commands."""

    before: bytes
    after: bytes


class Connection(asyncio.Protocol):
    """A connection from its opening to its loss. `lost` is done when the connection is over; its result is the reason.

    `timeout` is in seconds. A caller that has waited longer fails, unless `late` callers may wait on. If nothing at all
    has arrived for `timeout` while the oldest command waited, the connection counts as dead and all its callers fail.
    """

    def __init__(self, timeout: float, max_in_flight: int, *, late: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._late = late
        self._received_at = self._loop.time()
        self._max_in_flight = max_in_flight
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._unsent: list[bytes] = []
        self._callers: deque[tuple[Future[Any] | None, float, bool | list[Any]]] = deque()
        """The future of each command, when it was sent, and how its reply reaches the caller:

        future, False   at once
        future, True    together with the replies to the check around it
        future, list    in this list, with the replies of the same pipeline before it, after the last one (`pipeline`)
        None, True      this begins a check: its reply goes to the checked commands that follow
        None, False     this ends it: its reply goes to the checked commands before it
        """
        self._check: Check | None = None
        self._checking = False
        self._checks = 0
        """The commands of checks without a reply."""
        self._before: object = None
        """The reply to the first command of the check whose replies arrive now."""
        self._checked: list[tuple[Future[Any], Any]] = []
        """Checked commands whose own reply has arrived, but not the last one of their check."""
        self._timeout_check: asyncio.TimerHandle | None = None
        self._last_error = (0.0, "")
        """The last error that Redis replied with, and when it arrived."""
        self.lost: Future[str] = self._loop.create_future()
        self.closed_by_peer = False

    @property
    def closed(self) -> bool:
        return self._transport is None

    @property
    def received_at(self) -> float:
        """When bytes arrived last, by the clock of the event loop."""
        return self._received_at

    @property
    def in_flight(self) -> int:
        """The number of commands without a reply, including those whose callers gave up, without the checks."""
        return len(self._callers) - self._checks + len(self._checked)

    def call(self, words: Words) -> Future[Any]:
        """Send a command, at the latest at the end of this turn of the event loop. The future's result is the reply,
        with bytes undecoded; its error is ErrorReply, ConnectionLost or Unavailable. It may be cancelled at any time.

        Raises Unavailable at once if the connection is closed or `max_in_flight` commands are waiting already.
        """
        return self.call_packed(pack(words))

    def call_packed(self, packed: bytes, check: Check | None = None) -> Future[Any]:
        """Send a packed command, as `call` does, or between the commands of a check. Then the future's result is a
        tuple: its reply, and the replies before and after it, each of which may be an ErrorReply.
        """
        if self._transport is None:
            raise self._closed()
        if len(self._callers) - self._checks >= self._max_in_flight:
            raise Unavailable(f"{self._max_in_flight} requests are waiting for Redis already")
        if not self._unsent:
            self._loop.call_soon(self._flush)
        if check is not None and not (self._checking and check is self._check):
            self._begin(check)
        reply: Future[Any] = self._loop.create_future()
        self._callers.append((reply, self._loop.time(), check is not None))
        self._unsent.append(packed)
        if len(self._unsent) >= _MAX_UNSENT:
            self._flush()
        return reply

    def pipeline(self, packed: Sequence[bytes]) -> Future[list[Any]]:
        """Send packed commands in one write, at once. The future's result are the replies in order, each of which may
        be an ErrorReply. There has to be a command, and `max_in_flight` does not apply.

        Raises Unavailable at once if the connection is closed.
        """
        if self._transport is None:
            raise self._closed()
        self._flush()
        replies: Future[list[Any]] = self._loop.create_future()
        self._callers += [(replies, self._loop.time(), [])] * len(packed)
        self._transport.write(b"".join(packed))
        return replies

    def close(self, reason: str) -> None:
        """Close the connection and fail all waiting callers now. Calling it again has no effect.

        What it has not sent is discarded: it might arrive at any later time, and write into a generation that was
        dropped meanwhile.
        """
        transport, self._transport = self._transport, None
        if transport is None:
            return
        if not transport.is_closing():  # otherwise the socket may be closed already
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        transport.abort()
        if self._timeout_check is not None:
            self._timeout_check.cancel()
        waiting = [caller for caller, _ in self._checked] + [caller for caller, _, _ in self._callers]
        for caller in waiting:
            if caller is not None and not caller.done():
                caller.set_exception(self._error(reason))
        self._checked.clear()
        self._callers.clear()
        self._checks = 0
        if not self.lost.done():
            self.lost.set_result(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # asyncio declares only BaseTransport
        self._check_timeout()

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        self._reader.feed(data)
        try:
            while self._transport is not None and (reply := self._reader.gets()) is not _INCOMPLETE:
                self._deliver(reply)
        except hiredis.ProtocolError as error:
            self.close(f"Redis sent something that is not a reply: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed_by_peer |= not self.closed
        arrived_at, said = self._last_error
        # What Redis says before it closes a connection, such as that it has too many, may come before any command.
        why = f", which said: {said}" if said and arrived_at == self._received_at else ""
        self.close(f"the connection to Redis was lost: {exc or 'closed by Redis'}{why}")

    def _closed(self) -> Unavailable:
        why = f": {self.lost.result()}" if self.lost.done() else ""
        return self._error(f"the connection to Redis is closed{why}")

    def _error(self, reason: str) -> Unavailable:
        return ConnectionLost(reason) if self.closed_by_peer else Unavailable(reason)

    def _begin(self, check: Check) -> None:
        if self._checking:
            self._flush()  # what waits to be sent is in another check
        self._check, self._checking = check, True
        self._callers.append((None, self._loop.time(), True))
        self._checks += 1
        self._unsent.append(check.before)

    def _flush(self) -> None:
        if self._transport is not None and self._unsent:
            if self._checking and self._check is not None:
                self._unsent.append(self._check.after)
                self._callers.append((None, self._loop.time(), False))
                self._checks += 1
                self._checking = False
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def _deliver(self, reply: object) -> None:
        try:
            caller, _, how = self._callers.popleft()
        except IndexError:
            error_text = f": {reply}" if isinstance(reply, ReplyError) else ""
            self.close(f"Redis sent a reply that nobody asked for{error_text}")
            return
        if caller is None:
            self._checks -= 1
            said = ErrorReply.of(str(reply)) if isinstance(reply, ReplyError) else reply
            if how:
                self._before = said
            else:
                self._deliver_checked(said)
        elif caller.done():
            return  # it was cancelled, or failed because it waited too long: its reply is discarded
        elif isinstance(reply, ReplyError):
            error = ErrorReply.of(str(reply))
            self._last_error = (self._received_at, str(reply))
            if isinstance(how, list):
                self._collect(caller, how, error)
            else:
                caller.set_exception(error)
        elif how is True:
            self._checked.append((caller, reply))
        elif how is False:
            caller.set_result(reply)
        else:
            self._collect(caller, how, reply)

    def _collect(self, caller: Future[Any], replies: list[Any], reply: object) -> None:
        replies.append(reply)
        if not self._callers or self._callers[0][0] is not caller:
            caller.set_result(replies)

    def _deliver_checked(self, after: object) -> None:
        """Answer the checked commands of the check that ends with this reply."""
        checked, self._checked = self._checked, []
        for caller, reply in checked:
            if caller.done():
                continue
            # The command was executed, whatever the check replied: repeating it would charge the request twice.
            caller.set_result((reply, self._before, after))

    def _check_timeout(self) -> None:
        now, timeout = self._loop.time(), self._timeout
        if self._callers and (waited := now - self._callers[0][1]) > timeout:
            if now - self._received_at > timeout or waited > _LONGEST_TIMEOUTS * timeout:
                self.close(f"Redis did not reply within {timeout:g} s")
                return
            if not self._late:
                self._fail_late(now - timeout)
        self._timeout_check = self._loop.call_later(timeout / _CHECKS_PER_TIMEOUT, self._check_timeout)

    def _fail_late(self, sent_before: float) -> None:
        """Fail the callers whose commands were sent earlier. They keep their places."""
        late: list[Future[Any] | None] = [caller for caller, _ in self._checked]  # sent before the first in the queue
        late += [caller for caller, _, _ in takewhile(lambda waiting: waiting[1] < sent_before, self._callers)]
        for caller in late:
            if caller is not None and not caller.done():
                caller.set_exception(Unavailable(f"Redis did not reply within {self._timeout:g} s"))


def pack_bytes(words: Sequence[bytes]) -> bytes:
    """Returns the same as `pack`, for words that are bytes, in a third of the time: no loop of Python, and one copy."""
    parts = [b"\r\n"] * (2 * len(words) + 2)
    parts[0] = b"*%d" % len(words)
    parts[1:-1:2] = map(_length, map(len, words))
    parts[2:-1:2] = words
    return b"".join(parts)


class _Lengths(dict[int, bytes]):
    """The bytes before a word, by its length: the end of the line before it, and the length."""

    def __missing__(self, length: int) -> bytes:
        return b"\r\n$%d\r\n" % length


_length = _Lengths((length, b"\r\n$%d\r\n" % length) for length in range(4096)).__getitem__


def pack_words(words: Words) -> bytes:
    """Returns words of a command in the protocol of Redis, without the number of words that begins a command."""
    return pack(words).partition(b"\r\n")[2]


async def connect(
    address: Address,
    prove: Callable[[Connection], Awaitable[T]],
    *,
    within: float,
    max_in_flight: int,
    late: bool = False,
) -> tuple[Connection, T]:
    """Open a connection and log in. Returns it together with what `prove` returns, which asks over the new connection
    whether it may be used. All of that has to be done `within` some seconds, which are the timeout of the connection as
    well. Raises Unavailable, and what `prove` raises.
    """
    try:
        async with asyncio.timeout(within):
            transport, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(within, max_in_flight, late=late),
                address.host,
                address.port,
                ssl=address.ssl_context(),
            )
            keep_alive(transport.get_extra_info("socket"))
            try:
                await _log_in(connection, address)
                return connection, await prove(connection)
            except BaseException:
                connection.close("the connection could not be set up")
                raise
    except (OSError, AddressError) as error:
        raise Unavailable(f"cannot connect to {address.host}:{address.port}: {_reason(error, within)}") from error


async def _log_in(connection: Connection, address: Address) -> None:
    if credentials := address.credentials():
        await connection.call((b"AUTH", *credentials))
    if address.db:
        await connection.call((b"SELECT", address.db))
    if address.must_be_master and (await connection.call((b"ROLE",)))[0] != b"master":
        raise Unavailable("the Sentinels name a server that is a replica")


def _reason(error: Exception, within: float) -> str:
    match error:
        case ConnectionError(errno=int(number)):
            return os.strerror(number)  # asyncio's own text names the address again
        case TimeoutError(errno=None):
            return f"it did not answer within {within:g} s"
    return str(error)
