"""The edge on raw sockets: input that is refused before it becomes a request."""

import select
import socket
from collections.abc import Iterator
from typing import ClassVar
from uuid import uuid4
from weakref import ref

import pytest

from api.app import Api
from api.edge import MAX_HEAD_BYTES, Edge
from schemas import api_keys
from tests.harness.api_server import (
    HEALTH,
    LEADS,
    ApiServer,
    Unhurried,
    get,
    patient,
    read_all,
    responses,
    running_api,
)
from tests.harness.hostile import answer_to
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService
from tests.harness.waiting import wait_until

A_KEY = api_keys.mint(str(uuid4()))
BREW = HEALTH.replace(b"GET", b"BREW")
CLOSING_HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
PADDED = HEALTH[:-2] + b"X-Pad: " + b"p" * 6000 + b"\r\n\r\n"
UPGRADE = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
UNKNOWN = get(LEADS + str(uuid4()), A_KEY)


class Hurried(Unhurried):
    """It cuts off a head soon after its first byte. A client has plenty of time until then."""

    head_seconds = 0.3

    def connection_made(self, transport) -> None:  # type: ignore[no-untyped-def]
        super().connection_made(transport)
        self._waits_until += Unhurried.head_seconds


class Brief(Unhurried):
    """It closes an idle connection soon. `last` is the last connection."""

    idle_seconds = 1
    last: ClassVar[ref[Edge]]

    def connection_made(self, transport) -> None:  # type: ignore[no-untyped-def]
        Brief.last = ref(self)
        super().connection_made(transport)


@pytest.fixture(scope="module")
def hurried_api(redis_server: RedisService) -> Iterator[ApiServer]:
    with running_api(patient(redis_server.url), edge=Hurried) as api:
        yield api


def head_of(size: int) -> bytes:
    start = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: mine\r\nX-Pad: "
    return start + b"p" * (size - len(start) - 4) + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        pytest.param(head_of(MAX_HEAD_BYTES), 200, None, id="a head of 16 KB"),
        pytest.param(head_of(MAX_HEAD_BYTES + 1), 431, "request_header_fields_too_large", id="one byte more"),
        pytest.param(head_of(1_000_000), 431, "request_header_fields_too_large", id="a megabyte"),
        pytest.param(
            b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            431,
            "request_header_fields_too_large",
            id="a long path",
        ),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
            431,
            "request_header_fields_too_large",
            id="10,000 headers",
        ),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: x\r\nA:" + b" " * 20_000 + b"b\r\n\r\n",
            431,
            "request_header_fields_too_large",
            id="spaces only",
        ),
        pytest.param(b"nonsense\r\n\r\n", 400, "bad_request", id="not HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", 400, "bad_request", id="TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad_request", id="HTTP/2"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n", 400, "bad_request", id="a space in a header name"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nA: b\x00\r\n\r\n", 400, "bad_request", id="NUL in a header"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n folded\r\n\r\n", 400, "bad_request", id="a folded header"),
        pytest.param(b"GET / HTTP/1.1\nHost: x\n\n", 400, "bad_request", id="bare line feeds"),
        pytest.param(b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request", id="a path that is not ASCII"),
        pytest.param(b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404, "not_found", id="no path"),
        pytest.param(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request", id="CONNECT"),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nabc",
            400,
            "bad_request",
            id="two lengths",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "bad_request",
            id="length and chunks",
        ),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 400, "body_not_allowed", id="a body"
        ),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
            400,
            "body_not_allowed",
            id="a body that is announced",
        ),
        pytest.param(
            b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            200,
            None,
            id="an empty body",
        ),
    ],
)
def test_bad_request_gets_one_response_in_json(api: ApiServer, sent: bytes, status: int, code: str | None) -> None:
    answer = answer_to(api, sent)
    assert (answer.status, answer.json.get("error"), answer.headers["connection"]) == (status, code, "close")


def test_the_callers_request_id_is_kept(api: ApiServer) -> None:
    own = b"X-Request-Id: mine\r\nOrigin: https://x\r\n"
    answer = answer_to(api, b"GET / HTTP/1.1\r\nHost: x\r\n" + own + b"Content-Length: 5\r\n\r\nhello")
    assert answer.headers["x-request-id"] == "mine"
    assert answer.headers["access-control-allow-origin"] == "*", "a tool in a browser can read why it is refused"


def test_refused_head_has_no_body(api: ApiServer) -> None:
    received = api.exchange(b"HEAD / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        pytest.param(b"0\r\n\r\n", 200, None, id="empty"),
        pytest.param(b"000;a=b\r\nX-Trailer: x\r\n\r\n", 200, None, id="with an extension and a trailer"),
        pytest.param(b"0\r\n\r\n" + HEALTH * 3, 200, None, id="more requests behind it"),
        pytest.param(b"5\r\nhello\r\n0\r\n\r\n", 400, "body_not_allowed", id="a chunk"),
        pytest.param(b"5", 400, "body_not_allowed", id="the size of a chunk"),
        pytest.param(b"00a", 400, "body_not_allowed", id="a size with zeros"),
        pytest.param(b"x\r\n", 400, "bad_request", id="not a size"),
        pytest.param(b"\r\n", 400, "bad_request", id="no size"),
        pytest.param(b"0;a\rb\r\n\r\n", 400, "bad_request", id="a line end in an extension"),
        pytest.param(
            b"0;" + b"a" * MAX_HEAD_BYTES, 431, "request_header_fields_too_large", id="an extension that does not end"
        ),
    ],
)
@pytest.mark.parametrize("size", [pytest.param(1, id="byte by byte"), 1_000_000])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_get_in_chunks_is_answered_if_its_body_is_empty(
    api: ApiServer, method: str, body: bytes, status: int, code: str | None, size: int
) -> None:
    """HAProxy, and nginx without buffering, make this of an HTTP/2 request that ends with an empty DATA frame."""
    head = f"{method} /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    received = api.exchange(head + body, size)
    assert received.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nconnection: close\r\n" in received
    if method == "GET":
        [answer] = responses(received)
        assert answer.json.get("error") == code


