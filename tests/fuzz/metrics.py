"""Fuzzes the metrics port: `python -m tests.fuzz metrics --seconds 60 --seed 1`.

Clients send valid and invalid requests, in pieces, keep connections open without an end, or reset them. Health checks
are answered all the while, no answer is a 5xx (but 505 to another version of HTTP), and neither threads nor memory
grow.
"""

import http.client
import random
import socket
import struct
import threading
from contextlib import closing
from time import monotonic

import psutil
from prometheus_client import CollectorRegistry, Counter

from devstack.ports import free_port
from devstack.waiting import PATIENCE_SECONDS, wait_until
from leadview.metrics_port import MAX_CONNECTIONS, Health, MetricsServer

MOST_GROWTH_BYTES = 32_000_000
_MOST_OPEN = 3 * MAX_CONNECTIONS
_CHECK_EVERY = 20
_LINES = (
    b"GET /metrics HTTP/1.1",
    b"GET /healthz HTTP/1.0",
    b"HEAD /metrics HTTP/1.1",
    b"POST /metrics HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"CONNECT x:1 HTTP/1.1",
    b"GET http://x/metrics HTTP/1.1",
    b"GET /metrics?name[]=scraped_total HTTP/1.1",
    b"GET /metrics?name[]=%ff%00&name[]= HTTP/1.1",
    b"GET /%00%ff HTTP/1.1",
    b"GET /metrics HTTP/2.0",
    b"GET /metrics HTTP/9",
    b"GET /metrics HTTP/1.1.1",
    b"GET /metrics HTTP/-1.1",
    b"GET /metrics HTTP/" + b"9" * 5000 + b".1",
    b"GET /metrics",
    b"GET",
    b"POST /metrics",
    b"",
    b"\x16\x03\x01\x02\x00",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1",
)
_HEADERS = (
    b"Host: x",
    b"Accept: application/openmetrics-text",
    b"Accept: \xff\xfe;q=nan, */*;q=-1",
    b"Accept-Encoding: gzip",
    b"Content-Length: 5",
    b"Content-Length: x",
    b"Content-Type: \x00",
    b"Transfer-Encoding: chunked",
    b"Expect: 100-continue",
    b"Connection: keep-alive, Upgrade",
    b"no colon",
    b": no name",
    b" folded",
    b"A: " + b"b" * 70_000,
    b"\r\n".join([b"A: b"] * 150),
)


def fuzz(seed: int, seconds: float) -> str:
    """Returns a line that says what was done. Raises AssertionError, with what was sent."""
    chance, port, registry = random.Random(seed), free_port(), CollectorRegistry()
    Counter("scraped", "Something that is counted", registry=registry).inc(7)
    server = MetricsServer("127.0.0.1", port, registry, lambda: Health(True, {"status": "ok"}))
    threads, opened, sent = threading.active_count(), [], 0
    with closing(server):
        _check_health(port)
        before, until = psutil.Process().memory_info().rss, monotonic() + seconds
        while monotonic() < until:
            opened.append(_connect(port))
            sent += 1
            if _attack(chance, opened[-1], _request(chance)):
                opened.pop().close()
            if len(opened) > _MOST_OPEN:
                opened.pop(chance.randrange(len(opened))).close()
            if sent % _CHECK_EVERY == 0:
                _check_health(port)
                most = threads + 2 * MAX_CONNECTIONS
                assert threading.active_count() <= most, f"{threading.active_count()} threads"
        for connection in opened:
            connection.close()
        wait_until(lambda: threading.active_count() <= threads, "the threads of all connections have ended")
        growth = psutil.Process().memory_info().rss - before
        assert growth < MOST_GROWTH_BYTES, f"the process has grown by {growth} bytes"
        _check_health(port)
    return f"seed {seed}, {sent} connections, {max(growth, 0) / 1e6:.0f} MB more memory"


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)


def _check_health(port: int) -> None:
    for path in ("/healthz", "/metrics"):
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)) as connection:
            connection.request("GET", path)
            assert connection.getresponse().status == 200


def _request(chance: random.Random) -> bytes:
    lines = [chance.choice(_LINES), *chance.choices(_HEADERS, k=chance.randrange(4))]
    sent = chance.choice((b"\r\n", b"\r\n", b"\n")).join([*lines, b"", b""])
    for _ in range(chance.choice((0, 0, 1, 3))):
        place = chance.randrange(len(sent) + 1)
        sent = sent[:place] + chance.randbytes(chance.randrange(3)) + sent[place + chance.randrange(3) :]
    return sent


def _attack(chance: random.Random, connection: socket.socket, sent: bytes) -> bool:
    """Returns whether the connection is done. Otherwise it is left open."""
    end = chance.random()
    if end < 0.3:
        sent = sent[: chance.randrange(len(sent) + 1)]
    size = chance.choice((1 << 20, 4096, 100_000))
    try:
        for start in range(0, len(sent), size):
            connection.sendall(sent[start : start + size])
        if end < 0.3:
            return False
        if end < 0.4:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return True
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(13)
    except TimeoutError:
        raise AssertionError(f"neither a response nor a close: {sent[:500]!r}") from None
    except OSError:
        return True  # it was closed
    assert not answer or answer.startswith((b"HTTP/1.0 2", b"HTTP/1.0 4", b"HTTP/1.0 505")), (
        f"{answer!r} to {sent[:500]!r}"
    )
    return True
