"""One connection to Redis that all requests of a worker share: commands go out together, in one write a turn of
the event loop, and replies come back in the order of the commands.

    call ──► unsent ──(one write a turn, or 16 commands)──► Redis ──► reader ──► callers, first in first out

The order is all that ties a reply to its caller. So a caller that gave up leaves its place in the row, and its reply
is dropped when it comes: anything else would hand an organization another one's document (CVE-2023-28858). And a
connection on which anything went wrong is not used again, whatever may still come out of it.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from api.errors import ErrorReply, ScriptMissing, Unavailable

Argument = bytes | str | int
Command = tuple[Argument, ...]

_CHECKS_PER_TIMEOUT = 10
_MAX_UNSENT = 16
"""In a turn with more, Redis begins while we are still at the rest: else the two would wait for each other in turns."""
_INCOMPLETE = object()
_pack: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]  # says a tuple of one


class Connection(asyncio.Protocol):
    """A connection's life, from made to lost. `lost` is done when it is over.

    `timeout` is in seconds. Where the oldest command waits longer, the connection is dead: all its callers fail.
    """

    def __init__(self, timeout: float, max_in_flight: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._unsent: list[bytes] = []
        self._callers: deque[tuple[Future[Any], float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self.lost: Future[str] = self._loop.create_future()

    @property
    def in_flight(self) -> int:
        """Commands without a reply yet, including those whose callers gave up."""
        return len(self._callers)

    def call(self, command: Command) -> Future[Any]:
        """Send a command, at the latest at the end of this turn. The future's result is the reply, bytes undecoded;
        its error is ErrorReply or Unavailable. It may be cancelled at any time.

        Raises Unavailable at once where the connection is gone or too many wait already.
        """
        if self._transport is None:
            raise Unavailable("the connection to Redis is closed")
        if len(self._callers) >= self._max_in_flight:
            raise Unavailable(f"{self._max_in_flight} requests wait for Redis already")
        packed = _pack(command)  # before it stands in the row: what cannot be packed is never sent, and gets no reply
        reply: Future[Any] = self._loop.create_future()
        self._callers.append((reply, self._loop.time()))
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(packed)
        if len(self._unsent) == _MAX_UNSENT:
            self._flush()
        return reply

    def close(self, reason: str) -> None:
        """Cut the connection and fail everyone who waits, now. Safe to repeat."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        transport.abort()
        if self._watch is not None:
            self._watch.cancel()
        for caller, _ in self._callers:
            if not caller.done():
                caller.set_exception(Unavailable(reason))
        self._callers.clear()
        if not self.lost.done():
            self.lost.set_result(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # asyncio's own signature says no more
        self._check()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while self._transport is not None and (reply := self._reader.gets()) is not _INCOMPLETE:
                self._hand_over(reply)
        except hiredis.ProtocolError as error:
            self.close(f"Redis sent what is no reply: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(f"the connection to Redis broke: {exc or 'closed by Redis'}")

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def _hand_over(self, reply: object) -> None:
        if not self._callers:
            self.close("Redis sent a reply that nobody asked for")
            return
        caller, _ = self._callers.popleft()
        if caller.done():
            return  # cancelled; its reply ends here
        if isinstance(reply, hiredis.ReplyError):
            caller.set_exception(_error(str(reply)))
        else:
            caller.set_result(reply)

    def _check(self) -> None:
        if self._callers and self._loop.time() - self._callers[0][1] > self._timeout:
            self.close(f"Redis did not answer within {self._timeout:g} s")
            return
        self._watch = self._loop.call_later(self._timeout / _CHECKS_PER_TIMEOUT, self._check)


def _error(text: str) -> ErrorReply:
    return ScriptMissing(text) if text.startswith("NOSCRIPT") else ErrorReply(text)
