"""Clients that send without end or never read: they take neither memory nor the time of other clients."""

from contextlib import suppress

import psutil
import pytest

from tests.harness.hostile import Target
from tests.harness.records import Caller
from tests.harness.stopwatch import Stopwatch


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
