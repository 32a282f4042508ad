"""Hostile HTTP on raw sockets: each request ends in one JSON response below 500 or in a clean close, delays no other
client, and leaves neither a key nor a part of a document in the log. Where RFC 9112 and RFC 9110 are stricter than a
parser, so is the API."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.harness.api_server import HEALTH, LEADS, responses
from tests.harness.hostile import Target, answer_to, target
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService
from tests.harness.waiting import wait_until

BODIES = [
    pytest.param(b"Content-Length: 40\r\n\r\n", id="length"),
    pytest.param(b"Content-Length: 40\r\nContent-Length: 40\r\n\r\n", id="twice the same length"),
    pytest.param(b"Content-Length: 40, 40\r\n\r\n", id="a list of lengths"),
    pytest.param(b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n", id="two lengths"),
    pytest.param(b"Content-Length: +40\r\n\r\n", id="a sign"),
    pytest.param(b"Content-Length: -1\r\n\r\n", id="a negative length"),
    pytest.param(b"Content-Length: 0x28\r\n\r\n", id="a hexadecimal length"),
    pytest.param(b"Content-Length: 99999999999999999999999\r\n\r\n", id="a length beyond 64 bits"),
    pytest.param(b"Content-Length : 40\r\n\r\n", id="a space before the colon"),
    pytest.param(b"Content-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="CL.TE"),
    pytest.param(b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n28\r\n", id="TE.CL"),
    pytest.param(b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="chunks"),
    pytest.param(b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Request-Id: trailer\r\n\r\n", id="a trailer"),
    pytest.param(b"Transfer-Encoding: x, chunked\r\n\r\n0\r\n\r\n", id="another encoding before chunks"),
    pytest.param(b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", id="no encoding there is"),
    pytest.param(b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", id="chunks not last"),
    pytest.param(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n", id="TE.TE"),
    pytest.param(b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n", id="a vertical tab"),
    pytest.param(b"Transfer-Encoding\r\n : chunked\r\n\r\n0\r\n\r\n", id="a folded name"),
    pytest.param(b"X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="a lone CR"),
    pytest.param(b"X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="a lone LF"),
    pytest.param(b"Connection: Upgrade\r\nUpgrade: x\r\nContent-Length: 40\r\n\r\n", id="an upgrade with a body"),
    pytest.param(b"Expect: 100-continue\r\nContent-Length: 40\r\n\r\n", id="a body that waits for 100"),
]


@pytest.mark.parametrize("method", [b"GET", b"POST", b"OPTIONS", b"DELETE"])
@pytest.mark.parametrize("head", BODIES)
def test_nothing_inside_or_after_a_body_is_parsed_as_a_request(
    api: Target, caller: Caller, method: bytes, head: bytes
) -> None:
    path = f"{LEADS}{uuid4()}".encode()
    answer = answer_to(api, method + b" " + path + b" HTTP/1.1\r\nHost: x\r\n" + head + HEALTH * 3)
    # An empty body in chunks is no body: then the key is missing.
    assert answer.status in ({400, 401} if method == b"GET" else {400, 405, 204})
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-request-id"] != "trailer"


CLOSE = b"Connection: close\r\n\r\n"
HOST = b"Host: api.example.com\r\n"
GET = b"GET /healthz HTTP/1.1\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(GET + CLOSE, id="no Host"),
        pytest.param(GET + HOST + HOST + CLOSE, id="two Hosts"),
        pytest.param(GET + HOST + b"host: other.example.com\r\n" + CLOSE, id="two different Hosts"),
        pytest.param(GET + b"Host: a b\r\n" + CLOSE, id="a space in Host"),
        pytest.param(GET + b"Host: a/b\r\n" + CLOSE, id="a path in Host"),
        pytest.param(GET + b"Host: user@a\r\n" + CLOSE, id="a user in Host"),
        pytest.param(GET + b"Host: a, b\r\n" + CLOSE, id="a list in Host"),
        pytest.param(GET + b"Host: a:b\r\n" + CLOSE, id="a port of letters"),
        pytest.param(GET + b"Host: http://a\r\n" + CLOSE, id="a URL in Host"),
        pytest.param(GET + b"Host: [::1\r\n" + CLOSE, id="a bracket that is not closed"),
        pytest.param(GET + b"Host: ::1\r\n" + CLOSE, id="an IPv6 address without brackets"),
        pytest.param(GET + b"Host: [1::2::3]\r\n" + CLOSE, id="no IPv6 address in brackets"),
        pytest.param(GET + b"Host: [a.example.com]\r\n" + CLOSE, id="a name in brackets"),
        pytest.param(GET + b"Host: [fe80::1%25eth0]\r\n" + CLOSE, id="a zone"),
        pytest.param(GET + b"Host: [v1.a]\r\n" + CLOSE, id="an address of a later version"),
        pytest.param(GET + b"Host: []\r\n" + CLOSE, id="no address in brackets"),
        pytest.param(GET + b"Host: a%zz\r\n" + CLOSE, id="a bad escape in Host"),
        pytest.param(GET + b"Host: \xc3\xa9.example.com\r\n" + CLOSE, id="a Host that is not ASCII"),
        pytest.param(GET + b"Host : a\r\n" + CLOSE, id="a space before the colon"),
        pytest.param(b"GET http://a/healthz HTTP/1.1\r\n" + CLOSE, id="absolute form without Host"),
        pytest.param(b"GET /healthz HTTP/1.0\r\n" + HOST + HOST + b"\r\n", id="HTTP/1.0 with two Hosts"),
        pytest.param(b"GET /healthz HTTP/1.0\r\nHost: a b\r\n\r\n", id="HTTP/1.0 with an invalid Host"),
        pytest.param(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: identity\r\n\r\n", id="identity"),
        pytest.param(b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: identity\r\n\r\n", id="identity on GET"),
        pytest.param(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", id="gzip, not chunked"),
        pytest.param(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, gzip\r\n\r\n", id="gzip is last"),
        pytest.param(
            b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n",
            id="gzip is last, in its own line",
        ),
        pytest.param(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding:\r\n\r\n", id="no coding"),
        pytest.param(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="chunks in HTTP/1.0"),
        pytest.param(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length:\r\n\r\n", id="no length"),
        pytest.param(b"GET /healthz#top HTTP/1.1\r\n" + HOST + CLOSE, id="a fragment"),
        pytest.param(b"GET /healthz?a#top HTTP/1.1\r\n" + HOST + CLOSE, id="a fragment behind a query"),
        pytest.param(b"GET http://a/healthz#top HTTP/1.1\r\n" + HOST + CLOSE, id="a fragment in absolute form"),
        pytest.param(b"GET /healthz RTSP/1.0\r\n" + HOST + CLOSE, id="RTSP/1.0"),
        pytest.param(b"GET /healthz RTSP/1.1\r\n" + HOST + CLOSE, id="RTSP/1.1"),
        pytest.param(b"OPTIONS * RTSP/1.0\r\nX: a HTTP/1.1\r\n" + HOST + CLOSE, id="RTSP that names HTTP"),
        pytest.param(b"DESCRIBE /healthz RTSP/1.0\r\n\r\n", id="a method of RTSP"),
        pytest.param(b"SOURCE /healthz ICE/1.0\r\n\r\n", id="ICE"),
        pytest.param(b"GET /healthz\r\n" + HOST + CLOSE, id="HTTP/0.9 with headers"),
    ],
)
@pytest.mark.parametrize("pieces", [pytest.param(False, id="whole"), pytest.param(True, id="byte by byte")])
def test_what_is_not_valid_http_gets_400(api: Target, sent: bytes, *, pieces: bool) -> None:
    answer = answer_to(api, sent, 1 if pieces else len(sent))
    assert (answer.status, answer.error, answer.headers["connection"]) == (400, "bad_request", "close")
    assert list(answer.json) == ["error", "message", "status", "request_id"]


def test_response_survives_a_body_that_is_not_read(api: Target) -> None:
    """Closing at once would reset the connection, and the client might never read the response."""
    sent = f"POST {LEADS}x HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n".encode() + b"b" * 3_000_000
    assert answer_to(api, sent, 1000).error == "method_not_allowed"


HOSTS = (
    b"api.example.com",
    b"API.example.com:443",
    b"127.0.0.1:8000",
    b"[::1]:8000",
    b"[::ffff:10.0.0.1]",
    b"a_b",
    b"xn--e1afmkfd.example",
    b"a%20b",
    b"a:",
    b"",
)


SPACES = (b"", b" ", b"\t", b" \t ", b"\t\t")


def asking(line: bytes, *headers: bytes, key: bytes = b" KEY") -> bytes:
    """Returns the last request of a connection, with a key."""
    return b"\r\n".join((line, b"Host: x", b"Connection: close", b"Authorization:" + key, *headers, b"", b""))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(asking(b"GET http://elsewhereLEAD HTTP/1.1"), 200, id="absolute form"),
        pytest.param(asking(b"GET http://u:p@elsewhere:99999LEAD HTTP/1.1"), 400, id="absolute form, no port there is"),
        pytest.param(asking(b"GET LEAD?a=b#c HTTP/1.1"), 400, id="a query and a fragment"),
        pytest.param(asking(b"GET elsewhere:443 HTTP/1.1"), 400, id="authority form"),
        pytest.param(asking(b"GET //elsewhereLEAD HTTP/1.1"), 404, id="two slashes"),
        pytest.param(asking(b"GET /..LEAD HTTP/1.1"), 404, id="dots"),
        pytest.param(asking(b"GET LEAD HTTP/1.2"), 400, id="HTTP/1.2"),
        pytest.param(asking(b"GET LEAD HTTP/2.0"), 400, id="HTTP/2.0"),
        pytest.param(asking(b"GET LEAD HTTP/1.0"), 200, id="HTTP/1.0"),
        pytest.param(asking(b"GET LEAD HTTP/9.9"), 400, id="HTTP/9.9"),
        pytest.param(asking(b"GET LEAD http/1.1"), 400, id="lower case"),
        pytest.param(asking(b"GET LEAD"), 400, id="HTTP/0.9"),
        pytest.param(asking(b"GET  LEAD HTTP/1.1"), 400, id="two spaces, which the parser accepts"),
        pytest.param(asking(b"GET LEAD  HTTP/1.1"), 400, id="two spaces behind"),
        pytest.param(asking(b"GET\tLEAD\tHTTP/1.1"), 400, id="tabs"),
        pytest.param(asking(b"get LEAD HTTP/1.1"), 405, id="a method in lower case"),
        pytest.param(asking(b"BREW LEAD HTTP/1.1"), 405, id="a method that does not exist"),
        pytest.param(asking(b"GETS LEAD HTTP/1.1"), 405, id="a method that begins like another"),
        pytest.param(asking(b"!#$%&'*+-.^_`|~09azAZ LEAD HTTP/1.1"), 405, id="a method of all characters of a token"),
        pytest.param(asking(b"M" * 64 + b" LEAD HTTP/1.1"), 405, id="a method of 64 characters"),
        pytest.param(asking(b"M" * 65 + b" LEAD HTTP/1.1"), 400, id="one more"),
        pytest.param(asking(b"BREW /nothing HTTP/1.1"), 404, id="a method that does not exist, at an unknown path"),
        pytest.param(asking(b"BREW http://elsewhereLEAD HTTP/1.1"), 405, id="absolute form for such a method"),
        pytest.param(asking(b"BREW LEAD HTTP/1.1", b"Upgrade: x\r\nConnection: upgrade"), 405, id="with an upgrade"),
        pytest.param(asking(b"BREW LEAD HTTP/1.1", b"Content-Length: 9"), 405, id="with a body"),
        pytest.param(asking(b"BREW LEAD HTTP/1.1", b"Host: y"), 400, id="with two hosts"),
        pytest.param(asking(b"BREW LEAD HTTP/2.0"), 400, id="of HTTP/2"),
        pytest.param(asking(b"BREW  LEAD HTTP/1.1"), 400, id="with two spaces behind it"),
        pytest.param(asking(b"BREW LEAD#a HTTP/1.1"), 400, id="with a fragment"),
        pytest.param(asking(b"BREW LEAD"), 400, id="without a version"),
        pytest.param(asking(b"BREW\tLEAD HTTP/1.1"), 400, id="with a tab behind it"),
        pytest.param(asking(b"BR(W LEAD HTTP/1.1"), 400, id="a method with a bracket"),
        pytest.param(asking(b"BR\xc3\x8bW LEAD HTTP/1.1"), 400, id="a method that is not ASCII"),
        pytest.param(asking(b"GET\x00 LEAD HTTP/1.1"), 400, id="NUL in the method"),
        pytest.param(asking(b"GET LEAD\x00 HTTP/1.1"), 400, id="NUL in the path"),
        pytest.param(asking(b"GET LEAD%00 HTTP/1.1"), 400, id="an encoded NUL"),
        pytest.param(asking(b"GET LEAD%0d%0aX-A:%20b HTTP/1.1"), 400, id="an encoded line break"),
        pytest.param(asking(b"GET LEAD%zz%c3%28%ff HTTP/1.1"), 400, id="bad escapes and bad UTF-8"),
        pytest.param(
            asking(b"GET LEAD HTTP/1.1", b"X-Request-Id: \xff\xfe\xc3\x28"), 200, id="a request id of bad UTF-8"
        ),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"X-Request-Id: a\r\nX-Request-Id: b"), 200, id="two request ids"),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"X-Request-Id: " + b"i" * 10_000), 200, id="a long request id"),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"X-Request-Id: {{7*7}}<script>"), 200, id="markup as a request id"),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"Origin: \xff\x01"), 400, id="a control character"),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"Origin: \xff\xfe"), 200, id="an origin of bad UTF-8"),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"If-None-Match: " + b'W/"' * 4_000), 200, id="thousands of quotes"),
        pytest.param(
            asking(b"GET LEAD HTTP/1.1", b'If-None-Match: "' + b'","' * 4_000 + b'"'), 200, id="thousands of tags"
        ),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"If-None-Match: *"), 304, id="any tag"),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"If-None-Match: \xff*"), 200, id="a tag of bad UTF-8"),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"\r\n".join([b"A:"] * 3_500)), 200, id="3,500 headers"),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"Authorization: x"), 401, id="a second authorization"),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"Authorization : x"), 400, id="one with a space before the colon"),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b": x"), 400, id="no name"),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"\xff: x"), 400, id="a name of no ASCII"),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"A" * 15_000 + b": x"), 200, id="a long name"),
        pytest.param(
            asking(b"GET LEAD HTTP/1.1", b"Connection: keep-alive, close, Upgrade, HTTP2-Settings"),
            200,
            id="a confused connection",
        ),
        pytest.param(asking(b"GET LEAD HTTP/1.1", b"Range: bytes=0-0,0-0,0-0"), 200, id="ranges"),
        pytest.param(asking(b"GET /health%7a HTTP/1.1"), 200, id="path: a letter"),
        pytest.param(asking(b"GET /health%7A HTTP/1.1"), 200, id="path: hexadecimal digits in capitals"),
        pytest.param(asking(b"GET /%72eadyz HTTP/1.1"), 200, id="path: another page"),
        pytest.param(asking(b"GET /api/v1/ext/openapi%2Ejson HTTP/1.1"), 200, id="path: a dot"),
        pytest.param(asking(b"GET /api/v1/%65xt/leads/ID HTTP/1.1"), 200, id="path: in front of a document"),
        pytest.param(asking(b"GET /api/v1/ext/l%65ads/ID HTTP/1.1"), 200, id="path: in the name of a resource"),
        pytest.param(asking(b"GET /api/v1/ext/leads%2FID HTTP/1.1"), 404, id="path: a slash is not a separator"),
        pytest.param(asking(b"GET /healthz%2F HTTP/1.1"), 404, id="path: a slash at the end"),
        pytest.param(asking(b"GET /%2Fhealthz HTTP/1.1"), 404, id="path: a slash at the beginning"),
        pytest.param(asking(b"GET /health%257a HTTP/1.1"), 404, id="path: encoded twice"),
        pytest.param(asking(b"GET /health%%37a HTTP/1.1"), 404, id="path: not encoded twice by decoding"),
        pytest.param(asking(b"GET /healthz%3F HTTP/1.1"), 404, id="path: a question mark"),
        *(
            pytest.param(asking(b"GET LEAD HTTP/1.1", key=space + b"KEY" + space), 200, id=f"space {space!r}")
            for space in SPACES
        ),
        *(pytest.param(GET + b"Host: \t" + host + b" \t\r\n" + CLOSE, 200, id=f"host {host!r}") for host in HOSTS),
        pytest.param(b"GET /healthz HTTP/1.0\r\n\r\n", 200, id="HTTP/1.0 without Host"),
        pytest.param(b"GET /healthz HTTP/1.0\r\n" + HOST + b"\r\n", 200, id="HTTP/1.0 with Host"),
    ],
)
@pytest.mark.parametrize("pieces", [pytest.param(False, id="whole"), pytest.param(True, id="byte by byte")])
def test_hostile_request_gets_its_answer_and_ends_the_connection(
    api: Target, caller: Caller, lead: str, sent: bytes, status: int, *, pieces: bool
) -> None:
    """Lines, headers, hosts and paths. A path is decoded once, and in the same way for every route."""
    for name, text in (("ID", lead), ("LEAD", LEADS + lead), ("KEY", caller.authorization)):
        sent = sent.replace(name.encode(), text.encode())
    answer = answer_to(api, sent, 1 if pieces else len(sent))
    assert (answer.status, answer.headers["connection"]) == (status, "close")


@pytest.mark.parametrize("space", SPACES)
def test_space_around_a_value_is_no_part_of_it(api: Target, space: bytes) -> None:
    """RFC 9112, section 5.1."""
    answer = answer_to(api, GET + HOST + b"X-Request-Id:" + space + b"42" + space + b"\r\n" + CLOSE)
    assert answer.headers["x-request-id"] == "42"


def test_refusal_after_a_head_request_has_a_body(api: Target) -> None:
    received = api.exchange(b"HEAD /healthz HTTP/1.1\r\n" + HOST + b"\r\n" + b"\x00")
    assert received.startswith(b"HTTP/1.1 200 ")
    (refusal,) = responses(received.partition(b"\r\n\r\n")[2])
    assert (refusal.status, refusal.error) == (400, "bad_request")


REQUESTS = [
    pytest.param("GET /{key} HTTP/1.1\r\nHost: x", id="path"),
    pytest.param("GET {leads}{key} HTTP/1.1\r\nHost: x", id="id"),
    pytest.param("GET {leads}x/{key} HTTP/1.1\r\nHost: x", id="path below a record"),
    pytest.param("GET {leads}x?api_key={key} HTTP/1.1\r\nHost: x", id="query"),
    pytest.param("GET {leads}x#{key} HTTP/1.1\r\nHost: x", id="fragment"),
    pytest.param("GET http://{key}@elsewhere{leads}x HTTP/1.1\r\nHost: x", id="user of a URL"),
    pytest.param("{key} {leads}x HTTP/1.1\r\nHost: x", id="method"),
    pytest.param("GET {leads}x HTTP/{key}\r\nHost: x", id="version"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: {key}", id="Host"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: {key}@", id="Host that is not valid"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nX-Request-Id: {key}", id="X-Request-Id"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nX-Request-Id: a.{key}.b", id="X-Request-Id around it"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nX-Request-Id: {key}\r\nX: \x00", id="X-Request-Id, refused"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\r\nX-Request-Id: {key}", id="X-Request-Id twice"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nTraceparent: {key}", id="Traceparent"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nUser-Agent: {key}\r\nReferer: http://x/{key}", id="User-Agent"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {key}", id="X-Forwarded-For"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nOrigin: {key}\r\nCookie: {key}", id="Origin and Cookie"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nIf-None-Match: {key}", id="If-None-Match"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nX-Api-Key: {key}\r\nAuthorization: {key}", id="other headers"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}", id="where it belongs"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{key}", id="a body"),
]


@pytest.fixture(scope="module")
def log_of_all(redis_server: RedisService) -> Iterator[Target]:
    with target(redis_server, request_log="all") as api:
        yield api


def test_the_trace_of_a_request_is_logged(log_of_all: Target) -> None:
    api, trace = log_of_all, "0af7651916cd43dd8448eb211c80319c"
    api.log.lines.clear()
    head = f"GET {LEADS}x HTTP/1.1\r\nHost: x\r\nTraceParent: 00-{trace}-b7ad6b7169203331-01\r\nConnection: close"
    api.exchange(f"{head}\r\n\r\n".encode())
    wait_until(lambda: any(trace in line for line in api.log.lines), "the request is logged with its trace")


@pytest.mark.parametrize(
    "start",
    [pytest.param(0, id="whole"), pytest.param(5, id="a part of the prefix"), pytest.param(8, id="no prefix")],
)
@pytest.mark.parametrize("request_form", REQUESTS)
def test_no_key_is_logged(log_of_all: Target, records: Records, request_form: str, start: int) -> None:
    key = records.caller().key
    api = log_of_all
    api.log.lines.clear()
    sent = request_form.format(key=key[start:], leads=LEADS) + "\r\nConnection: close\r\n\r\n"
    (answer,) = responses(api.exchange(sent.encode()))
    wait_until(lambda: any("request answered" in line for line in api.log.lines), "the request is logged")
    assert [text for text in [*api.log.lines, str(answer)] if key[8:] in text] == []
