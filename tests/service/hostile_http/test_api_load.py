"""Clients that hold connections, send without end, or are gone: they keep nobody out, take neither memory nor time of
others, and leave nothing behind."""

import gc
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType, ModuleType

import psutil
import pytest

from api.edge import Edge
from schemas import api_keys
from tests.harness.api_server import HEALTH, LEADS, get
from tests.harness.hostile import Target, target
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService
from tests.harness.waiting import wait_until

MOST = 20


class Crowded(Edge):
    max_connections = MOST


@pytest.fixture
def crowded(redis_server: RedisService) -> Iterator[Target]:
    with target(redis_server, edge=Crowded) as api:
        yield api


def answer(connection: socket.socket) -> bytes:
    connection.sendall(HEALTH)
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
        pytest.param(HEALTH, id="that sent a request"),
    ],
)
def test_clients_that_hold_connections_keep_nobody_out(crowded: Target, sent: bytes) -> None:
    with ExitStack() as stack:
        holders = [stack.enter_context(crowded.connect()) for _ in range(MOST - 1)]
        for holder in holders:
            holder.sendall(sent)
            if sent == HEALTH:
                assert holder.recv(65536).startswith(b"HTTP/1.1 200")
        busy = stack.enter_context(crowded.connect())
        assert answer(busy).startswith(b"HTTP/1.1 200")
        late = stack.enter_context(crowded.connect())
        assert answer(late).startswith(b"HTTP/1.1 200")
        wait_until(lambda: any(is_closed(holder) for holder in holders), "one that has waited longest is closed")
        assert answer(busy).startswith(b"HTTP/1.1 200"), "the last ones that were used stay open"
        assert answer(late).startswith(b"HTTP/1.1 200")
    assert crowded.log.severe == []


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
    """As much is sent as is taken. After each piece, somebody else is served."""
    before = psutil.Process().memory_info().rss
    with api.connect() as connection:
        connection.sendall(head)
        connection.setblocking(False)
        for _ in range(200):
            with suppress(BlockingIOError, ConnectionError):
                connection.send(piece)
            with suppress(BlockingIOError, ConnectionError):
                connection.recv((1 << 20) if read else 0)
            assert api.get("/healthz").status == 200
    assert psutil.Process().memory_info().rss - before < 30_000_000


CONNECTIONS = 100
UNKNOWN_KEY = get(LEADS + "x", api_keys.mint("2b9f4d8e-6c3a-4e51-b7d0-9a8c1f2e3d4b"))


def reset(connection: socket.socket) -> None:
    """Closes it with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def connections() -> int:
    return sum(isinstance(each, Edge) for each in gc.get_objects())


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        pytest.param(b"", b"", id="nothing was sent"),
        pytest.param(HEALTH[:-2], b"", id="an unfinished head"),
        pytest.param(HEALTH, b"HTTP/1.1 200 ", id="an answer without a key"),
        pytest.param(HEALTH + HEALTH[:20], b"HTTP/1.1 200 ", id="an answer, and the beginning of a head"),
        pytest.param(UNKNOWN_KEY, b"HTTP/1.1 401 ", id="an answer to an unknown key"),
        pytest.param(b"nonsense\r\n\r\n", b"HTTP/1.1 400 ", id="a refusal"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", b"HTTP/1.1 404 ", id="a body to come"),
    ],
)
def test_a_connection_that_is_reset_is_gone_at_once(api: Target, records: Records, sent: bytes, answer: bytes) -> None:
    """It is freed when it is lost: nothing waits for a timer or for a garbage collection."""
    records.serve()
    wait_until(lambda: gc.collect() >= 0 and connections() == 0, "connections of other tests are gone")
    with without_garbage_collection():
        with ExitStack() as stack:
            opened = [stack.enter_context(api.connect()) for _ in range(CONNECTIONS)]
            for connection in opened:
                connection.sendall(sent)
                assert connection.recv(len(answer)) == answer
            # Whoever got an answer was accepted; the API may have closed that connection already.
            wait_until(lambda: answer or connections() == CONNECTIONS, "all connections are accepted")
            for connection in opened:
                reset(connection)
        wait_until(lambda: connections() == 0, "the connections are freed", 20)


def texts(longer_than: int) -> Iterator[bytes | str]:
    """Every longer text in this process that an object refers to."""
    seen: set[int] = set()
    rest = [each for each in gc.get_objects() if not isinstance(each, (FrameType, ModuleType))]
    rest += [module.__dict__ for module in gc.get_objects() if isinstance(module, ModuleType)]
    while rest:
        each = rest.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if not isinstance(each, (bytes, bytearray, str)):
            rest.extend(gc.get_referents(each))
        elif len(each) > longer_than:
            yield bytes(each) if isinstance(each, bytearray) else each


def test_no_key_is_left_in_memory(api: Target, records: Records) -> None:
    """Neither in a cache nor on an idle connection; whether it was valid, revoked or unknown."""
    hidden = []  # the random parts, backwards: this test must not be what it finds
    with ExitStack() as stack:
        for kind, status in (("valid", 400), ("revoked", 401), ("unknown", 401)):
            owner = records.caller().organization_id
            key = api_keys.mint(owner)
            hidden.append(key[30:60][::-1])
            if kind != "unknown":
                records.key(key, owner)
            if kind == "revoked":
                records.revoke(key)
            connection = stack.enter_context(api.connect())
            for _ in range(2):
                connection.sendall(get(LEADS + "x", key))
                assert connection.recv(65536).startswith(b"HTTP/1.1 %d " % status)
        key = ""
        api.log.lines.clear()
        wait_until(lambda: gc.collect() >= 0 and not found(hidden), "the keys are gone", 10)


def found(hidden: list[str]) -> list[str]:
    needles = [needle[::-1] for needle in hidden]
    longer = (it.decode("latin-1") if isinstance(it, bytes) else it for it in texts(len(needles[0])))
    return [text[:20] for text in longer for needle in needles if needle in text]
