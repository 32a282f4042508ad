"""Errors and their responses, which schemas/problems.py describes for OpenAPI; a defect is 500, and is logged."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from api import errors
from api.app import Endpoint
from api.documents import Documents
from api.errors import ApiError, InternalError
from api.redis.store import Reply
from api.request import Request, Response, error_response
from api.worker import Worker
from schemas.resources import CONTACT
from schemas.settings import ApiSettings


def kinds(error: type[ApiError] = ApiError) -> Iterator[type[ApiError]]:
    for kind in error.__subclasses__():
        yield kind
        yield from kinds(kind)


ANSWERED = [kind for kind in kinds() if kind is not errors.Refused]


def make(kind: type[ApiError]) -> ApiError:
    if issubclass(kind, errors.RateLimitExceeded):
        return kind(2) if kind is errors.TooManyGuesses else kind(2, ["key"])
    return kind()


@pytest.mark.parametrize("kind", ANSWERED)
def test_bodies(kind: type[ApiError]) -> None:
    answer = error_response(make(kind), b"the-id", None)
    body = orjson.loads(answer.body)
    expected = ["error", "message", "status", "request_id"]
    if kind.status in (429, 503):
        expected.append("retry_after")
    if kind.status == 429:
        expected.append("violated_policies")
    assert list(body) == expected
    assert (body["error"], body["status"], body["request_id"]) == (kind.code, answer.status, "the-id")
    assert answer.status == kind.status
    assert b"\r\ncache-control: no-store\r\n" in answer.headers


@pytest.mark.parametrize("docs_url", ["https://docs.example/leadview", "https://docs.example/leadview/"])
@pytest.mark.parametrize("kind", ANSWERED)
def test_bodies_link_to_the_description_of_their_code(kind: type[ApiError], docs_url: str) -> None:
    body = orjson.loads(error_response(make(kind), b"the-id", docs_url).body)
    assert body["docs_url"] == f"https://docs.example/leadview/errors.html#{kind.code}"


def test_reasons_are_not_sent() -> None:
    answer = error_response(errors.Unavailable("LOADING of 10.0.0.7"), b"x", None)
    assert b"10.0.0.7" not in answer.body


REQUEST = Request(b"mine", "GET", b"/", {b"authorization": b"Bearer lv_live_secret"})


async def broken(_: Worker, __: Request) -> Response:
    raise ZeroDivisionError


async def nothing() -> dict[str, Any]:
    return {}


async def test_in_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    worker = Worker(ApiSettings())
    await Endpoint(worker, "x", broken)({"request": REQUEST}, nothing, send)
    [message] = sent
    assert message["response"].status == 500
    assert orjson.loads(message["response"].body)["error"] == "internal_error"
    assert message["request_id"] == b"mine"
    assert worker.counters.routes["x"].statuses == {500: 1}
    assert [vars(record)["request_id"] for record in caplog.records] == ["mine"]
    assert "secret" not in caplog.text


def test_a_stored_document_that_cannot_be_read_says_what_to_do() -> None:
    stored = Reply(200, 0, 100, 10, 5, 0, 300, 10, 5, 0, value=bytes(CONTACT.body_offset) + b"\xff")
    with pytest.raises(InternalError, match="`rebuild --organization` writes it again"):
        Documents(CONTACT)._response(stored)
