"""A defect of the API, wherever it occurs: 500 as JSON, and a log line with the id of the request."""

from typing import Any

import orjson
import pytest

from api.app import Endpoint
from api.documents import Documents
from api.errors import InternalError
from api.redis.store import Reply
from api.request import Request, Response
from api.worker import Worker
from schemas.resources import CONTACT
from schemas.settings import ApiSettings

SCOPE: dict[str, Any] = {
    "method": "GET",
    "raw_path": b"/",
    "headers": [(b"x-request-id", b"mine"), (b"authorization", b"Bearer lv_live_secret")],
}


async def broken(_: Worker, __: Request) -> Response:
    raise ZeroDivisionError


async def nothing() -> dict[str, Any]:
    return {}


async def test_in_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    worker = Worker(ApiSettings())
    await Endpoint(worker, "x", broken)(SCOPE, nothing, send)
    [message] = sent
    assert message["response"].status == 500
    assert orjson.loads(message["response"].body)["error"] == "internal_error"
    assert message["request_id"] == b"mine"
    assert worker.counters.routes["x"].statuses == {500: 1}
    assert [vars(record)["request_id"] for record in caplog.records] == ["mine"]
    assert "secret" not in caplog.text


def test_a_stored_document_that_cannot_be_read_says_what_to_do() -> None:
    stored = Reply(200, 0, 100, 10, 5, 0, 300, 10, 5, 0, value=bytes(CONTACT.body) + b"\xff")
    with pytest.raises(InternalError, match="`rebuild --organization` writes it again"):
        Documents(CONTACT)._response(stored)
