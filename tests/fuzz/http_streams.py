"""Streams of requests: valid ones, almost valid ones, and pairs that two parsers could separate in different places."""

import random

from msgspec import Struct

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

    @property
    def sent(self) -> bytes:
        return b"".join(self.pieces)


def stream(chance: random.Random, path: bytes, authorization: bytes) -> Stream:
    """Returns the next stream. Some of its requests ask for the document at `path`, and some send `authorization`."""

    def cut(sent: bytes) -> list[bytes]:
        return _cut(chance, sent.replace(b"LEAD", path).replace(b"KEY", authorization))

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


def _request(chance: random.Random, request_id: bytes) -> bytes:
    """Returns a valid request without a body."""
    headers = [(b"Host", chance.choice((b"x", b"api.example.com:8000", b"[::1]:1", b"")))]
    headers += [(b"X-Request-Id", request_id), *chance.sample(_HEADERS, chance.randrange(4))]
    chance.shuffle(headers)
    line = b"%b %b HTTP/1.1" % (chance.choice((b"GET", b"GET", b"OPTIONS", b"DELETE")), chance.choice(_TARGETS))
    return _head(line, headers)


def _odd_request(chance: random.Random, request_id: bytes) -> bytes:
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


def _smuggling(chance: random.Random, request_id: bytes) -> bytes:
    """Returns a request whose body is a request: who takes its end for another one answers the inner one."""
    inner = _request(chance, b"inner-" + request_id)
    body = chance.choice((inner, b"0\r\n\r\n" + inner, b"%x\r\n" % len(inner) + inner + b"\r\n0\r\n\r\n"))
    line = chance.choice((b"GET", b"POST", b"PUT", b"OPTIONS")) + b" /healthz HTTP/1.1\r\nHost: x\r\nX-Request-Id: "
    length = chance.choice((len(body), 4, 5, len(body) - len(inner)))
    framing = chance.choice(_BODY_HEADERS).replace(b"SIZE", b"%d" % length)
    last = _request(chance, b"last-" + request_id)
    return line + request_id + b"\r\n" + framing + b"\r\n" + body + last


def _cut(chance: random.Random, sent: bytes) -> list[bytes]:
    cuts = sorted(chance.randrange(len(sent) + 1) for _ in range(chance.choice((0, 0, 1, 2, 8)))) if sent else []
    return [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
