"""The fault proxy of chaos runs breaks what it says, and nothing else."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from tests.chaos.proxy import CALM, FaultProxy, Mood
from tests.harness.waiting import PATIENCE_SECONDS

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
def proxy(upstream: int) -> Iterator[FaultProxy]:
    with FaultProxy(upstream) as proxy:
        yield proxy


@pytest.fixture
def connection(proxy: FaultProxy) -> Iterator[socket.socket]:
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
    "mood",
    [
        pytest.param(CALM, id="calm"),
        pytest.param(Mood(slice=7), id="sliced"),
        pytest.param(Mood(latency=0.05), id="late"),
    ],
)
def test_every_byte_arrives_in_order(proxy: FaultProxy, connection: socket.socket, mood: Mood) -> None:
    proxy.mood = mood
    began = time.monotonic()
    assert echoed(connection, TEXT) == TEXT
    assert time.monotonic() - began >= 2 * mood.latency


def test_a_stall_keeps_the_connection_and_what_was_sent(proxy: FaultProxy, connection: socket.socket) -> None:
    proxy.mood = Mood(stalled=True)
    connection.sendall(b"later")
    connection.settimeout(0.2)
    with pytest.raises(TimeoutError):
        connection.recv(10)
    proxy.mood = CALM
    connection.settimeout(PATIENCE_SECONDS)
    assert connection.recv(10) == b"later"


def test_reset(proxy: FaultProxy, connection: socket.socket) -> None:
    proxy.reset()
    with suppress(ConnectionResetError):
        assert connection.recv(10) == b""
    with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS)) as again:
        assert echoed(again, TEXT) == TEXT


def test_refused(proxy: FaultProxy) -> None:
    proxy.mood = Mood(refusing=True)
    refused = socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS)
    with closing(refused), suppress(ConnectionResetError):
        assert refused.recv(10) == b""


def test_half_closed_the_server_still_speaks(proxy: FaultProxy, connection: socket.socket) -> None:
    proxy.half_close()
    assert connection.recv(10) == b"over"
