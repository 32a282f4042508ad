"""The server of the metrics port, over real sockets."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import orjson
import pytest
from prometheus_client import CollectorRegistry, Counter

from devstack.ports import free_port
from runtime.metrics_port import HealthAnswer, MetricsServer, listen, responds
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.heavy

MAX_CONNECTIONS = 16


class Port:
    """A running server. `health` is what it says of itself."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        Counter("scraped", "Something that is counted", registry=registry).inc(7)
        self.health = self.live = HealthAnswer(True, {"status": "ok"})
        self.number = free_port()
        self.server = MetricsServer(
            "127.0.0.1",
            self.number,
            registry,
            lambda: self.health,
            live=lambda: self.live,
            max_connections=MAX_CONNECTIONS,
        )

    def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.number, timeout=PATIENCE_SECONDS)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.number), timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def port() -> Iterator[Port]:
    port = Port()
    yield port
    port.server.close()


def is_closed(connection: socket.socket) -> bool:
    """Returns whether the server closes the connection without a response."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


BAD = HealthAnswer(False, {"status": "unhealthy", "problems": ["Redis is away"]})


def test_health_and_life_are_told_apart(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is alive although it does not do its work."""
    for of, found in (("health", (503, 200)), ("live", (503, 503))):
        monkeypatch.setattr(port, of, BAD)
        answered, headers, body = port.get("/healthz")
        assert orjson.loads(body) == BAD.body
        assert (headers["Content-Type"], headers["Content-Length"]) == ("application/json", str(len(body)))
        assert (answered, port.get("/livez")[0]) == found


@pytest.mark.parametrize("path", ["/metrics", "/", "/anything"])
def test_any_path_of_metrics_returns_the_registry(port: Port, path: str) -> None:
    status, headers, body = port.get(path)
    assert (status, headers["Content-Type"].partition(";")[0]) == (200, "text/plain")
    assert b"scraped_total 7.0\n" in body


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"POST /metrics HTTP/1.1", b"405", id="another method"),
        pytest.param(b"GET /metrics HTTP/1.x", b"4", id="no version"),
        pytest.param(b"GET", b"4", id="no path"),
        pytest.param(b"POST /metrics", b"4", id="HTTP/0.9"),
        pytest.param(b"GET /" + b"a" * 70_000 + b" HTTP/1.1", b"4", id="a long path"),
    ],
)
def test_what_cannot_be_read_is_answered_with_4xx(port: Port, sent: bytes, status: bytes) -> None:
    with port.connect() as connection:
        with suppress(ConnectionError):  # it answers and closes the connection as soon as a path is too long
            connection.sendall(sent + b"\r\n\r\n")
        assert connection.recv(12).startswith(b"HTTP/1.0 " + status)


@pytest.mark.parametrize("sent", [b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"])
def test_any_number_of_idle_connections_keeps_nobody_out(port: Port, sent: bytes) -> None:
    """A health check that is not answered restarts the container. The oldest connections are closed."""
    with ExitStack() as idle:
        connections = [idle.enter_context(port.connect()) for _ in range(3 * MAX_CONNECTIONS)]
        for connection in connections:
            with suppress(ConnectionError):  # it was closed already
                connection.sendall(sent)
        assert port.get("/healthz")[0] == port.get("/metrics")[0] == 200
        assert is_closed(connections[0])


def test_every_address_is_of_ipv4_and_of_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(MetricsServer("::", 0, CollectorRegistry(), responds)) as server:
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, server.server_port), timeout=PATIENCE_SECONDS) as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
                assert connection.recv(12) == b"HTTP/1.0 200"
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listen("::", 0) as listener:
        assert listener.family == socket.AF_INET, "where the system has no IPv6"


def test_closed_server_refuses_connections() -> None:
    port = Port()
    assert port.get("/healthz")[0] == 200
    port.server.close()
    with pytest.raises(ConnectionRefusedError):
        port.get("/healthz")
