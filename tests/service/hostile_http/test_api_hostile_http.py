"""Hostile HTTP on raw sockets: each request ends in one JSON response below 500 or in a clean close, delays no other
client, and leaves neither a key nor a part of a document in the log."""

import re
import socket
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.harness.api_server import LEADS, read_all, responses
from tests.harness.hostile import Target, assert_sound
from tests.harness.records import Caller

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


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
    (answer,) = responses(api.exchange(method + b" " + path + b" HTTP/1.1\r\nHost: x\r\n" + head + REQUEST * 3))
    assert_sound(answer)
    assert answer.status in ({400} if method == b"GET" else {400, 405, 204})
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-request-id"] != "trailer"


def test_a_response_survives_a_body_that_is_not_read(api: Target, caller: Caller) -> None:
    """Closing at once would reset the connection, and the client might never read the response."""
    with api.connect() as connection:
        connection.sendall(f"POST {LEADS}{uuid4()} HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n".encode())
        connection.sendall(b"b" * 3_000_000)
        (answer,) = responses(read_all(connection))
    assert (answer.status, answer.error) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        pytest.param(b"GET http://elsewhere%s HTTP/1.1", 200, id="absolute form"),
        pytest.param(b"GET http://u:p@elsewhere:99999%s HTTP/1.1", 400, id="absolute form, no port there is"),
        pytest.param(b"GET %s?a=b#c HTTP/1.1", 400, id="a query and a fragment"),
        pytest.param(b"GET elsewhere:443 HTTP/1.1", 400, id="authority form"),
        pytest.param(b"GET //elsewhere%s HTTP/1.1", 404, id="two slashes"),
        pytest.param(b"GET /..%s HTTP/1.1", 404, id="dots"),
        pytest.param(b"GET %s HTTP/1.2", 400, id="HTTP/1.2"),
        pytest.param(b"GET %s HTTP/2.0", 400, id="HTTP/2.0"),
        pytest.param(b"GET %s HTTP/1.0", 200, id="HTTP/1.0"),
        pytest.param(b"GET %s HTTP/9.9", 400, id="HTTP/9.9"),
        pytest.param(b"GET %s http/1.1", 400, id="lower case"),
        pytest.param(b"GET %s", 400, id="HTTP/0.9"),
        pytest.param(b"GET  %s HTTP/1.1", 400, id="two spaces, which the parser accepts"),
        pytest.param(b"GET %s  HTTP/1.1", 400, id="two spaces behind"),
        pytest.param(b"GET\t%s\tHTTP/1.1", 400, id="tabs"),
        pytest.param(b"get %s HTTP/1.1", 400, id="a method in lower case"),
        pytest.param(b"GET\x00 %s HTTP/1.1", 400, id="NUL in the method"),
        pytest.param(b"GET %s\x00 HTTP/1.1", 400, id="NUL in the path"),
        pytest.param(b"GET %s%%00 HTTP/1.1", 400, id="an encoded NUL"),
        pytest.param(b"GET %s%%0d%%0aX-A:%%20b HTTP/1.1", 400, id="an encoded line break"),
        pytest.param(b"GET %s%%zz%%c3%%28%%ff HTTP/1.1", 400, id="bad escapes and bad UTF-8"),
    ],
)
def test_request_lines(api: Target, caller: Caller, lead: str, line: bytes, status: int) -> None:
    line = line.replace(b"%s", (LEADS + lead).encode()).replace(b"%%", b"%")
    head = f"\r\nHost: x\r\nAuthorization: {caller.authorization}\r\nConnection: close\r\n\r\n".encode()
    (answer,) = responses(api.exchange(line + head))
    assert_sound(answer)
    assert answer.status == status


