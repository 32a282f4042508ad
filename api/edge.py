"""The server's side of a client connection: rejects malformed or abusive input before it becomes a request, with limits
on the head and no body on GET and HEAD. Every refusal is answered in JSON.

No byte of a body is read, nor anything behind it: a request with a body is the last one of its connection. Bodies and
trailers therefore need no limits, and nothing inside them can be mistaken for a request. Of pipelined requests, one is
parsed and answered at a time. The rest stays unparsed, and nothing more is read from the socket meanwhile. The next one
begins once the former response is in the kernel's send buffer: a connection holds one response at most (`Unread`).

A refusal ends the connection, and so does the response to a request that wants no other one: the server's side is
closed, and what still arrives is discarded for a moment. Closing at once would reset the connection, and the client
might never read the response. Nor would a connection count any more whose bytes the kernel still holds.

A connection that is lost leaves nothing behind: no timer, and no cycle of references that only a garbage collection
would find. Between two requests it holds neither headers nor a key.

uvicorn starts the workers, makes an object of this class for each connection, and ends them. What the two know of each
other is named here: the four arguments, `shutdown`, and of the server's state its `connections`, `tasks` and
`default_headers`.
"""

import asyncio
import logging
import re
from typing import Any, ClassVar, cast

import httptools
from uvicorn import Config
from uvicorn.server import ServerState

from api.crowd import Crowd, Timer, Unread, discard_at_close, in_kernel
from api.errors import BadRequest, BodyNotAllowed, HeadTooLarge, HeadTooSlow
from api.head import FRAMING, MAX_HEAD_BYTES, Framing, Head, normalized
from api.request import CLOSE, Response, encode_head, error_response, request_id
from api.request_log import Entry
from api.worker import Worker

LINGER_SECONDS = 1.0

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_NUMBER_SIGN = ord("#")  # as a number, because bytes are searched for a number three times as fast as for bytes
_EMPTY_LINES = re.compile(rb"[\r\n]*")

logger = logging.getLogger(__name__)


class _Stop(Exception):
    """Stops the parser: what follows must not be read as another request."""


