"""Rejects malformed or abusive input before it becomes a request: limits on the head, no body on GET and HEAD. Every
refusal is answered in JSON.

No byte of a body is read, nor anything behind it: a request with a body is the last one of its connection. Bodies and
trailers therefore need no limits, and nothing inside them can be mistaken for a request. Of pipelined requests, one is
parsed and answered at a time. The rest stays unparsed, and nothing more is read from the socket meanwhile. The next one
begins once the former response is in the kernel's send buffer: a connection holds one response at most (`Unread`).

A refusal ends the connection, and so does the response to a request that wants no other one: the server's side is
closed, and what still arrives is discarded for a moment. Closing at once would reset the connection, and the client
might never read the response. Nor would a connection count any more whose bytes the kernel still holds.

A connection that is lost leaves nothing behind: no timer, and no cycle of references that only a garbage collection
would find. Between two requests it holds neither headers nor a key.


One request and its response on a client connection, between uvicorn's protocol and the application.

A refusal as it is sent: the response to input that did not become a request.

The ASGI scope of a request whose head is complete."""

import asyncio
import logging
import re
from collections.abc import Iterable
from typing import Any, ClassVar, cast

import httptools
from uvicorn._types import ASGIVersions, HTTPScope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.crowd import Crowd, Timer, Unread, discard_at_close, in_kernel
from api.errors import BadRequest, BodyNotAllowed, Header, HeadTooLarge, HeadTooSlow, InternalError, Refused
from api.head import CHECKED, MAX_HEAD_BYTES, Framing, Head, normalized
from api.request import all_headers, encode_head, error_response, request_id
from api.request_log import Entry, RequestLog

LINGER_SECONDS = 1.0

_CLOSE = (b"connection", b"close")
_NUMBER_SIGN = ord("#")  # as a number, because bytes are searched for a number three times as fast as for bytes
_EMPTY_LINES = re.compile(rb"[\r\n]*")


class _Stop(Exception):
    """Stops the parser: what follows must not be read as another request."""


