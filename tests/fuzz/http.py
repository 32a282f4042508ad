"""Fuzzes the edge of the API at its socket: `python -m tests.fuzz http --seconds 60 --seed 1`.

Every stream of bytes is also given to h11, another parser. The API may refuse more than h11 does, but it may serve only
requests that h11 finds as well, in the same order: otherwise the two would disagree about where a request ends, and a
client could smuggle one past a proxy. Valid requests are all served. No answer is a 5xx, every one is JSON, none is
late, no event stands in the way of others, and nothing stays in memory.
"""

import gc
import re
import socket
import struct
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from uuid import uuid4

import h11
import psutil
from msgspec import Struct

from api.edge import Edge
from devstack.redis_server import RedisServer
from devstack.waiting import wait_until
from tests.harness.api_server import LEADS, UNLIMITED, ApiServer, Response, patient, read_all, responses, running_api
from tests.harness.records import Records
from tests.harness.services import client_of

MOST_STANDING_SECONDS = 0.1
MOST_GROWTH_BYTES = 64_000_000
_PULSE_SECONDS = 0.005
_REFUSALS = {"bad_request", "body_not_allowed", "request_header_fields_too_large", "request_timeout"}
_MUCH, _SHORT = re.compile(rb"(.)\1{30,}", re.DOTALL), rb"\1..."
_IS_KEPT = re.compile(r"[A-Za-z0-9._:-]{1,128}").fullmatch
_LARGE = 1 << 20
_UNKNOWN_CODING = 501
_NOT_FOUND = h11.Response(status_code=404, headers=[("Content-Length", "0")])


# What is sent: valid requests, almost valid ones, and pairs that two parsers could separate in different places.

Header = tuple[bytes, bytes]

_TARGETS = (b"/healthz", b"/readyz", b"/nothing", b"/api/v1/ext/leads/x", b"LEAD", b"/health%7a", b"/healthz?a=b&c")
_ODD_TARGETS = (
    b"*",
    b"http://h/healthz",
    b"http://h:1/healthz?x",
    b"//healthz",
    b"/a#b",
    b"h:443",
    b"/%",
    b"",
    b"/\xff",
)
_ODD_METHODS = (b"PUT", b"TRACE", b"CONNECT", b"PRI", b"get", b"G\x00T", b"SOURCE", b"DESCRIBE", b"M-SEARCH", b"")
_ODD_VERSIONS = (
    b"HTTP/1.0",
    b"HTTP/1.2",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"RTSP/1.0",
    b"ICE/1.0",
    b"http/1.1",
    b"HTTP/1.1 ",
    b"",
)
_HEADERS: tuple[Header, ...] = (
    (b"Accept", b"*/*"),
    (b"Authorization", b"KEY"),
    (b"Authorization", b"Bearer lv_live_x"),
    (b"Connection", b"keep-alive"),
    (b"Content-Length", b"0"),
    (b"If-None-Match", b'W/"000000000000000000000000"'),
    (b"Origin", b"https://example.com"),
    (b"X-Forwarded-For", b"192.0.2.1, 192.0.2.2"),
    (b"Cookie", b"c" * 2000),
)
_ODD_HEADERS: tuple[Header, ...] = (
    (b"Host", b"x"),
    (b"Host", b"a b"),
    (b"Host", b"[::1"),
    (b"Connection", b"close"),
    (b"Connection", b"Upgrade, HTTP2-Settings"),
    (b"Upgrade", b"h2c"),
    (b"Expect", b"100-continue"),
    (b"Content-Length", b"+5"),
    (b"Content-Length", b"5, 5"),
    (b"Content-Length", b"0x5"),
    (b"Content-Length", b"00000000000000000000"),
    (b"Content-Length", b"18446744073709551616"),
    (b"Content-Length", b""),
    (b"Transfer-Encoding", b"chunked"),
    (b"Transfer-Encoding", b"identity"),
    (b"Transfer-Encoding", b"chunked, identity"),
    (b"Transfer-Encoding", b"\x0bchunked"),
    (b"Transfer-Encoding", b""),
    (b"Transfer-Encoding ", b"chunked"),
    (b" Transfer-Encoding", b"chunked"),
    (b"Content_Length", b"5"),
    (b"", b"x"),
    (b"A\x00", b"x"),
    (b"A", b"x\ry"),
    (b"A", b"x\ny"),
    (b"A", b"x\r\n y"),
    (b"A", b"\x00"),
    (b"A", b"\x7f"),
    (b"A" * 9000, b"x" * 9000),
    (b"\xff", b"\xff\xfe"),
)
_BODY_HEADERS = (
    b"Content-Length: SIZE\r\n",
    b"Content-Length: SIZE\r\nContent-Length: SIZE\r\n",
    b"Content-Length: 0\r\nContent-Length: SIZE\r\n",
    b"Content-Length: SIZE\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: SIZE\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: x, chunked\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\nContent-Length: SIZE\r\n",
    b"Transfer-encoding:\tchunked\r\nContent-Length: SIZE\r\n",
    b"Content-Length: SIZE\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Content-Length: SIZE\r\nExpect: 100-continue\r\n",
)


