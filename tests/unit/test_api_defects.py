"""A defect of the API, wherever it occurs: 500 as JSON, and a log line with the id of the request."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from api.endpoint import Endpoint
from api.edge import Cycle
from api.metrics import Counters
from api.request import Request, Response
from api.request_log import RequestLog
from api.usage import Usage

SCOPE: dict[str, Any] = {
    "method": "GET",
    "raw_path": b"/",
    "headers": [(b"x-request-id", b"mine"), (b"authorization", b"Bearer lv_live_secret")],
    "state": {"docs_url": None},
}


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data


async def broken(_: Request) -> Response:
    raise ZeroDivisionError


async def broken_app(*_: object) -> None:
    raise ZeroDivisionError


async def nothing() -> dict[str, Any]:
    return {}


async def test_in_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    counters = Counters()
    await Endpoint("x", broken, counters, RequestLog(), Usage())(SCOPE, nothing, send)
    start, body = sent
    assert start["status"] == 500
    assert msgspec.json.decode(body["body"])["error"] == "internal_error"
    assert (b"x-request-id", b"mine") in start["headers"]
    assert counters.routes["x"].statuses == {500: 1}
    assert [vars(record)["request_id"] for record in caplog.records] == ["mine"]
    assert "secret" not in caplog.text


async def test_outside_of_all_handlers(caplog: pytest.LogCaptureFixture) -> None:
    wire, done = Wire(), asyncio.Event()
    cycle = Cycle(
        scope=SCOPE,  # type: ignore[arg-type]  # the part that is used
        transport=wire,
        flow=None,  # type: ignore[arg-type]
        logger=logging.getLogger("uvicorn.error"),
        access_logger=logging.getLogger("uvicorn.access"),
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=done.set,
    )
    await cycle.run_asgi(broken_app)
    head, _, body = wire.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"content-type: application/json" in head
    assert b"x-request-id: " in head
    assert msgspec.json.decode(body)["error"] == "internal_error"
    assert b"connection: close" in head
    assert not cycle.keep_alive
    found = msgspec.json.decode(body)["request_id"]
    assert [vars(record)["request_id"] for record in caplog.records if "request_id" in vars(record)] == [found]
    assert done.is_set()