@pytest.mark.parametrize(
    ("header", "status"),
    [
        pytest.param(b"X-Request-Id: \xff\xfe\xc3\x28", 200, id="a request id of bad UTF-8"),
        pytest.param(b"X-Request-Id: a\r\nX-Request-Id: b", 200, id="two request ids"),
        pytest.param(b"X-Request-Id: " + b"i" * 10_000, 200, id="a long request id"),
        pytest.param(b"X-Request-Id: {{7*7}}<script>", 200, id="markup as a request id"),
        pytest.param(b"Origin: \xff\x01", 400, id="a control character"),
        pytest.param(b"Origin: \xff\xfe", 200, id="an origin of bad UTF-8"),
        pytest.param(b"If-None-Match: " + b'W/"' * 4_000, 200, id="thousands of quotes"),
        pytest.param(b'If-None-Match: "' + b'","' * 4_000 + b'"', 200, id="thousands of tags"),
        pytest.param(b"If-None-Match: *", 304, id="any tag"),
        pytest.param(b"If-None-Match: \xff*", 200, id="a tag of bad UTF-8"),
        pytest.param(b"\r\n".join([b"A:"] * 3_500), 200, id="3,500 headers"),
        pytest.param(b"Authorization: x", 401, id="a second authorization"),
        pytest.param(b"Authorization : x", 400, id="one with a space before the colon"),
        pytest.param(b": x", 400, id="no name"),
        pytest.param(b"\xff: x", 400, id="a name of no ASCII"),
        pytest.param(b"A" * 15_000 + b": x", 200, id="a long name"),
        pytest.param(b"Connection: keep-alive, close, Upgrade, HTTP2-Settings", 200, id="a confused connection"),
        pytest.param(b"Range: bytes=0-0,0-0,0-0", 200, id="ranges"),
    ],
)
def test_headers(api: Target, caller: Caller, lead: str, header: bytes, status: int) -> None:
    start = f"GET {LEADS}{lead} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: {caller.authorization}\r\n"
    (answer,) = responses(api.exchange(start.encode() + header + b"\r\n\r\n"))
    assert_sound(answer)
    assert answer.status == status
    assert re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", answer.headers["x-request-id"])


def test_an_upgrade_split_at_every_byte(api: Target, caller: Caller) -> None:
    upgrade = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    for place in range(1, len(upgrade)):
        with api.connect() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(upgrade[:place])
            connection.sendall(upgrade[place:])
            assert [answer.status for answer in responses(read_all(connection))] == [200]


methods = st.sampled_from([b"GET", b"GET", b"GET", b"POST", b"OPTIONS", b"PUT", b"TRACE"]) | st.binary(max_size=6)
versions = st.sampled_from([*[b"HTTP/1.1"] * 6, b"HTTP/1.0", b"HTTP/2.0", b""])
NAMES = (
    b"Host Authorization If-None-Match X-Request-Id Origin Connection Content-Length Transfer-Encoding Upgrade Expect"
)
names_of_headers = st.sampled_from([*NAMES.split(), b"Content-Length ", b"A\x00", b""])
VALUES = b"KEY KEY * close keep-alive Upgrade h2c 0 5 -1 chunked 100-continue \xff\xfe \xc3\x28"
values_of_headers = st.sampled_from([*VALUES.split(), b'W/"' + b"0" * 24 + b'"', b"a\r\n b", b"x" * 5000]) | st.binary(
    max_size=20
)
HOSTS: list[list[tuple[bytes, bytes]]] = [*[[(b"Host", b"x")]] * 4, []]
ends = st.sampled_from([*[b"\r\n\r\n"] * 8, b"\n\n", b"\r\r", b"\r\n", b""])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    target = draw(st.sampled_from([b"LEAD", b"LEAD", b"/healthz", b"*", b"http://x/readyz"]) | st.binary(max_size=12))
    line = draw(methods) + b" " + target + b" " + draw(versions)
    headers = [
        *draw(st.sampled_from(HOSTS)),
        *draw(st.lists(st.tuples(names_of_headers, values_of_headers), max_size=5)),
    ]
    return b"\r\n".join([line, *(name + b": " + value for name, value in headers)]) + draw(ends)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Several requests in sequence, with some bytes replaced, cut into pieces."""
    sent = b"".join(draw(st.lists(requests() | st.just(REQUEST), min_size=1, max_size=4)))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(sent)))
        sent = sent[:place] + draw(st.binary(max_size=4)) + sent[place + draw(st.integers(0, 4)) :]
    cuts = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=3)))
    return [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]


def test_any_stream_of_bytes(api: Target, caller: Caller, lead: str) -> None:
    path, authorization = (LEADS + lead).encode(), caller.authorization.encode()

    @settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
    @given(streams())
    def fuzz(pieces: list[bytes]) -> None:
        assume(b"HEAD" not in b"".join(pieces))  # responses to HEAD cannot be separated without knowing the requests
        with api.connect() as connection:
            try:
                for piece in pieces:
                    connection.sendall(piece.replace(b"LEAD", path).replace(b"KEY", authorization))
                connection.shutdown(socket.SHUT_WR)
                answers = responses(read_all(connection))
            except TimeoutError:
                raise  # neither a response nor a close
            except OSError:
                return  # closed while this client was still sending, after `Connection: close`
        for answer in answers:
            assert_sound(answer)

    fuzz()
    assert api.get(LEADS + lead, key=caller.key).status == 200
