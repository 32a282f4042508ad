"""The fault proxy breaks what it is told to, and nothing else."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from devstack.fault_proxy import Faults, FaultyProxy, faulty_proxy
from tests.harness.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.heavy

TEXT = bytes(range(256)) * 40


@pytest.fixture
def upstream() -> Iterator[int]:
    """A server that sends back what it gets, and at the end of it `over`."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def echo(connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(65536):
                    connection.sendall(piece)
                connection.sendall(b"over")
            except OSError:
                pass

    def accept() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    yield int(listener.getsockname()[1])
    ended.set()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.fixture
def proxy(upstream: int) -> Iterator[FaultyProxy]:
    with faulty_proxy(upstream) as proxy:
        yield proxy


@pytest.fixture
def connection(proxy: FaultyProxy) -> Iterator[socket.socket]:
    with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS)) as connection:
        assert echoed(connection, b"hello") == b"hello"
        yield connection


def echoed(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    received = b""
    while len(received) < len(text) and (piece := connection.recv(65536)):
        received += piece
    return received


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(Faults(), id="calm"),
        pytest.param(Faults(slice_bytes=7, both_ways=True), id="sliced"),
        pytest.param(Faults(delay_seconds=0.05, both_ways=True), id="late"),
    ],
)
def test_every_byte_arrives_in_order(proxy: FaultyProxy, connection: socket.socket, faults: Faults) -> None:
    proxy.faults = faults
    began = time.monotonic()
    assert echoed(connection, TEXT) == TEXT
    assert time.monotonic() - began >= 2 * faults.delay_seconds


def test_a_stall_keeps_the_connection_and_what_was_sent(proxy: FaultyProxy, connection: socket.socket) -> None:
    proxy.faults = Faults(stalled=True)
    connection.sendall(b"later")
    connection.settimeout(0.2)
    with pytest.raises(TimeoutError):
        connection.recv(10)
    proxy.faults = Faults()
    connection.settimeout(PATIENCE_SECONDS)
    assert connection.recv(10) == b"later"


def test_reset(proxy: FaultyProxy, connection: socket.socket) -> None:
    proxy.reset_all()
    with suppress(ConnectionResetError):
        assert connection.recv(10) == b""
    with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS)) as again:
        assert echoed(again, TEXT) == TEXT


def test_refused(proxy: FaultyProxy) -> None:
    proxy.faults = Faults(refusing=True)
    # The reset may arrive while the client still connects.
    with (
        suppress(ConnectionResetError),
        closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS)) as refused,
    ):
        assert refused.recv(10) == b""


def test_half_closed_the_server_still_speaks(proxy: FaultyProxy, connection: socket.socket) -> None:
    proxy.half_close()
    assert connection.recv(10) == b"over"


def connected(proxy: FaultyProxy) -> closing[socket.socket]:
    return closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS))


async def test_a_held_request_holds_up_its_own_connection_alone(proxy: FaultyProxy) -> None:
    proxy.faults = Faults(held=b"the lead")
    with connected(proxy) as one, connected(proxy) as other:
        one.sendall(b"before;")
        assert one.recv(7) == b"before;"
        one.sendall(b"write the ")
        assert one.recv(10) == b"write the "
        one.sendall(b"lead;")
        await eventually(lambda: proxy.holding == 1, "the request is held, although it came in two pieces")
        one.sendall(b"after;")
        other.sendall(b"write the key;")
        assert other.recv(100) == b"write the key;"
        assert proxy.holding == 1
        one.setblocking(False)
        with pytest.raises(BlockingIOError):
            one.recv(1)
        one.settimeout(PATIENCE_SECONDS)
        proxy.faults = Faults()
        received = b""
        while len(received) < 11:
            received += one.recv(100)
        assert received == b"lead;after;"
        assert proxy.holding == 0