class Edge(asyncio.Protocol):
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
    idle_seconds: ClassVar[float] = 75.0
    """Maximum time between two requests. Longer than a reverse proxy keeps an idle connection (nginx: 60 s). Otherwise
    the proxy could send a request on a connection that the API is closing."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.loop = _loop or asyncio.get_running_loop()
        self._app = config.loaded_app
        self._server = server_state
        self._worker: Worker = app_state["worker"]
        self._transport: asyncio.Transport
        self._client: tuple[str, int] | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_data_after_close=True
        )  # nothing behind a request is parsed with it
        self._head = Head()
        self._framing = Framing()
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_timer = Timer(self.loop, self.head_seconds)
        self._idle_timer = Timer(self.loop, self.idle_seconds)
        self._stall_timer = Timer(self.loop, self.stalled_seconds)
        self._linger_timer = Timer(self.loop, LINGER_SECONDS)
        self.timers: tuple[Timer, ...] = (self._head_timer, self._idle_timer, self._stall_timer, self._linger_timer)
        self._received = b""  # is parsed from `_place` on, once the present request is answered
        self._place = 0
        self._scope: dict[str, Any] | None = None  # of the request that is being answered
        self._keep_alive = True
        self._organization = b""  # that the last response is for
        self._reading_paused = False
        self._writing_paused = False
        self._reading_done = False  # nothing more is parsed: the last response is being sent

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is always this kind
        self._transport = transport
        self._client = _address(transport)
        transport.set_write_buffer_limits(high=0)  # so `pause_writing` is called if the send buffer is full
        connections = cast(set[Edge], self._server.connections)
        connections.add(self)
        self.crowd.make_room(connections)
        self._head_timer.start(self._on_head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        for timer in self.timers:
            timer.stop()
        self.unread.remove(self)
        cast(set[Edge], self._server.connections).discard(self)
        self._received = b""
        self._parser = None  # type: ignore[assignment]  # the two refer to each other

    def shutdown(self) -> None:
        """End the connection once its request is answered: the server is about to end."""
        if self._scope is None:
            self._transport.close()
        else:
            self._keep_alive = False

    def data_received(self, data: bytes) -> None:
        self._idle_timer.stop()
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
        elif not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

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
            self._parser.feed_data(part)
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
        """The parser calls this, and the methods `on_…` that follow."""
        self._url = b""
        self._headers = []
        self._framing.clear()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """`Expect` is ignored: no body is wanted."""
        name = name.lower()
        value = value.rstrip(b" \t")  # llhttp leaves tabs at the end (RFC 9112, section 5.1)
        self._headers.append((name, value))
        if name in FRAMING:
            self._framing.add(name, value)

    def on_headers_complete(self) -> None:
        head, framing = self._head, self._framing
        method = self._parser.get_method()
        version = head.version(len(method) + 1 + len(self._url))
        # A fragment is no part of a request target (RFC 9112, section 3.2).
        if version is None or not head.complete or _NUMBER_SIGN in self._url or not framing.is_valid(version):
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
        target = self._url
        if target.startswith(b"/"):  # what this form may contain was checked by the parser
            path, _, query = target.partition(b"?")
        else:
            url = httptools.parse_url(target)
            path, query = url.path or b"/", url.query or b""
        path = normalized(path)
        scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "client": self._client,
            "scheme": "http",
            "method": method.decode(),
            "root_path": "",
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": query,
            "headers": self._headers,
        }
        self._scope, self._headers = scope, []
        self._keep_alive = version != "1.0" and self._parser.should_keep_alive() and not self._worker.draining
        task = self.loop.create_task(self._serve(scope))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    async def _serve(self, scope: dict[str, Any]) -> None:
        try:
            await self._app(scope, _receive, self._send)
        except (Exception, asyncio.CancelledError) as error:
            if self._scope is scope:
                self._refuse(error)
            else:
                logger.exception("a request failed after it had been answered")

    async def _send(self, message: Any) -> None:
        """Take the only message of a response: an `http.response.start` with the whole `response` (`api/app.py`). It is
        written at once: before, the client had taken all former responses.

        Raises KeyError for Starlette's own response to a defect, which would be plain text.
        """
        response: Response = message["response"]
        self._organization = message["organization"]
        if self._transport.is_closing():
            return
        after_body = self._framing.has_body
        common = self._common_headers() + CLOSE if after_body else self._common_headers()
        self._write(
            response, message["request_id"], common, cors=message["cors"], close=not (self._keep_alive or after_body)
        )
        if self._transport.is_closing():  # `unread` has chosen this connection
            return
        self._resume_reading()
        if self._reading_done or not self._keep_alive:
            self._close_gently()
        elif self._received:
            self._feed()
        else:
            self._idle_timer.start(self.abort)

    def _write(self, response: Response, own_id: bytes, common: bytes, *, cors: bool, close: bool) -> None:
        head = encode_head(response, own_id, common, cors=cors, close=close)
        is_head = self._head.asks_for_head if self._scope is None else self._scope["method"] == "HEAD"
        self._transport.write(head if is_head else head + response.body)
        self._scope = None  # it holds the API key

    def _common_headers(self) -> bytes:
        return b"".join([b"%b: %b\r\n" % header for header in self._server.default_headers])

    def _refuse(self, error: BaseException) -> None:
        """Report an error that no endpoint has reported, and close the connection."""
        self._reading_done = True
        parsed = dict(self._headers)
        own_id = request_id(parsed.get(b"x-request-id"))
        response = error_response(error, own_id, self._worker.docs_url)
        self._worker.counters.route("edge").count(response.status, 0.0)
        self._worker.log.write(Entry(own_id, "", "edge", response.status, 0.0, error))
        if not self._transport.is_closing():
            self._write(response, own_id, self._common_headers(), cors=b"origin" in parsed, close=True)
            self._close_gently()

    def pause_writing(self) -> None:
        """A part of a response did not fit into the send buffer."""
        self._writing_paused = True
        self._stall_timer.start(self.abort)
        self.unread.add(self, self._organization, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The rest of it did."""
        self._writing_paused = False
        self._stall_timer.stop()
        self.unread.remove(self)
        if self._received and not self._transport.is_closing():
            self._resume_reading()
            self._feed()

    def eof_received(self) -> bool:
        """The client sends nothing more, but it may still wait for a response: that one closes the connection."""
        if self._scope is not None:
            self._keep_alive = False
        elif in_kernel(self._transport):
            self._close_gently()
        else:
            return False
        return True

    def abort(self) -> None:
        """Close at once, so that a client with unread responses cannot hold the connection open."""
        if in_kernel(self._transport):
            discard_at_close(self._transport)
        self._transport.abort()

    def _is_ready(self) -> bool:
        """Returns whether the next request may be read."""
        return self._scope is None and not (self._reading_done or self._writing_paused)

    def _resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()

    def _on_head_timeout(self) -> None:
        if self._head.size:
            self._refuse(HeadTooSlow())
        else:
            self.abort()

    def _close_gently(self) -> None:
        self._reading_done = True
        self._received, self._place = b"", 0
        self._head_timer.stop()
        self._idle_timer.stop()
        self._transport.write_eof()
        self._linger_timer.start(self._end)

    def _end(self) -> None:
        """Close the connection, but not before the client has taken everything."""
        self._linger_timer.stop()
        if in_kernel(self._transport):
            self._stall_timer.start(self.abort)
            self._linger_timer.start(self._end)
        else:
            self._transport.close()


async def _receive() -> dict[str, Any]:
    """No request has a body."""
    return {"type": "http.request", "body": b"", "more_body": False}


def _address(transport: asyncio.Transport) -> tuple[str, int] | None:
    """Returns the address and the port of the client; None if it has closed the connection already."""
    try:
        host, port, *_ = transport.get_extra_info("socket").getpeername()
    except OSError:
        return None
    return host, port
