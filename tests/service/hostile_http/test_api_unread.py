"""Clients that do not read their responses: what the kernel and the worker hold for them is limited, in bytes and in
seconds, also after their connections are closed. Clients that read are not affected."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import ClassVar

import pytest

from api.edge import RECEIVE_BUFFER, SEND_BUFFER, Edge, Unread
from tests.harness.api_server import HEALTH, LEADS, get, in_kernel, read_all, responses
from tests.harness.hostile import Target, target
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService
from tests.harness.waiting import wait_until

LARGE = 970_000
SMALL = 20_000
"""More than fits into the receive buffer of a client with little room, and less than the kernel takes for it."""
LITTLE = 1
"""The kernel makes it the least that there is."""
MOST = 20
BUDGET = 4_500_000
"""Room for four large ones."""


class Watched(Edge):
    """`opened` are the connections that are not lost, in the order of their beginning."""

    max_connections = MOST
    unread = Unread(BUDGET)
    stalled_seconds = 0.3
    opened: ClassVar[list["Watched"]] = []

    def connection_made(self, transport) -> None:  # type: ignore[no-untyped-def]
        self.opened.append(self)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.opened.remove(self)
        super().connection_lost(exc)


class Patient(Watched):
    """What does not end here by a limit of bytes does not end before the test."""

    stalled_seconds = 600


@pytest.fixture
def impatient(redis_server: RedisService) -> Iterator[Target]:
    with target(redis_server, edge=Watched) as api:
        yield api


@pytest.fixture
def api(redis_server: RedisService) -> Iterator[Target]:
    with target(redis_server, edge=Patient) as api:
        yield api


def lead_of(records: Records, caller: Caller, size: int) -> bytes:
    """Returns the beginning of a request for a lead of this size."""
    return get(LEADS + records.lead(caller.organization_id, {"name": "x" * size}), caller.key).removesuffix(b"\r\n")


def ask(stack: ExitStack, api: Target, sent: bytes, room: int = 1 << 15) -> socket.socket:
    """Send this over a new connection whose receive buffer has `room`, and read nothing but the beginning of the first
    response. With little room, TCP would take minutes for a large one.
    """
    connection = stack.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    connection.connect(("127.0.0.1", api.port))
    connection.sendall(sent)
    assert connection.recv(15) == b"HTTP/1.1 200 OK"
    return connection


def kept(api: Target) -> list[int]:
    """Returns the bytes that the kernel holds for each client that has not taken all, also of closed connections."""
    return [size for size, _ in in_kernel(api.port) if size > 1]


def is_reset(connection: socket.socket) -> bool:
    try:
        while connection.recv(1 << 20):
            pass
    except ConnectionResetError:
        return True
    return False


def read_one(connection: socket.socket, size: int) -> int:
    """Returns how many bytes were read until there were at least `size`, or until the end."""
    received = 0
    while received < size and (piece := connection.recv(1 << 16)):
        received += len(piece)
    return received


def test_every_byte_that_the_kernel_does_not_take_is_counted(api: Target, records: Records) -> None:
    """Also if they are fewer than those from which on a transport usually waits, which are 64 KiB."""
    with ExitStack() as stack:
        ask(stack, api, lead_of(records, records.caller(), SEND_BUFFER * 3 // 4) + b"\r\n", LITTLE)
        (edge,) = Watched.opened
        wait_until(lambda: edge._writing_paused, "the response is written")
        waiting = edge._transport.get_write_buffer_size()
        assert waiting > 0
        assert edge.unread.total == waiting + SEND_BUFFER


def test_what_the_kernel_takes_is_limited_for_each_connection(api: Target) -> None:
    with api.connect():
        wait_until(lambda: Watched.opened, "the connection is accepted")
        accepted = Watched.opened[0]._transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == SEND_BUFFER
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == RECEIVE_BUFFER
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * Edge.stalled_seconds


def test_a_pipelined_request_waits_until_the_response_before_it_is_read(api: Target, records: Records) -> None:
    with ExitStack() as stack:
        request = lead_of(records, records.caller(), LARGE) + b"\r\n"
        stack.enter_context(api.connect())
        wait_until(lambda: Watched.opened, "the connection is accepted")
        routes = Watched.opened[0]._worker.counters.routes

        def answered() -> int:
            return sum(sum(route.statuses.values()) for route in routes.values())

        before = answered()
        connection = ask(stack, api, request + HEALTH + request[:-2] + b"Connection: close\r\n\r\n")
        wait_until(lambda: answered() > before, "the first response is written")
        assert api.get("/healthz").status == 200
        assert answered() == before + 2, "no other one was answered"
        answers = responses(b"HTTP/1.1 200 OK" + read_all(connection))
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert [len(answer.body) > LARGE for answer in answers] == [True, False, True]


def test_an_organization_that_reads_nothing_harms_no_other(api: Target, records: Records) -> None:
    with ExitStack() as stack:
        greedy, modest = records.caller(), records.caller()
        request = lead_of(records, modest, LARGE) + b"\r\n"
        slow = ask(stack, api, request)  # it waits longest, but its organization holds little
        greedy_request = lead_of(records, greedy, LARGE) + b"\r\n"
        holders = []
        for _ in range(10):
            holders.append(ask(stack, api, greedy_request))
            assert Watched.unread.total <= BUDGET
            assert len(responses(api.exchange(HEALTH[:-2] + b"Connection: close\r\n\r\n"))) == 1
        wait_until(lambda: len(Watched.opened) == 4, "only as many stay as there is room for")
        assert read_one(slow, LARGE) >= LARGE
        assert [is_reset(holder) for holder in holders[:7]] == [True] * 7
        assert [read_one(holder, LARGE) >= LARGE for holder in holders[7:]] == [True] * 3
        wait_until(lambda: Watched.unread.total == 0, "everything was taken")
    assert api.log.severe == []


@pytest.mark.parametrize("size", [pytest.param(SMALL, id="the kernel holds it"), pytest.param(LARGE, id="a large one")])
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(b"Connection: close\r\n\r\n", id="the last response"),
        pytest.param(b"\r\nnonsense\r\n\r\n", id="a refusal"),
        pytest.param(b"\r\n", id="the client has closed its side"),
    ],
)
def test_a_closing_connection_is_not_held_open_by_a_client_that_does_not_read(
    impatient: Target, records: Records, size: int, end: bytes
) -> None:
    with ExitStack() as stack:
        connection = ask(stack, impatient, lead_of(records, records.caller(), size) + end, LITTLE)
        if end == b"\r\n":
            connection.shutdown(socket.SHUT_WR)
        wait_until(lambda: not Watched.opened, "the connection is closed")
        wait_until(lambda: not kept(impatient), "the kernel has forgotten the bytes")
        assert Watched.unread.total == 0
        assert is_reset(connection)


def test_a_client_that_reads_a_little_is_disconnected(impatient: Target, records: Records) -> None:
    """What it takes now and then is a sign of life for the kernel, which would wait for the rest without end."""
    with ExitStack() as stack:
        connection = ask(stack, impatient, lead_of(records, records.caller(), LARGE) + b"\r\n", LITTLE)
        taken = 0

        def closed() -> bool:
            nonlocal taken
            with suppress(ConnectionResetError):
                taken += len(connection.recv(1000))
            return not Watched.opened

        wait_until(closed, "the connection is closed")
        assert taken < LARGE // 2


def test_a_crowd_that_does_not_read_leaves_nothing_in_the_kernel(api: Target, records: Records) -> None:
    """A connection that is closed for another one does not count any more, so nothing may be held for it."""
    with ExitStack() as stack:
        request = lead_of(records, records.caller(), SMALL)
        for number in range(2 * MOST):
            ask(stack, api, request + (b"Connection: close\r\n\r\n" if number % 2 else b"\r\n"), LITTLE)
            wait_until(lambda: len(kept(api)) <= MOST, "no more connections than that have bytes in the kernel")
        assert kept(api)
