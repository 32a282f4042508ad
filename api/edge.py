"""The edge: what is refused before a request is one. Limits on the head, no body on GET and HEAD, JSON in every case.

No byte of a body is read, nor of what follows it: a request that brings one is the last of its connection. So neither
bodies nor trailers need a limit, and nothing in one can be taken for a request. Of pipelined requests only so many are
parsed ahead; the rest waits, unparsed, and nothing more is read meanwhile.

A refusal ends the connection. It waits for the answers to earlier, pipelined requests, or the client would
take it for one of those. Then our side is closed and what still comes in is thrown away for a moment: closing at once
would reset the connection, and the client might never read the refusal.

Built on uvicorn's HttpToolsProtocol. `tests/unit/test_api_edge.py` names everything of it that is relied on here,
so that a new version of uvicorn that changes it is noticed.
"""

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import unquote

import httptools
from uvicorn._types import ASGIVersions, HTTPScope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.cycle import Cycle
from api.errors import BadRequest, BodyNotAllowed, HeadTooLarge, HeadTooSlow, Refused
from api.request import request_id
from api.response import all_headers, error_response

MAX_HEAD_BYTES = 16 * 1024
LINGER_SECONDS = 1.0
MAX_PARSE_BYTES = 4096
"""Parsed in one go. While one of these requests waits for its turn, no more are."""

_HEAD_END = b"\r\n\r\n"
_ASGI: ASGIVersions = {"version": "3.0", "spec_version": "2.3"}
_CLOSE = (b"connection", b"close")


class _BodyFollows(Exception):
    """Stops the parser."""


