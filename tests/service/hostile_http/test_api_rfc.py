"""What RFC 9112 and RFC 9110 require of a server, where a lenient parser would not."""

import pytest

from tests.harness.api_server import LEADS, responses
from tests.harness.hostile import Target, assert_sound
from tests.harness.records import Caller

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
    with api.connect() as connection:
        for place in range(len(sent)) if pieces else ():
            connection.send(sent[place : place + 1])
        received = b"".join(iter(lambda: connection.recv(65536), b"")) if pieces else api.exchange(sent)
    (answer,) = responses(received)
    assert_sound(answer)
    assert (answer.status, answer.error) == (400, "bad_request")
    assert answer.headers["connection"] == "close"
    assert list(answer.json) == ["error", "message", "status", "request_id"]


@pytest.mark.parametrize(
    "host",
    [
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
    ],
)
def test_valid_hosts(api: Target, host: bytes) -> None:
    (answer,) = responses(api.exchange(GET + b"Host: \t" + host + b" \t\r\n" + CLOSE))
    assert answer.status == 200


@pytest.mark.parametrize("space", [b"", b" ", b"\t", b" \t ", b"\t\t"])
def test_space_around_a_value_is_no_part_of_it(api: Target, caller: Caller, lead: str, space: bytes) -> None:
    """RFC 9112, section 5.1. The key and the id are valid only without it."""
    own = b"Authorization:%b%b%b\r\nX-Request-Id:%b42%b\r\n"
    own %= (space, caller.authorization.encode(), space, space, space)
    sent = b"GET " + (LEADS + lead).encode() + b" HTTP/1.1\r\n" + HOST + own + CLOSE
    (answer,) = responses(api.exchange(sent))
    assert (answer.status, answer.headers["x-request-id"]) == (200, "42")


@pytest.mark.parametrize("version", [b"HTTP/1.0\r\n", b"HTTP/1.0\r\n" + HOST])
def test_http_1_0_needs_no_host(api: Target, version: bytes) -> None:
    (answer,) = responses(api.exchange(b"GET /healthz " + version + b"\r\n"))
    assert (answer.status, answer.headers["connection"]) == (200, "close")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        pytest.param("/health%7a", 200, id="a letter"),
        pytest.param("/health%7A", 200, id="hexadecimal digits in capitals"),
        pytest.param("/%72eadyz", 200, id="another page"),
        pytest.param("/api/v1/ext/openapi%2Ejson", 200, id="a dot"),
        pytest.param("/api/v1/%65xt/leads/LEAD", 200, id="in front of a document"),
        pytest.param("/api/v1/ext/l%65ads/LEAD", 200, id="in the name of a resource"),
        pytest.param("/api/v1/ext/leads/LEA%44", 200, id="in an id"),
        pytest.param("/api/v1/ext/leads%2FLEAD", 404, id="a slash is not a separator"),
        pytest.param("/healthz%2F", 404, id="a slash at the end"),
        pytest.param("/%2Fhealthz", 404, id="a slash at the beginning"),
        pytest.param("/health%257a", 404, id="encoded twice"),
        pytest.param("/health%%37a", 404, id="not encoded twice by decoding"),
        pytest.param("/healthz%3F", 404, id="a question mark"),
    ],
)
def test_a_path_is_decoded_in_the_same_way_for_every_route(
    api: Target, caller: Caller, lead: str, path: str, status: int
) -> None:
    path = path.replace("LEAD", lead).replace("LEA%44", lead[:-1] + f"%{ord(lead[-1]):x}")
    assert api.get(path, key=caller.key).status == status


def test_a_refusal_after_a_head_request_has_a_body(api: Target) -> None:
    """The refusal answers something else than that request."""
    received = api.exchange(b"HEAD /healthz HTTP/1.1\r\n" + HOST + b"\r\n" + b"\x00")
    head, _, rest = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    (refusal,) = responses(rest)
    assert (refusal.status, refusal.error) == (400, "bad_request")
