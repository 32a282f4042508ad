"""Rejects malformed or abusive input before it becomes a request: limits on the head, no body on GET and HEAD. Every
refusal is answered in JSON.

No byte of a body is read, nor anything behind it: a request with a body is the last one of its connection. Bodies and
trailers therefore need no limits, and nothing inside them can be mistaken for a request. Of pipelined requests, a few
KB are parsed ahead. The rest stays unparsed, and nothing more is read from the socket meanwhile.

A refusal ends the connection. It is sent after the responses to earlier pipelined requests, because the client would
otherwise take it for one of those. Then the server's side is closed, and what still arrives is discarded for a moment:
closing at once would reset the connection, and the client might never read the refusal.
"""

import asyncio
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.edge.cycle import Cycle
from api.edge.head import HeadSize
from api.edge.refusal import encode_refusal
from api.edge.rules import is_chunked_last, is_host, is_other_protocol
from api.edge.scope import http_scope
from api.edge.timer import Timer
from api.errors import BadRequest, BodyNotAllowed, HeadTooLarge, HeadTooSlow, Refused

MAX_HEAD_BYTES = 16 * 1024
MAX_PARSE_BYTES = 4096
"""How much is parsed at once. While a request of one such part waits for its turn, no further part is parsed."""
LINGER_SECONDS = 1.0

_CLOSE = (b"connection", b"close")


class _BodyFollows(Exception):
    """Stops the parser before the body of a request."""


