"""The server's side of a client connection: rejects malformed or abusive input before it becomes a request, with limits
on the head and no body on GET and HEAD. Every refusal is answered in JSON.

No byte of a body is read, nor anything behind it: a request with a body is the last one of its connection. Bodies and
trailers therefore need no limits, and nothing inside them can be mistaken for a request. Of a chunked GET, the line
that begins its first chunk is read: proxies turn an HTTP/2 request without a body into one with an empty chunked body.

Of pipelined requests, one is parsed and answered at a time. The rest stays unparsed, and nothing more is read from the
socket meanwhile. The next one begins once the former response is in the kernel's send buffer: a connection holds one
response at most (`UnreadResponses`).

A refusal ends the connection, and so does the response to its last request: the server's side is closed, and what still
arrives is discarded for a second or longer. Closing at once would reset the connection, and the client might never read
the response. It would also stop counting a connection whose bytes the kernel still holds.

A connection that is lost leaves nothing behind: no timer, and no cycle of references that only a garbage collection
would find. Between two requests it holds neither headers nor a key.

uvicorn starts the workers, makes an object of this class for each connection, and ends them. What the two know of each
other is named here: the four arguments, `shutdown`, and of the server's state its `connections`, `tasks` and
`default_headers`.
"""

import asyncio
import fcntl
import logging
import re
import socket
import string
import struct
import sys
import termios
from contextlib import suppress
from functools import lru_cache
from heapq import nsmallest
from ipaddress import IPv6Address
from typing import Any, ClassVar, cast

import httptools
from uvicorn import Config
from uvicorn.server import ServerState

from api.errors import ApiError, BadRequest, BodyNotAllowed, HeadTooLarge, HeadTooSlow
from api.request import REPEATED, TOKEN_CHARACTERS, Request, Response, encode_head, error_response, request_id
from api.worker import Worker

