"""Fuzzes the edge of the API at its socket: `python -m tests.fuzz http --seconds 60 --seed 1`.

Every stream of bytes is also given to h11, another parser. The API may refuse more than h11 does, but it may serve only
requests that h11 finds as well, in the same order: otherwise the two would disagree about where a request ends, and a
client could smuggle one past a proxy. Valid requests are all served. No answer is a 5xx, every one is JSON, none is
late, no event stands in the way of others, and nothing stays in memory.
"""

import gc
import random
import re
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import psutil
from msgspec import Struct

from api.edge import Edge
from devstack.redis_server import RedisServer
from devstack.waiting import wait_until
from tests.fuzz.h11_reads import request_ids
from tests.fuzz.http_streams import Stream, stream
from tests.harness.api_server import LEADS, ApiServer, Response, patient, read_all, responses, running_api
from tests.harness.records import Records
from tests.harness.services import RedisService

MOST_STANDING_SECONDS = 0.1
MOST_GROWTH_BYTES = 64_000_000
_PULSE_SECONDS = 0.005
_REFUSALS = {"bad_request", "body_not_allowed", "request_header_fields_too_large", "request_timeout"}
_MUCH, _SHORT = re.compile(rb"(.)\1{30,}", re.DOTALL), rb"\1..."
_IS_KEPT = re.compile(r"[A-Za-z0-9._:-]{1,128}").fullmatch
_MANY = "1000000/1s"


class Watched(Edge):
    """Measures how long the event loop works without a pause, in processor time: a busy machine does not count."""

    standing: ClassVar[float] = 0.0
    _worked: ClassVar[float | None] = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if Watched._worked is None:
            Watched._worked = time.thread_time()
            self.loop.call_later(_PULSE_SECONDS, _pulse, self.loop)


def _pulse(loop: Any) -> None:
    worked = time.thread_time()
    Watched.standing = max(Watched.standing, worked - (Watched._worked or worked))
    Watched._worked = worked
    loop.call_later(_PULSE_SECONDS, _pulse, loop)


class _Target(Struct):
    api: ApiServer
    path: bytes
    authorization: bytes

    def send(self, stream: Stream) -> list[Response] | None:
        """Returns the responses; None if the connection was reset, by the client or because the API had closed it."""
        with self.api.connect() as connection:
            try:
                for piece in stream.pieces:
                    connection.sendall(piece)
                if not stream.resets:
                    connection.shutdown(socket.SHUT_WR)
                    return responses(read_all(connection))
            except TimeoutError:
                raise AssertionError(f"neither a response nor a close: {stream.pieces}") from None
            except OSError:
                return None
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return None


def fuzz(seed: int, seconds: float) -> str:
    """Returns a line that says what was done. Raises AssertionError, with the stream that shows the fault."""
    chance = random.Random(seed)
    streams = served = refused = 0
    with _target() as target:
        for _ in range(50):  # whatever is imported or allocated once
            target.send(stream(random.Random(0), target.path, target.authorization))
        Watched.standing, before, until = 0.0, _memory(), time.monotonic() + seconds
        while time.monotonic() < until:
            sent = stream(chance, target.path, target.authorization)
            answers = target.send(sent)
            streams += 1
            if answers is not None:
                found = _check(sent, answers)
                served, refused = served + found, refused + len(answers) - found
            assert Watched.standing < MOST_STANDING_SECONDS, f"{Watched.standing:.3f} s of work on {sent.pieces}"
        wait_until(lambda: gc.collect() >= 0 and _open() == 0, "every connection is freed")
        growth = _memory() - before
        assert growth < MOST_GROWTH_BYTES, f"the process has grown by {growth} bytes"
        assert target.api.get("/readyz").status == 200
    return (
        f"seed {seed}, {streams} streams, {served} requests served, {refused} refused, the event loop stood for "
        f"{Watched.standing * 1000:.0f} ms at most, {max(growth, 0) / 1e6:.0f} MB more memory"
    )


def _check(sent: Stream, answers: list[Response]) -> int:
    """Returns how many requests were served."""
    found = [(answer.status, answer.headers.get("x-request-id")) for answer in answers]
    shown = f"{_MUCH.sub(_SHORT, sent.sent)!r} -> {found}"
    served = []
    for answer in answers:
        assert answer.status < 500, shown
        if answer.status not in (204, 304):
            assert answer.headers["content-type"] == "application/json", shown
        if answer.status >= 400:
            assert answer.json["request_id"] == answer.headers["x-request-id"], shown
        if answer.status < 400 or answer.error not in _REFUSALS:
            served.append(answer)
    assert len(answers) - len(served) <= 1, f"a refusal is the last response: {shown}"
    if sent.valid is None:
        ids = [each.decode("latin-1") for each in request_ids(sent.sent)]
    else:
        ids = [each.decode() for each in sent.valid]
        assert len(served) == len(ids), f"every valid request is served: {shown}"
    assert len(served) <= len(ids), f"h11 found {ids}: {shown}"
    for answer, own_id in zip(served, ids, strict=False):
        assert answer.headers["x-request-id"] == own_id or not _IS_KEPT(own_id), f"h11 found {ids}: {shown}"
    return len(served)


@contextmanager
def _target() -> Iterator[_Target]:
    with tempfile.TemporaryDirectory() as folder, RedisServer.start(Path(folder)) as server:
        service = RedisService("binary", server.url)
        settings = patient(
            server.url,
            key_rate_limit=_MANY,
            organization_rate_limit=_MANY,
            api_unknown_key_limit=_MANY,
        )
        with service.client() as client, running_api(settings, edge=Watched) as api:
            caller = Records(client).caller()
            lead = Records(client).lead(caller.organization_id, {"id": str(uuid4()), "text": "t" * 2000})
            yield _Target(api, (LEADS + lead).encode(), caller.authorization.encode())


def _open() -> int:
    return sum(isinstance(each, Watched) for each in gc.get_objects())


def _memory() -> int:
    return int(psutil.Process().memory_info().rss)
