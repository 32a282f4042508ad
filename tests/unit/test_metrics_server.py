"""The server of the metrics port, over real sockets."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import orjson
import pytest
from prometheus_client import CollectorRegistry, Counter

from devstack.ports import free_port
from leadview.metrics_port import Health, MetricsServer, listen
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.heavy

MAX_CONNECTIONS = 16
UNFINISHED = [b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"]


class Port:
    """A running server. `health` is what it says of itself."""

    def __init__(self, connection_seconds: float = 60) -> None:
        registry = CollectorRegistry()
        Counter("scraped", "Something that is counted", registry=registry).inc(7)
        self.health = self.live = Health(True, {"status": "ok"})
        self.number = free_port()
        self.server = MetricsServer(
            "127.0.0.1",
            self.number,
            registry,
            lambda: self.health,
            live=lambda: self.live,
            max_connections=MAX_CONNECTIONS,
            connection_seconds=connection_seconds,
        )

    def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.number, timeout=5)) as connection:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.number), timeout=5)

    def is_served(self) -> bool:
        try:
            return self.get("/healthz")[0] == 200
        except (ConnectionError, http.client.HTTPException):
            return False


@pytest.fixture(scope="module")
def port() -> Iterator[Port]:
    port = Port()
    yield port
    port.server.close()


@pytest.fixture(scope="module")
def hurried_port() -> Iterator[Port]:
    port = Port(connection_seconds=0.1)
    yield port
    port.server.close()


@pytest.fixture
def fresh_port() -> Iterator[Port]:
    """No connection of another test is counted here."""
    port = Port()
    yield port
    port.server.close()


def is_closed(connection: socket.socket) -> bool:
    """Returns whether the server closes the connection without a response."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    ("health", "status"),
    [
        pytest.param(Health(True, {"status": "ok"}), 200, id="healthy"),
        pytest.param(Health(False, {"status": "unhealthy", "problems": ["x"]}), 503, id="unhealthy"),
    ],
)
def test_health(port: Port, health: Health, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "health", health)
    answered, headers, body = port.get("/healthz")
    assert (answered, orjson.loads(body)) == (status, health.body)
    assert headers["Content-Type"] == "application/json"
    assert headers["Content-Length"] == str(len(body))


@pytest.mark.parametrize("path", ["/metrics", "/", "/anything"])
def test_metrics(port: Port, path: str) -> None:
    status, headers, body = port.get(path)
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert b"scraped_total 7.0\n" in body


def test_other_methods(port: Port) -> None:
    assert port.get("/metrics", "POST")[0] == 405


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET /metrics HTTP/1.x", id="no version"),
        pytest.param(b"GET", id="no path"),
        pytest.param(b"POST /metrics", id="HTTP/0.9"),
        pytest.param(b"GET /" + b"a" * 70_000 + b" HTTP/1.1", id="a long path"),
    ],
)
def test_what_cannot_be_read_is_answered_with_4xx(port: Port, sent: bytes) -> None:
    with port.connect() as connection:
        connection.sendall(sent + b"\r\n\r\n")
        assert connection.recv(10) == b"HTTP/1.0 4"


@pytest.mark.parametrize("sent", UNFINISHED)
def test_idle_connections_do_not_delay_others(fresh_port: Port, sent: bytes) -> None:
    with ExitStack() as idle:
        for _ in range(MAX_CONNECTIONS // 2):
            idle.enter_context(fresh_port.connect()).sendall(sent)
        for _ in range(MAX_CONNECTIONS // 4):  # one that was answered may be counted a moment longer
            assert fresh_port.get("/metrics")[0] == 200


@pytest.mark.parametrize("sent", UNFINISHED)
def test_any_number_of_idle_connections_keeps_nobody_out(fresh_port: Port, sent: bytes) -> None:
    """A health check that is not answered restarts the container."""
    with ExitStack() as idle:
        for number in range(3 * MAX_CONNECTIONS):
            connection = idle.enter_context(fresh_port.connect())
            with suppress(ConnectionError):  # it was closed already
                connection.sendall(sent)
            if number % MAX_CONNECTIONS == MAX_CONNECTIONS - 1:
                assert fresh_port.get("/healthz")[0] == 200
                assert fresh_port.get("/metrics")[0] == 200


def test_idle_connections_are_limited(fresh_port: Port) -> None:
    """The oldest one is closed."""
    with ExitStack() as idle:
        connections = [idle.enter_context(fresh_port.connect()) for _ in range(MAX_CONNECTIONS + 1)]
        assert is_closed(connections[0])
    wait_until(fresh_port.is_served, "connections that were closed are no longer counted", 5)


@pytest.mark.parametrize("sent", UNFINISHED)
def test_slow_connections_are_closed(hurried_port: Port, sent: bytes) -> None:
    with ExitStack() as slow:
        connections = [slow.enter_context(hurried_port.connect()) for _ in range(MAX_CONNECTIONS)]
        for connection in connections:
            with suppress(ConnectionError):  # it was closed already
                connection.sendall(sent)
        assert all(map(is_closed, connections))
        wait_until(hurried_port.is_served, "the server has threads for others again", 5)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder, pytest.raises(OSError, match="in use"):
        MetricsServer("127.0.0.1", holder.getsockname()[1], CollectorRegistry(), lambda: Health(True, {}))


def test_every_address_is_of_ipv4_and_of_ipv6() -> None:
    with listen("::", 0) as listener:
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, listener.getsockname()[1]), timeout=5):
                accepted, _ = listener.accept()
                accepted.close()


def test_every_address_where_the_system_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listen("::", 0) as listener:
        assert listener.family == socket.AF_INET


def test_an_address_of_ipv6() -> None:
    server = MetricsServer("::1", 0, CollectorRegistry(), lambda: Health(True, {}))
    try:
        with closing(http.client.HTTPConnection("::1", server.server_port, timeout=5)) as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
    finally:
        server.close()


def test_alive_although_it_does_not_do_its_work(fresh_port: Port) -> None:
    fresh_port.health = Health(False, {"status": "unhealthy", "problems": ["Redis is away"]})
    assert fresh_port.get("/healthz")[0] == 503
    assert fresh_port.get("/livez")[0] == 200
    fresh_port.live = fresh_port.health
    assert fresh_port.get("/livez")[0] == 503


def test_close() -> None:
    port = Port()
    assert port.is_served()
    port.server.close()
    assert not port.is_served()