class Stream(Struct):
    """What one connection sends."""

    pieces: list[bytes]
    valid: list[bytes] | None
    """The ids of its requests, if every byte is as RFC 9112 wants it: then each must be served."""
    resets: bool
    """The client ends with RST instead of waiting for the responses."""


def stream(chance: Random, path: bytes, authorization: bytes) -> Stream:
    """Returns the next stream. Some of its requests ask for the document at `path`, and some send `authorization`."""

    def cut(sent: bytes) -> list[bytes]:
        sent = sent.replace(b"LEAD", path).replace(b"KEY", authorization)
        cuts = sorted(chance.randrange(len(sent) + 1) for _ in range(chance.choice((0, 0, 1, 2, 8)))) if sent else []
        return [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]

    ids = [b"%d" % chance.randrange(10**12) for _ in range(chance.randrange(1, 6))]
    kind = chance.random()
    if kind < 0.3:
        sent = b"".join(_request(chance, each) for each in ids)
        return Stream(cut(sent), ids, resets=chance.random() < 0.05)
    if kind < 0.6:
        sent = b"".join(_odd_request(chance, each) if chance.random() < 0.5 else _request(chance, each) for each in ids)
    else:
        sent = b"".join(_request(chance, each) for each in ids[1:]) + _smuggling(chance, ids[0])
    for _ in range(chance.choice((0, 0, 1, 3))):
        place = chance.randrange(len(sent) + 1)
        sent = sent[:place] + chance.randbytes(chance.randrange(3)) + sent[place + chance.randrange(3) :]
    return Stream(cut(sent), None, resets=chance.random() < 0.1)


def _request(chance: Random, request_id: bytes) -> bytes:
    headers = [(b"Host", chance.choice((b"x", b"api.example.com:8000", b"[::1]:1", b"")))]
    headers += [(b"X-Request-Id", request_id), *chance.sample(_HEADERS, chance.randrange(4))]
    chance.shuffle(headers)
    line = b"%b %b HTTP/1.1" % (chance.choice((b"GET", b"GET", b"OPTIONS", b"DELETE")), chance.choice(_TARGETS))
    return _head(line, headers)