MAX_CONNECTIONS = 4096
"""For each worker, without those whose request waits (`api/waiting.py`). The connections of 4,096 clients take about
30 MiB."""
SEND_BUFFER = 128 * 1024
"""Bytes of the kernel's buffer for what a client has not read. At most half of them are the kernel's own structures,
the rest is for responses. Without this limit, the buffer would grow up to 4 MB. It holds more than one segment of the
loopback device (64 KiB): with less, each part of a large response would wait 40 ms for an acknowledgement."""
RECEIVE_BUFFER = 32 * 1024
"""Likewise for what a client has sent and this worker has not read, because it answers a former request."""
MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""Maximum for each worker: 64 of the largest documents, or tens of thousands of usual ones."""
MAX_HEAD_BYTES = 16 * 1024
_SHARE = 10
_DISCARD = struct.pack("ii", 1, 0)
_USED_HEADERS = frozenset(
    b"access-control-request-headers access-control-request-method authorization content-length expect host "
    b"if-none-match origin prefer traceparent transfer-encoding x-forwarded-for x-request-id".split()
)
_END = b"\r\n\r\n"
_EMPTY_LINES = re.compile(rb"[\r\n]*")
_VERSIONS = {b" HTTP/1.1\r\n": "1.1", b" HTTP/1.0\r\n": "1.0"}
_VERSION_LENGTH = 11
_METHOD = re.compile(TOKEN_CHARACTERS + rb"{1,64}(?= |\Z)")
"""A method, or the beginning of one. Without a limit, one that comes byte by byte would be read as often."""
_KNOWN_METHOD = b"POST"
_CACHED_HOSTS = 16
# These are numbers, because `in` finds a number in bytes three times as fast as it finds bytes.
_NUMBER_SIGN, _PERCENT = ord("#"), ord("%")

# RFC 3986, section 3.2.2: a registered name or an IPv4 address, or an IPv6 address in brackets. Then a port.
_HOST = re.compile(rb"(?:\[([0-9A-Fa-f:.]*)\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?").fullmatch
_UNRESERVED = re.compile(rb"%(4[1-9A-Fa-f]|5[0-9AaFf]|6[1-9A-Fa-f]|7[0-9AaEe]|3[0-9]|2[DdEe])")

logger = logging.getLogger(__name__)


class UnreadResponses:
    """The responses that wait in this worker until their clients read on.

    If they have more than `most` bytes, the organization that holds the most loses the connection whose response has
    waited longest. So clients that do not read harm only others of their own organization. Responses without an
    organization, such as the OpenAPI document, count as those of one more.
    """

    def __init__(self, most: int = MAX_UNREAD_BYTES) -> None:
        self.most = most
        self.total = 0
        self._waiting: dict[Edge, tuple[bytes, int]] = {}  # in the order in which they began to wait
        self._held: dict[bytes, int] = {}  # by organization

    def add(self, connection: "Edge", organization: bytes, waiting: int) -> None:
        """Note that `waiting` bytes of a response to this organization did not fit into the send buffer. They count
        until the client has taken all of them, because the memory of a response is only freed as a whole.
        """
        size = waiting + SEND_BUFFER
        self._waiting[connection] = organization, size
        self._held[organization] = self._held.get(organization, 0) + size
        self.total += size
        while self.total > self.most:
            largest = max(self._held, key=self._held.__getitem__)
            oldest = next(each for each, (owner, _) in self._waiting.items() if owner == largest)
            self.remove(oldest)
            oldest.abort()

    def remove(self, connection: "Edge") -> None:
        """Note that everything was taken, or that the connection is closed."""
        if connection in self._waiting:
            organization, size = self._waiting.pop(connection)
            self.total -= size
            self._held[organization] -= size
            if not self._held[organization]:
                del self._held[organization]


@lru_cache(maxsize=_CACHED_HOSTS)
def is_host(value: bytes) -> bool:
    """Returns whether this is a valid value of the header `Host` (RFC 9112, section 3.2). It may be empty."""
    found = _HOST(value.strip(b" \t"))
    if found is None or found[1] is None:
        return found is not None
    try:
        IPv6Address(found[1].decode())
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1)
def _lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Returns the lines of the headers that every response has, cached because they change once a second."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def normalized(path: bytes) -> bytes:
    """Returns the equivalent path without needless percent-encoding (RFC 3986, section 6.2.2.2)."""
    return _UNRESERVED.sub(lambda match: bytes([int(match[1], 16)]), path) if _PERCENT in path else path


class Edge(asyncio.Protocol):
    """One client connection."""

    max_connections: ClassVar[int] = MAX_CONNECTIONS
    unread: ClassVar[UnreadResponses] = UnreadResponses()
    """The connections of this worker whose clients have not taken their responses."""
    head_seconds: ClassVar[float] = 10.0
    """Maximum time for a whole head from its first byte, and for a new connection to send anything."""
    stalled_seconds: ClassVar[float] = 30.0
    """Maximum time a client may leave response bytes unread, once the send buffer is full or the connection closes. If
    it takes none at all, the time of each byte is counted from when that byte was sent (`api.server.listen`)."""
    idle_seconds: ClassVar[float] = 620.0
    """Maximum time between two requests (LEADVIEW_API_KEEP_ALIVE). It has to be longer than a reverse proxy keeps an
    idle connection. Otherwise the proxy could send a request on a connection that the API is closing."""
    linger_seconds: ClassVar[float] = 1.0
    """Minimum time for which what a client sends after the last response is discarded."""

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
        self._connections = cast(set[Edge], server_state.connections)
        """All connections of this worker."""
        self._tasks = cast(set[asyncio.Task[None] | None], server_state.tasks)
        # uvicorn passes what the lifespan of the application has yielded (`api/app.py`).
        self._worker: Worker = app_state["worker"]
        self._transport: asyncio.Transport
        self._client: str | None = None
        self._parser = self._new_parser()
        self._head: bytes | bytearray = b""  # what was received of the present head, which may hold an API key
        self._head_complete = False
        self._chunk_line = b""  # what was received of the line that begins the first chunk of a GET
        self._unknown_method = b""  # of the present head, if the parser does not know it
        self._url = b""
        self._headers: dict[bytes, bytes] = {}  # those that are used; REPEATED joins the values of a repeated one
        self.waiting_since: float | None = None
        """When it began to wait for its client, by the clock of the event loop; None if it does not wait."""
        self._waits_until = 0.0
        self._closes_until: float | None = None  # closed then, even if the client has not taken everything
        self._timer: asyncio.TimerHandle | None = None
        self._received = b""  # is parsed from `_place` on, once the present request is answered
        self._place = 0
        self._request: Request | None = None  # is being answered
        self._keep_alive = True
        self._organization = b""  # that the last response is for
        self._reading_paused = False
        self._writing_paused = False
        self._reading_done = False  # nothing more is parsed: the last response is being sent

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Nothing behind a request is parsed with it.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is always this kind
        self._transport = transport
        client = transport.get_extra_info("peername")  # None if it has closed the connection already
        self._client = client and client[0]
        transport.set_write_buffer_limits(high=0)  # so `pause_writing` is called if the send buffer is full
        self._connections.add(self)
        if len(self._connections) - self._worker.waiting.total > self.max_connections:
            self._make_room()
        self._wait(self.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._timer is not None:
            self._timer.cancel()  # then nothing refers to this connection, so it is freed without a garbage collection
        self.unread.remove(self)
        self._connections.discard(self)
        self._stop_waiting()
        self._received = b""
        self._parser = None  # type: ignore[assignment]  # the two refer to each other

    def _stop_waiting(self) -> None:
        """Let the present request wait no longer for a change of its record."""
        if self._request is not None:
            self._request.waits_no_longer = True
            if self._request.waits is not None:
                self._request.waits.set()

    def _make_room(self) -> None:
        """Close a tenth of the connections: those that have waited longest for their clients.

        A tenth, because finding them takes a look at all connections. A client whose request is being answered is never
        cut off.
        """
        waiting = [(since, each) for each in self._connections if (since := each.waiting_since) is not None]
        for _, each in nsmallest(max(1, self.max_connections // _SHARE), waiting, key=lambda found: found[0]):
            each.abort()

    def _wait(self, seconds: float) -> None:
        """Give the client this number of seconds. A wait that has begun before keeps its time.

        The timer stays when a wait ends, because setting one for each request is slow. When it fires, `_on_timer` sets
        it again for the present wait, which usually ends later.
        """
        if self.waiting_since is None:
            self.waiting_since = self.loop.time()
            self._waits_until = self.waiting_since + seconds
            if self._timer is None or self._timer.when() > self._waits_until:
                self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(self._waits_until, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.waiting_since is None:
            return  # the next wait sets it
        if self.loop.time() < self._waits_until:
            self._set_timer()
        elif self._closes_until is not None:
            self._end(self._closes_until)
        elif self._head:
            self._refuse(HeadTooSlow())
        else:
            self.abort()

    def shutdown(self) -> None:
        """End the connection once its request is answered: the server is about to end."""
        if self._request is None:
            self._transport.close()
        else:
            self._keep_alive = False
            self._stop_waiting()

    def data_received(self, data: bytes) -> None:
        if self._received:  # reading is paused, but this had been received already
            self._received, self._place = self._received[self._place :] + data, 0
        else:
            self._received = data
        self._feed()

    def _feed(self) -> None:
        """Parse one head after the other, as long as no request is being answered and no response is unread."""
        while self._place < len(self._received) and self._request is None:
            if self._reading_done or self._writing_paused:
                break
            self._feed_part()
        if self._reading_done or self._place == len(self._received):
            self._received, self._place = b"", 0
        else:
            self._reading_paused = True
            self._transport.pause_reading()

    def _feed_part(self) -> None:
        """Parse what was received of one head, which ends with an empty line. The parser accepts no line end but CRLF,
        so both agree on where a head ends.
        """
        if not self._head:
            if self._received[self._place] in b"\r\n":
                self._place = _EMPTY_LINES.match(self._received, self._place).end()  # type: ignore[union-attr]  # always matches
                if self._place == len(self._received):
                    return
            self.waiting_since = None  # the time for the head starts now
        try:
            if self._head_complete or self._parse_head():  # a complete one still awaits the first chunk of its body
                self._begin()
            else:
                self._wait(self.head_seconds)
        except httptools.HttpParserError:
            self._refuse(BadRequest())
        except ApiError as error:
            self._refuse(error)

    def _take_part(self) -> tuple[bytes, bool]:
        """Move what was received of the present head to `_head`. Returns it, and whether it is the last part."""
        before = len(self._head)
        part = self._received[self._place : self._place + MAX_HEAD_BYTES - before]
        begun = self._head[1 - len(_END) :]  # the end may have begun in an earlier part
        end = (begun + part).find(_END)
        if end >= 0:
            part = part[: end + len(_END) - len(begun)]
        self._place += len(part)
        if before:
            self._head += part
        else:
            self._head = part if end >= 0 else bytearray(part)  # a whole head is not copied
        return part, end >= 0

    def _parse_head(self) -> bool:
        """Parse what was received of the present head. Returns whether it is complete. Raises BadRequest, HeadTooLarge
        and HttpParserError.
        """
        part, is_last = self._take_part()
        try:  # `suppress` would take three times as long
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            pass  # it is not granted, and the head ends here
        except httptools.HttpParserInvalidMethodError:
            self._parse_unknown_method()
        if self._head_complete != is_last:
            raise BadRequest
        if not is_last and len(self._head) >= MAX_HEAD_BYTES:
            raise HeadTooLarge
        return is_last

    def _parse_unknown_method(self) -> None:
        """Parse what was received of the present head with a method that the parser knows: any token is a method (RFC
        9110, section 9.1), and the path decides about the answer. Raises BadRequest if it begins with something else,
        and HttpParserError.
        """
        method = _METHOD.match(self._head)
        if method is None:
            raise BadRequest
        if method.end() < len(self._head):  # otherwise the parser refuses the next part as well
            self._unknown_method = method[0]
            self._parser = self._new_parser()
            with suppress(httptools.HttpParserUpgrade):
                self._parser.feed_data(_KNOWN_METHOD + self._head[method.end() :])

    def on_url(self, url: bytes) -> None:
        """Called by the parser, like the methods `on_…` that follow."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the headers that are used."""
        name = name.lower()
        if name in _USED_HEADERS:
            value = value.rstrip(b" \t")  # the parser leaves tabs (RFC 9112, section 5.1)
            self._headers[name] = self._headers[name] + REPEATED + value if name in self._headers else value

    def on_headers_complete(self) -> None:
        self._head_complete = True
        self._keep_alive = self._parser.should_keep_alive()

    def _begin(self) -> None:
        """Start the request, whose head is complete, unless the first chunk of a GET is still awaited.

        Raises BadRequest, BodyNotAllowed, HeadTooLarge and HttpParserError.
        """
        method, target = self._unknown_method or self._parser.get_method(), self._url
        version = self._version(method)
        has_body = self._check_framing(version)
        if has_body and method in (b"GET", b"HEAD") and not self._is_body_empty():
            self._wait(self.head_seconds)
            return
        # Usually the target is a path. The parser has already checked what a path may contain.
        path = target.partition(b"?")[0] if target.startswith(b"/") else httptools.parse_url(target).path or b"/"
        request = Request(
            request_id(self._headers.get(b"x-request-id")),
            "" if self._unknown_method else method.decode(),
            normalized(path),
            self._headers,
            self._client,
        )
        self._keep_alive &= version != "1.0" and not has_body and not self._worker.draining
        self._reading_done = has_body
        self._request = request
        self._forget_head()
        self.waiting_since = None
        # With a name, because asyncio would make up one for each request.
        self._tasks.add(asyncio.Task(self._serve(request), loop=self.loop, name="request"))

    def _version(self, method: bytes) -> str:
        """Returns the version in the first line. Raises BadRequest if it is not one of HTTP/1, if there are more spaces
        than two, or if the target has a fragment (RFC 9112, sections 2.3 and 3). The parser accepts RTSP as well.
        """
        place = len(method) + 1 + len(self._url)
        version = _VERSIONS.get(bytes(self._head[place : place + _VERSION_LENGTH]))
        if version is None or _NUMBER_SIGN in self._url:
            raise BadRequest
        return version

    def _check_framing(self, version: str) -> bool:
        """Returns whether the request has a body. Raises BadRequest if its headers break a rule of RFC 9112 that the
        parser does not check: sections 3.2 (Host) and 6.1 (no transfer coding in HTTP/1.0).
        """
        host, length = self._headers.get(b"host"), self._headers.get(b"content-length")
        has_host = is_host(host) if host is not None else version == "1.0"
        has_coding = b"transfer-encoding" in self._headers
        if not has_host or (has_coding and version == "1.0"):
            raise BadRequest
        return has_coding or (length is not None and length.strip(b"0") != b"")

    def _is_body_empty(self) -> bool:
        """Returns whether the body of a GET is known to be empty; False while the line that begins its first chunk is
        not complete (RFC 9112, section 7.1). Raises BodyNotAllowed, BadRequest and HeadTooLarge.

        A request with `Expect` is refused: the client would wait for a "100 Continue" that is never sent.
        """
        if b"transfer-encoding" not in self._headers or b"expect" in self._headers:
            raise BodyNotAllowed
        self._chunk_line += self._received[self._place : self._place + MAX_HEAD_BYTES - len(self._chunk_line)]
        self._place = len(self._received)  # whatever follows belongs to this connection's last request
        line, end, _ = self._chunk_line.partition(b"\r\n")
        size = line.removesuffix(b"\r").partition(b";")[0].rstrip(b" \t")
        if size.strip(b"0"):
            raise BodyNotAllowed if size.strip(string.hexdigits.encode()) == b"" else BadRequest
        if end and (not size or b"\n" in line or b"\r" in line):
            raise BadRequest
        if not end and len(self._chunk_line) >= MAX_HEAD_BYTES:
            raise HeadTooLarge
        return bool(end)

    def _forget_head(self) -> None:
        self._head, self._head_complete, self._url, self._headers = b"", False, b"", {}
        self._unknown_method = self._chunk_line = b""

    async def _serve(self, request: Request) -> None:
        try:
            await self._app({"type": "http", "request": request}, _receive, self._send)
        except (Exception, asyncio.CancelledError) as error:
            if self._request is request:
                self._refuse(error)
            else:
                logger.exception("a request failed after it had been answered")
        finally:
            self._tasks.discard(asyncio.current_task(self.loop))

    async def _send(self, message: Any) -> None:
        """Take the only message of a response: an `http.response.start` with the whole `response` (`api/app.py`). It is
        written at once, because the client has taken all former responses.

        Raises KeyError for any other message. Only Starlette sends one, to answer a defect by itself, in plain text.
        The error prevents that, and `_serve` answers in JSON.
        """
        request: Request = message["request"]
        response: Response = message["response"]
        caller = request.caller  # if it was refused, its key may name any organization
        self._organization = caller.organization if caller is not None and response.status == 200 else b""
        if self._transport.is_closing():
            return
        self._keep_alive &= not self._worker.draining
        self._write(request, response, close=not self._keep_alive)
        if self._transport.is_closing():  # `unread` has aborted this connection
            return
        self._resume_reading()
        if not self._keep_alive:
            self._close_gently()
        elif self._received:
            self._feed()
        else:
            self._wait(self.idle_seconds)

    def _write(self, request: Request, response: Response, *, close: bool) -> None:
        cors = b"origin" in request.headers
        head = encode_head(response, request.id, _lines((*self._server.default_headers,)), cors=cors, close=close)
        if request.method == "HEAD":
            self._transport.write(head)
        elif response.rest:
            self._transport.writelines((head, response.body, *response.rest))
        else:
            self._transport.write(head + response.body)
        self._request = None  # it holds the API key

    def _refuse(self, error: BaseException) -> None:
        """Report an error that no endpoint has reported, and close the connection."""
        self.waiting_since = None
        request = self._request
        if request is None:  # it has not begun: its head is not complete, or not valid
            own_id = request_id(self._headers.get(b"x-request-id", b"").rpartition(REPEATED)[2])
            method = "HEAD" if self._head.startswith(b"HEAD ") else ""
            request = Request(own_id, method, headers=self._headers)
        request.error = error
        response = error_response(error, request.id, self._worker.settings.docs_url)
        self._worker.counters.route("edge").count(response.status, 0.0)
        self._worker.log.write(request, "edge", response.status, 0.0)
        request.error = None
        if not self._transport.is_closing():
            self._write(request, response, close=True)
            self._forget_head()
            self._close_gently()

    def pause_writing(self) -> None:
        """Called by asyncio: a part of a response did not fit into the send buffer."""
        self._writing_paused = True
        self._wait(self.stalled_seconds)
        self.unread.add(self, self._organization, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Called by asyncio: now the rest of the response is in the send buffer."""
        self._writing_paused = False
        self.unread.remove(self)
        if self._reading_done or self._transport.is_closing():
            return
        self.waiting_since = None
        if self._received:
            self._resume_reading()
            self._feed()
        else:
            self._wait(self.idle_seconds)

    def eof_received(self) -> bool:
        """Called by asyncio: the client sends nothing more. If it still waits for a response, that is the last one."""
        if self._request is not None:
            self._keep_alive = False
            self._stop_waiting()  # a client that has closed only its half of the connection gets its answer now
        elif self._in_kernel():
            self._close_gently()
        else:
            return False
        return True

    def abort(self) -> None:
        """Close at once, so that a client with unread responses cannot hold the connection open."""
        if self._in_kernel():
            # Make the kernel forget these bytes. Otherwise it would hold them until the client takes them, though the
            # connection does not count any more.
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD)
        self._transport.abort()

    def _in_kernel(self) -> int:
        """Returns how many bytes the kernel holds that the client's machine has not acknowledged; 0 if it is closed."""
        number = self._transport.get_extra_info("socket").fileno()
        return int.from_bytes(fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4)), sys.byteorder) if number >= 0 else 0

    def _resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()

    def _close_gently(self) -> None:
        """Close the connection once the client has taken everything, or after `stalled_seconds`."""
        self._reading_done = True
        self._received, self._place = b"", 0
        self._transport.write_eof()
        self._closes_until = self.loop.time() + self.stalled_seconds
        self.waiting_since = None
        self._wait(self.linger_seconds)

    def _end(self, latest: float) -> None:
        if not self._in_kernel():
            self._transport.close()
        elif self.loop.time() > latest:
            self.abort()
        else:
            self._waits_until += self.linger_seconds
            self._set_timer()


async def _receive() -> dict[str, Any]:
    """Returns an empty body: no request has one."""
    return {"type": "http.request", "body": b"", "more_body": False}