def test_get_in_chunks_that_waits_for_100_is_refused_at_once(api: ApiServer) -> None:
    head = b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    assert answer_to(api, head).error == "body_not_allowed"


def test_get_whose_first_chunk_never_comes_is_refused_in_time(hurried_api: ApiServer) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert answer_to(hurried_api, head).status == 408


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        pytest.param(HEALTH * 5 + CLOSING_HEALTH, [200] * 6, id="a pipeline"),
        pytest.param(PADDED * 5 + CLOSING_HEALTH, [200] * 6, id="the size of each head is counted by itself"),
        pytest.param(HEALTH * 20 + head_of(MAX_HEAD_BYTES), [200] * 21, id="a large head is counted by itself"),
        pytest.param(HEALTH * 20 + head_of(MAX_HEAD_BYTES + 1), [200] * 20 + [431], id="a larger one"),
        pytest.param(UNKNOWN * 3 + b"nonsense\r\n\r\n", [404] * 3 + [400], id="a refusal waits for earlier responses"),
        pytest.param(UPGRADE + CLOSING_HEALTH, [200, 200], id="an upgrade is not followed"),
        pytest.param((HEALTH + BREW) * 2 + CLOSING_HEALTH, [200, 405] * 2 + [200], id="a method that does not exist"),
    ],
)
@pytest.mark.parametrize("size", [pytest.param(1, id="byte by byte"), 7, 16_000, 1_000_000])
def test_each_request_of_a_pipeline_is_answered(
    api: ApiServer, records: Records, sent: bytes, statuses: list[int], size: int
) -> None:
    received = api.exchange(sent.replace(A_KEY.encode(), records.caller().key.encode()), size)
    assert [answer.status for answer in responses(received)] == statuses


def test_responses_reach_a_client_that_has_closed_its_side(api: ApiServer, caller: Caller) -> None:
    with api.connect() as connection:
        connection.sendall(get(LEADS + str(uuid4()), caller.key) * 2)
        connection.shutdown(socket.SHUT_WR)
        assert [answer.status for answer in responses(read_all(connection))] == [404, 404]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET /healthz HTT", id="in the request line"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\n", id="in the headers"),
        pytest.param(HEALTH + b"GET /he", id="in a second request"),
    ],
)
def test_unfinished_head_is_cut_off(hurried_api: ApiServer, sent: bytes) -> None:
    answers = responses(hurried_api.exchange(sent))
    assert (answers[-1].status, answers[-1].error) == (408, "request_timeout")
    assert len(answers) == sent.count(b"\r\n\r\n") + 1


@pytest.mark.parametrize("sent", [pytest.param(b"", id="nothing"), pytest.param(b"\r\n", id="line feeds alone")])
def test_silent_connection_is_closed(hurried_api: ApiServer, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hurried, "connection_made", Edge.connection_made)
    assert hurried_api.exchange(sent) == b""


def test_idle_connection_is_closed(redis_server: RedisService) -> None:
    """With an end, not with a reset: the client has read everything."""
    with running_api(patient(redis_server.url), edge=Brief) as api:
        assert responses(api.exchange(HEALTH * 2))[1].status == 200
        with api.connect() as connection:
            connection.sendall(HEALTH[:20])
            wait_until(lambda: (edge := Brief.last()) and edge._head, "a part of a head has arrived")
            connection.sendall(HEALTH[20:])
            [answer] = responses(read_all(connection))
            assert answer.status == 200, "the time for its head has ended with the head"


def test_defect_outside_of_all_handlers_ends_the_connection(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Api, "__call__", broken)
    sent = HEALTH[:-2] + b"X-Request-Id: mine\r\nOrigin: https://tool.example\r\n\r\n"
    (answer,) = responses(api.exchange(sent * 2))
    told = {"connection": "close", "x-request-id": "mine", "access-control-allow-origin": "*"}
    assert (answer.status, answer.error, answer.json["request_id"]) == (500, "internal_error", "mine")
    assert answer.headers | told == answer.headers
    assert "a request failed because of a defect" in caplog.text


def test_drip_does_not_gain_time(hurried_api: ApiServer) -> None:
    """The time counts from the first byte of the head, not from the last one received."""
    with hurried_api.connect() as connection:
        connection.sendall(b"GET /")

        def drip_and_look() -> bool:
            connection.sendall(b"a")
            return bool(select.select([connection], [], [], 0.05)[0])

        wait_until(drip_and_look, "the drip is cut off")
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_whole_head_stops_the_clock(hurried_api: ApiServer) -> None:
    with hurried_api.connect() as connection:
        connection.sendall(HEALTH)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        hurried_api.exchange(HEALTH[:20])  # this one began later, and its time is over
        connection.sendall(HEALTH)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
