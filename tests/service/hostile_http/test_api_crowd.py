"""A worker has a limited number of open connections. Clients that hold many of them keep no other client out."""

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from api.edge import Edge
from tests.harness.hostile import Target, target
from tests.harness.services import RedisService
from tests.harness.waiting import wait_until

MOST = 20
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


class Crowded(Edge):
    max_connections = MOST


@pytest.fixture
def crowded(redis_server: RedisService) -> Iterator[Target]:
    with target(redis_server, edge=Crowded) as api:
        yield api


def answer(connection: socket.socket) -> bytes:
    connection.sendall(REQUEST)
    return connection.recv(65536)


def is_closed(connection: socket.socket) -> bool:
    """Returns at once."""
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="that send nothing"),
        pytest.param(b"GET / HT", id="that send a part of a head"),
        pytest.param(REQUEST, id="that sent a request"),
    ],
)
def test_clients_that_hold_connections_keep_nobody_out(crowded: Target, sent: bytes) -> None:
    with ExitStack() as stack:
        holders = [stack.enter_context(crowded.connect()) for _ in range(MOST - 1)]
        for holder in holders:
            holder.sendall(sent)
            if sent == REQUEST:
                assert holder.recv(65536).startswith(b"HTTP/1.1 200")
        busy = stack.enter_context(crowded.connect())
        assert answer(busy).startswith(b"HTTP/1.1 200")
        late = stack.enter_context(crowded.connect())
        assert answer(late).startswith(b"HTTP/1.1 200")
        wait_until(lambda: any(is_closed(holder) for holder in holders), "one that has waited longest is closed")
        assert answer(busy).startswith(b"HTTP/1.1 200"), "the last ones that were used stay open"
        assert answer(late).startswith(b"HTTP/1.1 200")
    assert crowded.log.severe == []
