"""What a client leaves behind in the API: nothing when its connection is lost, and no key while it is open."""

import gc
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, ModuleType

import pytest

from api.edge import Edge
from schemas import api_keys
from tests.harness.api_server import LEADS
from tests.harness.hostile import Target
from tests.harness.records import Records
from tests.harness.waiting import wait_until

CONNECTIONS = 100
A_KEY = api_keys.mint("2b9f4d8e-6c3a-4e51-b7d0-9a8c1f2e3d4b")
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
UNKNOWN_KEY = f"GET {LEADS}x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {A_KEY}\r\n\r\n".encode()


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


def ask_once(api: Target, connection: socket.socket, key: str, status: int) -> None:
    connection.sendall(f"GET {LEADS}x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
    assert connection.recv(65536).startswith(b"HTTP/1.1 %d " % status)


def heap() -> Iterator[bytes | str]:
    """Every text in this process that an object refers to."""
    seen: set[int] = set()
    rest = [each for each in gc.get_objects() if not isinstance(each, (FrameType, ModuleType))]
    rest += [module.__dict__ for module in gc.get_objects() if isinstance(module, ModuleType)]
    while rest:
        each = rest.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, (bytes, bytearray, str)):
            yield bytes(each) if isinstance(each, bytearray) else each
        else:
            rest.extend(gc.get_referents(each))


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
            ask_once(api, connection, key, status)
            ask_once(api, connection, key, status)
        key = ""
        api.log.lines.clear()
        wait_until(lambda: gc.collect() >= 0 and not found(hidden), "the keys are gone", 10)


def found(hidden: list[str]) -> list[str]:
    texts = [each.decode("latin-1") if isinstance(each, bytes) else each for each in heap()]
    return [text[:20] for text in texts for needle in hidden if needle[::-1] in text and len(text) > len(needle)]