class Edge(HttpToolsProtocol):
    """One client connection."""

    head_seconds: ClassVar[float] = 10.0
    """For a whole head from its first byte, and for a new connection to send anything."""
    stalled_seconds: ClassVar[float] = 30.0
    """For a client to take in what it asked for, once more is unsent than the buffers hold, or all else is done."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_head = False
        self._head_began = False  # within the bytes that are being parsed
        self._head_bytes = 0  # of the unfinished head
        self._has_body = False
        self._message_event = asyncio.Event()  # for all requests: their bodies are not read
        self._deadline: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._rest = b""  # came in, and is to be parsed when nothing waits in the pipeline
        self._last = False  # nothing more is read: the last answer is given, or under way
        self._refusal: Refused | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        self._take_heart()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, at most up to the largest head at a time: that is how a head over it is noticed to the byte."""
        self._unset_keepalive_if_required()
        if self._rest:  # reading is paused, but this was on its way
            self._rest += data
        else:
            self._take_in(data)

    def _take_in(self, data: bytes) -> None:
        while data and not self._last and not self.pipeline:
            part = data[: min(MAX_PARSE_BYTES, MAX_HEAD_BYTES - self._head_bytes)]
            parsed = self._parse(part)
            data = data[parsed:]
            self._measure_head(part[:parsed])
        if self.pipeline and not self._last:
            self._rest = data
            self._stop_deadline()  # it is us who let the next head wait

    def _parse(self, part: bytes) -> int:
        """How many bytes were parsed: all, unless the client asked for an upgrade, which it does not get."""
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade as upgrade:
            return int(upgrade.args[0])
        except httptools.HttpParserError:
            if self._refusal is not None or not self._last:
                self._refuse(self._refusal or BadRequest())
        return len(part)

    def _measure_head(self, part: bytes) -> None:
        if self._last:
            return
        if not self._in_head:
            self._head_bytes = 0
        elif self._head_began:
            # No body comes before it (those are refused), so it begins behind the end of the last head.
            self._head_bytes = len(part) - (part.rfind(_HEAD_END) + len(_HEAD_END) if _HEAD_END in part else 0)
            self._stop_deadline()
        else:
            self._head_bytes += len(part)
        self._head_began = False
        if self._head_bytes >= MAX_HEAD_BYTES:
            self._refuse(HeadTooLarge())
        elif self._in_head or self._is_idle():
            self._start_deadline()

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._in_head = self._head_began = True
        self._has_body = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn's, which is not called: this runs for every header. `Expect` is not obeyed: no body is wanted."""
        name = name.lower()
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 ")):
            self._has_body = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_deadline()
        if self._has_body and self.parser.get_method() in (b"GET", b"HEAD"):
            self._refusal = BodyNotAllowed()
            raise self._refusal  # stops the parser: what follows is not read as another request
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise BadRequest
        self._begin(version)
        if self._has_body:
            self._last = True
            raise _BodyFollows

    def _begin(self, version: str) -> None:
        scope = self._scope(version)
        cycle = Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=[*self.server_state.default_headers, *([_CLOSE] if self._has_body else [])],
            message_event=self._message_event,
            expect_100_continue=False,
            # With a body the connection is closed as after a refusal: gently.
            keep_alive=self._has_body or (version != "1.0" and self.parser.should_keep_alive()),
            on_response=self.on_response_complete,
        )
        idle, self.cycle = self._is_idle(), cycle
        if idle:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def _scope(self, version: str) -> HTTPScope:
        url = httptools.parse_url(self.url)
        path = url.path or b"/"
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": "http",
            "method": self.parser.get_method().decode(),
            "root_path": "",
            "path": unquote(path) if b"%" in path else path.decode(),
            "raw_path": path,
            "query_string": url.query or b"",
            "headers": self.headers,
            "state": self.app_state.copy(),
            "extensions": {},
        }

    def on_message_complete(self) -> None:
        """Nobody waits for the end of a body: none is read."""

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self._lose_patience()
        elif self._last:
            if self._is_idle():
                self._finish()
        elif self.pipeline:
            self.flow.pause_reading()
        elif self._rest or self._in_head:
            self._go_on()

    def _finish(self) -> None:
        if self._refusal is not None:
            self._send_refusal(self._refusal)
        else:
            self._close_gently()

    def _go_on(self) -> None:
        """Nothing waits in the pipeline any more: parse what came behind it."""
        rest, self._rest = self._rest, b""
        self._take_in(rest)
        if self._rest:
            self.flow.pause_reading()
        elif self._in_head and not self._last and not self.pipeline:
            self._start_deadline()

    def timeout_keep_alive_handler(self) -> None:
        """As uvicorn's; but a client that did not even read its answers does not hold the connection open."""
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._lose_patience()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._take_heart()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's always closes
        """The client is done sending. It may still wait for answers: then the connection closes after the last."""
        if self._is_idle():
            return False
        self.cycle.keep_alive = False
        return True

    def _is_idle(self) -> bool:
        """True where no request waits for its answer. `cycle` is the newest one's."""
        return bool(getattr(self.cycle, "response_complete", True))  # there is none before the first

    def _lose_patience(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(self.stalled_seconds, self.transport.abort)

    def _take_heart(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self._too_slow)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        if self._in_head:
            self._refuse(HeadTooSlow())
        else:
            self.transport.abort()

    def _refuse(self, error: Refused) -> None:
        self._refusal = error
        self._last = True
        self._stop_deadline()
        if self._is_idle():
            self._send_refusal(error)

    def _send_refusal(self, error: Refused) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self.app_state["counters"].route("edge").answered(error.status, 0.0)
        self.transport.write(self._response(error))
        self._close_gently()

    def _close_gently(self) -> None:
        self._lose_patience()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _response(self, error: Refused) -> bytes:
        headers = dict(self.headers or ())
        sent_id = request_id(headers.get(b"x-request-id"))
        answer = error_response(error, sent_id)
        lines = [b"HTTP/1.1 %d %b" % (error.status, HTTPStatus(error.status).phrase.encode())]
        for name, value in (
            *self.server_state.default_headers,
            *all_headers(answer, sent_id, cors=b"origin" in headers),
            _CLOSE,
        ):
            lines.append(name + b": " + value)
        body = b"" if self.parser.get_method() == b"HEAD" else answer.body
        return b"\r\n".join((*lines, b"", body))