class Edge(HttpToolsProtocol):
    """One client connection."""

    head_seconds: ClassVar[float] = 10.0
    """Maximum time for a whole head from its first byte, and for a new connection to send anything."""
    stalled_seconds: ClassVar[float] = 30.0
    """Maximum time a client may leave response bytes unread, once the send buffer is full or the connection closes."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head = HeadSize()
        self._head_timer = Timer(self.loop, self.head_seconds, self._on_head_timeout)
        self._stall_timer = Timer(self.loop, self.stalled_seconds, self._abort)
        self._has_body = False
        self._hosts = 0  # headers `Host` of the head that is being received; above 1, they are not valid
        self._coding = b""  # its last Transfer-Encoding
        self._message_event = asyncio.Event()  # one for all requests, because no body is read
        self._unparsed = b""  # was received, and is parsed when no pipelined request is waiting
        self._reading_done = False  # nothing more is parsed: the last response is being sent
        self._refusal: Refused | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        super().connection_made(transport)
        self._head_timer.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer.stop()
        self._stall_timer.stop()
        # uvicorn stops this timer only if the connection was closed without an error, and the timer holds all of it.
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._unparsed:  # reading is paused, but this had been received already
            self._unparsed += data
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Parse in parts, none of which reaches beyond the largest head allowed: so its size is enforced exactly."""
        while data and not self._reading_done and not self.pipeline:
            part = data[: min(MAX_PARSE_BYTES, MAX_HEAD_BYTES - self._head.bytes)]
            parsed = self._parse(part)
            data = data[parsed:]
            self._check_head(part[:parsed])
        if self.pipeline and not self._reading_done:
            self._unparsed = data
            self._head_timer.stop()  # the next head is delayed by this server, not by the client

    def _parse(self, part: bytes) -> int:
        """Returns how many bytes were parsed: all, unless the client asked for an upgrade, which is not granted."""
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade as upgrade:
            return int(upgrade.args[0])
        except httptools.HttpParserError:
            if self._refusal is not None or not self._reading_done:
                self._refuse(self._refusal or BadRequest())
        return len(part)

    def _check_head(self, part: bytes) -> None:
        """Apply the limits on size and time after `part` was parsed."""
        if self._reading_done:
            return
        head = self._head
        if head.began_in_part and is_other_protocol(part):
            self._refuse(BadRequest())
            return
        if head.unfinished and head.began_in_part:
            self._head_timer.stop()  # the time for the head starts now
        head.add(part)
        if head.bytes >= MAX_HEAD_BYTES:
            self._refuse(HeadTooLarge())
        elif head.unfinished or self._is_idle():
            self._head_timer.start()

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._head.unfinished = self._head.began_in_part = True
        self._has_body = False
        self._hosts = 0
        self._coding = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Replaces uvicorn's method, which would cost time for every header. `Expect` is ignored: no body is wanted."""
        name = name.lower()
        if name == b"transfer-encoding":
            self._has_body = True
            self._coding = value
        elif name == b"content-length":
            self._has_body = self._has_body or bool(value.strip(b"0 "))
        elif name == b"host":
            self._hosts += 1
            if not is_host(value):
                self._hosts += 2
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._head.unfinished = False
        self._head_timer.stop()
        version = self.parser.get_http_version()
        if not self._is_valid(version):
            raise BadRequest
        if self._has_body and self.parser.get_method() in (b"GET", b"HEAD"):
            self._refusal = BodyNotAllowed()
            raise self._refusal  # stops the parser: what follows must not be read as another request
        self._begin(version)
        if self._has_body:
            self._reading_done = True
            raise _BodyFollows

    def _is_valid(self, version: str) -> bool:
        """Checks what the parser does not: RFC 9112, sections 2.3 (version), 3.2 (Host) and 6.1 (the last coding)."""
        if version == "1.1":
            hosts_are_valid = self._hosts == 1
        else:
            hosts_are_valid = version == "1.0" and self._hosts <= 1 and not self._coding
        return hosts_are_valid and b"#" not in self.url and (not self._coding or is_chunked_last(self._coding))

    def _begin(self, version: str) -> None:
        """Start the request, or queue it behind the one that is being answered."""
        cycle = Cycle(
            scope=http_scope(self, version),
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=[*self.server_state.default_headers, *([_CLOSE] if self._has_body else [])],
            message_event=self._message_event,
            expect_100_continue=False,
            # After a body, the connection is closed as after a refusal, and not by the cycle.
            keep_alive=self._has_body or (version != "1.0" and self.parser.should_keep_alive()),
            on_response=self.on_response_complete,
        )
        idle, self.cycle = self._is_idle(), cycle
        if idle:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_message_complete(self) -> None:
        """Replaces uvicorn's method: no request waits for the end of a body."""

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self._stall_timer.start()
        elif self._reading_done:
            if self._is_idle():
                self._finish()
        elif self.pipeline:
            self.flow.pause_reading()
        elif self._unparsed or self._head.unfinished:
            self._resume()

    def _resume(self) -> None:
        """Parse what was received behind the pipelined requests, now that none of them is waiting."""
        unparsed, self._unparsed = self._unparsed, b""
        self._feed(unparsed)
        if self._unparsed:
            self.flow.pause_reading()
        elif self._head.unfinished and not self._reading_done and not self.pipeline:
            self._head_timer.start()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall_timer.stop()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's method always closes the connection
        """The client sends nothing more, but it may still wait for responses: the last one closes the connection."""
        if self._is_idle():
            return False
        self.cycle.keep_alive = False
        return True

    def timeout_keep_alive_handler(self) -> None:
        """Aborts, unlike uvicorn's method, so that a client with unread responses cannot hold the connection open."""
        self.transport.abort()

    def _abort(self) -> None:
        self.transport.abort()

    def _is_idle(self) -> bool:
        """Returns whether every request has been answered. `cycle` is that of the newest request."""
        return bool(getattr(self.cycle, "response_complete", True))  # before the first request there is no cycle

    def _on_head_timeout(self) -> None:
        if self._head.unfinished:
            self._refuse(HeadTooSlow())
        else:
            self.transport.abort()

    def _refuse(self, error: Refused) -> None:
        self._refusal = error
        self._reading_done = True
        self._head_timer.stop()
        if self._is_idle():
            self._finish()

    def _finish(self) -> None:
        """Every request has been answered: send the refusal, if there is one, and close the connection."""
        if self.transport.is_closing():
            return
        if self._refusal is not None:
            self._unset_keepalive_if_required()
            self.app_state["counters"].route("edge").count(self._refusal.status, 0.0)
            self.transport.write(encode_refusal(self._refusal, self))
        self._close_gently()

    def _close_gently(self) -> None:
        self._stall_timer.start()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)
