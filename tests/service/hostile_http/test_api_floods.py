"""Clients that send without end or never read: they take neither memory nor the time of other clients."""

import socket
import struct
from contextlib import suppress

import psutil
import pytest

from api.edge import Edge
from tests.harness.api_server import LEADS
from tests.harness.hostile import Target, open_connections, target
from tests.harness.records import Caller
from tests.harness.services import RedisService
from tests.harness.waiting import Stopwatch, wait_until


def flood(api: Target, head: bytes, piece: bytes, seconds: float, *, read: bool) -> float:
    """Sends as much as is taken; answers how long a request of somebody else took at worst meanwhile, in seconds."""
    slowest = 0.0
    with api.connect() as connection, Stopwatch() as stopwatch:
        connection.sendall(head)
        connection.setblocking(False)
        while stopwatch.seconds < seconds:
            try:
                with suppress(BlockingIOError):
                    connection.send(piece)
                with suppress(BlockingIOError):
                    connection.recv((1 << 20) if read else 0)
            except ConnectionError:
                return slowest
            started = stopwatch.seconds
            assert api.get("/healthz").status == 200
            slowest = max(slowest, stopwatch.seconds - started)
    return slowest


@pytest.mark.parametrize(
    ("head", "piece", "read"),
    [
        pytest.param(b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20_000, True, id="pipelined requests"),
        pytest.param(b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20_000, False, id="whose answers are not read"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            b"A: b\r\n" * 50_000,
            True,
            id="trailers",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: ",
            b"b" * 300_000,
            True,
            id="a long trailer",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n", b"b" * 300_000, True, id="a long body"
        ),
    ],
)
def test_a_flood_takes_neither_memory_nor_the_time_of_others(
    api: Target, caller: Caller, head: bytes, piece: bytes, *, read: bool
) -> None:
    before = psutil.Process().memory_info().rss
    slowest = flood(api, head, piece, 0.6, read=read)
    assert psutil.Process().memory_info().rss - before < 30_000_000
    assert slowest < 1


class Impatient(Edge):
    stalled_seconds = 0.3


def test_a_client_that_reads_no_responses_is_disconnected(redis_server: RedisService) -> None:
    with target(redis_server, edge=Impatient) as api, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", api.port))
        connection.setblocking(False)
        sent = 0
        openapi = b"GET /api/v1/ext/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
        while sent < 3_000_000:
            try:
                sent += connection.send(openapi)
            except BlockingIOError:
                break
        wait_until(lambda: open_connections(api) == 0, "the server has closed it")
        assert api.log.severe == []


def test_pipelined_requests_of_a_client_that_is_gone(api: Target, caller: Caller, lead: str) -> None:
    request = f"GET {LEADS}{lead} HTTP/1.1\r\nHost: x\r\nAuthorization: {caller.authorization}\r\n\r\n".encode()
    for _ in range(50):
        with api.connect() as connection:
            connection.sendall(request * 200)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert (
        api.get(LEADS + lead, key=caller.key).status == 200
    )  # and the fixture `caller` checks that no error was logged