class Edge(HttpToolsProtocol):
    """One client connection."""

    crowd: ClassVar[Crowd] = Crowd()
    """All connections of this worker."""
    unread: ClassVar[Unread] = Unread()
    """Those of them whose clients have not taken their responses."""
    head_seconds: ClassVar[float] = 10.0
    """Maximum time for a whole head from its first byte, and for a new connection to send anything."""
    stalled_seconds: ClassVar[float] = 30.0
    """Maximum time a client may leave response bytes unread, once the send buffer is full or the connection closes. If
    it takes none at all, this holds for each byte (`limit_buffers`)."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.headers = []
        self._head = Head()
        self._head_timer = Timer(self.loop, self.head_seconds)
        self._stall_timer = Timer(self.loop, self.stalled_seconds)
        self._linger_timer = Timer(self.loop, LINGER_SECONDS)
        self.timers: tuple[Timer, ...] = (self._head_timer, self._stall_timer, self._linger_timer)
        self._framing = Framing()
        self._message_event = asyncio.Event()  # one for all requests, because no body is read
        self._received = b""  # is parsed from `_place` on, once the present request is answered
        self._place = 0
        self._reading_done = False  # nothing more is parsed: the last response is being sent

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so `pause_writing` is called if the send buffer is full
        self.crowd.make_room(cast(set[Edge], self.connections))
        self._head_timer.start(self._on_head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in self.timers:
            timer.stop()
        self.unread.remove(self)
        self._unset_keepalive_if_required()  # uvicorn does this only if the connection was closed without an error
        self._received = b""
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._received:  # reading is paused, but this had been received already
            self._received, self._place = self._received[self._place :] + data, 0
        else:
            self._received = data
        self._feed()

    def _feed(self) -> None:
        """Parse one head after the other, as long as no request is being answered and no response is unread."""
        while self._place < len(self._received) and self._is_ready():
            self._feed_part()
        if self._reading_done or self._place == len(self._received):
            self._received, self._place = b"", 0
        else:
            self.flow.pause_reading()

    def _feed_part(self) -> None:
        head, received = self._head, self._received
        if not head.size and received[self._place] in b"\r\n":
            self._place = _EMPTY_LINES.match(received, self._place).end()  # type: ignore[union-attr]  # it always matches
            if self._place == len(received):
                self._head_timer.start(self._on_head_timeout)
                return
        if not head.size:
            self._head_timer.stop()  # the time for the head starts now
        part = head.take(received, self._place)
        self._place += len(part)
        self._parse(part)
        if head.complete:
            head.clear()
        elif not self._reading_done:
            self._wait_for_the_rest()

    def _parse(self, part: bytes) -> None:
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            pass  # it is not granted, and the head ends here
        except httptools.HttpParserError:
            if not self._reading_done:
                self._refuse(BadRequest())

    def _wait_for_the_rest(self) -> None:
        if self._head.size >= MAX_HEAD_BYTES:
            self._refuse(HeadTooLarge())
        else:
            self._head_timer.start(self._on_head_timeout)

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._framing.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Replaces uvicorn's method, which would cost time for every header. `Expect` is ignored: no body is wanted."""
        name = name.lower()
        value = value.rstrip(b" \t")  # llhttp leaves tabs at the end (RFC 9112, section 5.1)
        self.headers.append((name, value))
        if name in CHECKED:
            self._framing.add(name, value)

    def on_headers_complete(self) -> None:
        head, framing = self._head, self._framing
        method = self.parser.get_method()
        version = head.version(len(method) + 1 + len(self.url))
        # A fragment is no part of a request target (RFC 9112, section 3.2).
        if version is None or not head.complete or _NUMBER_SIGN in self.url or not framing.is_valid(version):
            raise _Stop
        if framing.has_body and method in (b"GET", b"HEAD"):
            self._refuse(BodyNotAllowed())
            raise _Stop
        self._begin(method, version)
        if framing.has_body:
            self._reading_done = True
            raise _Stop

    def _begin(self, method: bytes, version: str) -> None:
        """Start the request."""
        default = self.server_state.default_headers
        self.cycle = Cycle(
            scope=http_scope(self, method, version),
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=[*default, _CLOSE] if self._framing.has_body else default,
            message_event=self._message_event,
            expect_100_continue=False,
            # After a body, the connection is closed as after a refusal, and not by the cycle.
            keep_alive=self._framing.has_body or (version != "1.0" and self._stays_open()),
            on_response=self.on_response_complete,
        )
        self.headers = []
        self._start_asgi_task(self.cycle, self.app)

    def on_message_complete(self) -> None:
        """Replaces uvicorn's method: no request waits for the end of a body."""

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._reading_done or not self.cycle.keep_alive:
            self._close_gently()
        elif self._received:
            self._unset_keepalive_if_required()
            self._feed()

    def pause_writing(self) -> None:
        """A part of a response did not fit into the send buffer."""
        super().pause_writing()
        self._stall_timer.start(self.abort)
        self.unread.add(self, getattr(self.cycle, "organization", b""), self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The rest of it did."""
        super().resume_writing()
        self._stall_timer.stop()
        self.unread.remove(self)
        if self._received and not self.transport.is_closing():
            self.flow.resume_reading()
            self._feed()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's method always closes the connection
        """The client sends nothing more, but it may still wait for a response: that one closes the connection."""
        if not self._is_idle():
            self.cycle.keep_alive = False
        elif in_kernel(self.transport):
            self._close_gently()
        else:
            return False
        return True

    def timeout_keep_alive_handler(self) -> None:
        """Aborts, unlike uvicorn's method, so that a client with unread responses cannot hold the connection open."""
        self.abort()

    def abort(self) -> None:
        if in_kernel(self.transport):
            discard_at_close(self.transport)
        self.transport.abort()

    def _stays_open(self) -> bool:
        return self.parser.should_keep_alive() and not self.app_state["drain"].begun

    def _is_idle(self) -> bool:
        """Returns whether every request has been answered."""
        return bool(getattr(self.cycle, "response_complete", True))  # before the first request there is no cycle

    def _is_ready(self) -> bool:
        """Returns whether the next request may be read."""
        return not (self._reading_done or self.flow.write_paused) and self._is_idle()

    def _on_head_timeout(self) -> None:
        if self._head.size:
            self._refuse(HeadTooSlow())
        else:
            self.abort()

    def _refuse(self, error: Refused) -> None:
        """Send a refusal and close the connection. No request is being answered."""
        self._reading_done = True
        if not self.transport.is_closing():
            self.app_state["counters"].route("edge").count(error.status, 0.0)
            default = self.server_state.default_headers
            log, docs_url = self.app_state["log"], self.app_state["docs_url"]
            body = not self._head.asks_for_head
            self.transport.write(encode_refusal(error, self.headers, default, log, docs_url, body=body))
            self._close_gently()

    def _close_gently(self) -> None:
        self._reading_done = True
        self._received, self._place = b"", 0
        self._head_timer.stop()
        self._unset_keepalive_if_required()
        self.transport.write_eof()
        self._linger_timer.start(self._end)

    def _end(self) -> None:
        """Close the connection, but not before the client has taken everything."""
        self._linger_timer.stop()
        if in_kernel(self.transport):
            self._stall_timer.start(self.abort)
            self._linger_timer.start(self._end)
        else:
            self.transport.close()


logger = logging.getLogger(__name__)


class Cycle(RequestResponseCycle):
    """Sends a response in one write. uvicorn's own cycle sends it in two and searches every header for forbidden
    characters, which takes a tenth of the time of a request. Here all headers are numbers, constants, or values that
    were validated when they came in.
    """

    organization = b""
    """The organization that the response is for, if it is one."""
    _start: Any = None

    async def send(self, message: Any) -> None:
        """Take the two ASGI messages of a response. The whole body is in one message, and is written at once: before,
        the client had taken all former responses. The first message may name the `organization` beside the headers.
        """
        if message["type"] == "http.response.start":
            self.response_started = True
            self._start = message
            self.organization = message.get("organization", b"")
            return
        if self.disconnected or self.transport.is_closing():
            self.disconnected = True
        else:
            self._write(self._start["status"], self._start["headers"], message["body"])

    async def send_500_response(self) -> None:
        """Report a defect outside of all handlers."""
        error, new_id = InternalError(), request_id(None)
        response = error_response(error, new_id, self.scope["state"]["docs_url"])
        logger.error(
            "a request failed because of a defect outside of all handlers",
            extra={"request_id": new_id.decode(), "status": response.status, "error": error.code},
        )
        self.keep_alive = False
        self._write(response.status, all_headers(response, new_id, cors=False), response.body)

    def _write(self, status: int, headers: list[Header], body: bytes) -> None:
        head = encode_head(status, (*self.default_headers, *headers), close=not self.keep_alive)
        self.transport.write(head if self.scope["method"] == "HEAD" else head + body)
        self._complete()

    def _complete(self) -> None:
        self.response_started = self.response_complete = True
        self.scope = None  # type: ignore[assignment]  # it holds the API key, and the connection holds this cycle
        self.on_response()


def encode_refusal(
    error: Refused,
    received: Iterable[Header],
    default: Iterable[Header],
    log: RequestLog,
    docs_url: str | None,
    *,
    body: bool,
) -> bytes:
    """Returns the whole response, with or without its body, and notes it in the log. `received` are the headers that
    were parsed by then, `default` those of every response.
    """
    parsed = dict(received)
    sent_id = request_id(parsed.get(b"x-request-id"))
    if error.status >= log.lowest:
        log.write(Entry(sent_id, "", "edge", error.status, 0.0, error))
    response = error_response(error, sent_id, docs_url)
    headers = all_headers(response, sent_id, cors=b"origin" in parsed)
    head = encode_head(error.status, (*default, *headers), close=True)
    return head + response.body if body else head


_ASGI: ASGIVersions = {"version": "3.0", "spec_version": "2.3"}


def http_scope(connection: HttpToolsProtocol, method: bytes, version: str) -> HTTPScope:
    """Returns the scope of the request whose head `connection` has just parsed. `version` is that of HTTP.

    Raises httptools.HttpParserError if the URL is not valid.
    """
    target = connection.url
    if target.startswith(b"/"):  # what this form may contain was checked by the parser
        path, _, query = target.partition(b"?")
    else:
        url = httptools.parse_url(target)
        path, query = url.path or b"/", url.query or b""
    path = normalized(path)
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": version,
        "server": connection.server,
        "client": connection.client,
        "scheme": "http",
        "method": method.decode(),
        "root_path": "",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "headers": connection.headers,
        "state": connection.app_state,  # nobody changes it
        "extensions": {},
    }
