"""The misbehaving proxy holds back the requests that it is told to, and no others."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from tests.harness.faulty_proxy import Faults, FaultyProxy, faulty_proxy
from tests.harness.waiting import PATIENCE_SECONDS, eventually


@pytest.fixture
def proxy() -> Iterator[FaultyProxy]:
    """In front of a server that sends back what it gets."""

    def echo(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while piece := connection.recv(65536):
                connection.sendall(piece)

    def accept() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            threads.append(threading.Thread(target=echo, args=(connection,)))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = [threading.Thread(target=accept)]
        threads[0].start()
        with faulty_proxy(listener.getsockname()[1]) as proxy:
            yield proxy
        for thread in threads:
            thread.join()


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