def _odd_request(chance: Random, request_id: bytes) -> bytes:
    """Returns one with a mistake or two."""
    method, target, version = b"GET", chance.choice(_TARGETS), b"HTTP/1.1"
    headers = [(b"Host", b"x"), (b"X-Request-Id", request_id)]
    for _ in range(chance.randrange(1, 3)):
        match chance.randrange(5):
            case 0:
                method = chance.choice(_ODD_METHODS)
            case 1:
                target = chance.choice(_ODD_TARGETS)
            case 2:
                version = chance.choice(_ODD_VERSIONS)
            case 3:
                headers.insert(chance.randrange(len(headers) + 1), chance.choice(_ODD_HEADERS))
            case _:
                headers.pop(chance.randrange(len(headers))) if headers else None
    line = chance.choice((b" ", b" ", b" ", b"  ", b"\t")).join((method, target, version))
    return _head(line, headers, chance.choice((b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r")))


def _head(line: bytes, headers: list[Header], end: bytes = b"\r\n") -> bytes:
    return end.join([line, *(name + b": " + value for name, value in headers), b"", b""])


def _smuggling(chance: Random, request_id: bytes) -> bytes:
    """Returns a request whose body is a request: who takes its end for another one answers the inner one."""
    inner = _request(chance, b"inner-" + request_id)
    body = chance.choice((inner, b"0\r\n\r\n" + inner, b"%x\r\n" % len(inner) + inner + b"\r\n0\r\n\r\n"))
    line = chance.choice((b"GET", b"POST", b"PUT", b"OPTIONS")) + b" /healthz HTTP/1.1\r\nHost: x\r\nX-Request-Id: "
    length = chance.choice((len(body), 4, 5, len(body) - len(inner)))
    framing = chance.choice(_BODY_HEADERS).replace(b"SIZE", b"%d" % length)
    last = _request(chance, b"last-" + request_id)
    return line + request_id + b"\r\n" + framing + b"\r\n" + body + last


class Watched(Edge):
    """Measures how long the event loop works without a pause, in processor time: a busy machine does not count."""

    standing: ClassVar[float] = 0.0
    _worked: ClassVar[float | None] = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if Watched._worked is None:
            Watched._worked = time.thread_time()
            self.loop.call_later(_PULSE_SECONDS, _pulse, self.loop)


def _pulse(loop: Any) -> None:
    worked = time.thread_time()
    Watched.standing = max(Watched.standing, worked - (Watched._worked or worked))
    Watched._worked = worked
    loop.call_later(_PULSE_SECONDS, _pulse, loop)


def _send(api: ApiServer, stream: Stream) -> list[Response] | None:
    """Returns the responses; None if the connection was reset, by the client or because the API had closed it."""
    with api.connect() as connection:
        try:
            for piece in stream.pieces:
                connection.sendall(piece)
            if not stream.resets:
                connection.shutdown(socket.SHUT_WR)
                return responses(read_all(connection))
        except TimeoutError:
            raise AssertionError(f"neither a response nor a close: {stream.pieces}") from None
        except OSError:
            return None
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return None


def fuzz(seed: int, seconds: float) -> str:
    """Returns a line that says what was done. Raises AssertionError, with the stream that shows the fault."""
    chance = Random(seed)
    streams = served = refused = 0
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = stack.enter_context(RedisServer.start(Path(folder)))
        settings = patient(server.url, **UNLIMITED, api_unknown_key_limit=UNLIMITED["key_rate_limit"])
        records = Records(stack.enter_context(client_of(server.url)))
        api = stack.enter_context(running_api(settings, edge=Watched))
        caller = records.caller()
        lead = records.lead(caller.organization_id, {"id": str(uuid4()), "text": "t" * 2000})
        asked = (LEADS + lead).encode(), caller.authorization.encode()
        for _ in range(50):  # whatever is imported or allocated once
            _send(api, stream(Random(0), *asked))
        Watched.standing, before, until = 0.0, _memory(), time.monotonic() + seconds
        while time.monotonic() < until:
            sent = stream(chance, *asked)
            answers = _send(api, sent)
            streams += 1
            if answers is not None:
                found = _check(sent, answers)
                served, refused = served + found, refused + len(answers) - found
            assert Watched.standing < MOST_STANDING_SECONDS, f"{Watched.standing:.3f} s of work on {sent.pieces}"
        wait_until(_is_freed, "every connection is freed")
        growth = _memory() - before
        assert growth < MOST_GROWTH_BYTES, f"the process has grown by {growth} bytes"
        assert api.is_ready()
    return (
        f"seed {seed}, {streams} streams, {served} requests served, {refused} refused, the event loop stood for "
        f"{Watched.standing * 1000:.0f} ms at most, {max(growth, 0) / 1e6:.0f} MB more memory"
    )


def _check(sent: Stream, answers: list[Response]) -> int:
    found = [(answer.status, answer.headers.get("x-request-id")) for answer in answers]
    whole = b"".join(sent.pieces)
    shown = f"{_MUCH.sub(_SHORT, whole)!r} -> {found}"
    served = []
    for answer in answers:
        assert answer.status < 500, shown
        if answer.status not in (204, 304):
            assert answer.headers["content-type"] == "application/json", shown
        if answer.status >= 400:
            assert answer.json["request_id"] == answer.headers["x-request-id"], shown
        if answer.status < 400 or answer.error not in _REFUSALS:
            served.append(answer)
    assert len(answers) - len(served) <= 1, f"a refusal is the last response: {shown}"
    if sent.valid is None:
        ids = [each.decode("latin-1") for each in request_ids(whole)]
    else:
        ids = [each.decode() for each in sent.valid]
        assert len(served) == len(ids), f"every valid request is served: {shown}"
    assert len(served) <= len(ids), f"h11 found {ids}: {shown}"
    for answer, own_id in zip(served, ids, strict=False):
        assert answer.headers["x-request-id"] == own_id or not _IS_KEPT(own_id), f"h11 found {ids}: {shown}"
    return len(served)


def _is_freed() -> bool:
    gc.collect()
    return not any(isinstance(each, Watched) for each in gc.get_objects())


def _memory() -> int:
    return int(psutil.Process().memory_info().rss)


# The same bytes as h11 reads them, which is another parser of HTTP/1.1.


def request_ids(sent: bytes) -> list[bytes]:
    """Returns the `X-Request-Id` of each request that h11 finds until it would close the connection. A request without
    this header, or with two, has an empty one.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGE)
    connection.receive_data(sent)
    found: list[bytes] = []
    try:
        while (event := connection.next_event()) is not h11.NEED_DATA and not isinstance(event, h11.ConnectionClosed):
            if isinstance(event, h11.Request):
                ids = [value for name, value in event.headers if name == b"x-request-id"]
                found.append(ids[0] if len(ids) == 1 else b"")
            elif (event is h11.PAUSED or isinstance(event, h11.EndOfMessage)) and not _answer(connection):
                break
    except h11.RemoteProtocolError as error:
        if error.error_status_hint == _UNKNOWN_CODING:  # a request all the same, and the last one
            found.append(b"")
    return found


def _answer(connection: h11.Connection) -> bool:
    if connection.our_state is h11.SEND_RESPONSE:
        connection.send(_NOT_FOUND)
        connection.send(h11.EndOfMessage())
    if connection.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
        return False
    connection.start_next_cycle()
    return True
