"""An API under attack, and its log."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from api.edge import Edge
from schemas.settings import RequestLogMode
from tests.harness.api_server import UNLIMITED, ApiServer, Response, Unhurried, patient, responses, running_api
from tests.harness.records import Caller
from tests.harness.services import RedisService

SECRET = "Zaphodia Beeblebrox"
"""Part of the documents of these tests."""
CODES = {200, 204, 304, 400, 401, 404, 405, 408, 431}


class Log(logging.Handler):
    """Everything that is logged, in the form in which it would be written."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.severe: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{self.format(record)} {vars(record)}"
        self.lines.append(line)
        if record.levelno >= logging.ERROR:
            self.severe.append(line)


class Target(ApiServer, frozen=True, kw_only=True):
    """An API with high limits. `log` has everything that this process logs meanwhile."""

    log: Log

    def assert_quiet(self, caller: Caller) -> None:
        """Assert that no error was logged, nor a key, nor a part of a document."""
        text = "\n".join(self.log.lines)
        assert self.log.severe == []
        assert "Bearer" not in text
        assert caller.key[8:40] not in text
        assert SECRET not in text


@contextmanager
def target(
    redis_server: RedisService, *, edge: type[Edge] = Unhurried, request_log: RequestLogMode = "errors"
) -> Iterator[Target]:
    """Logs at the level `debug` until the block ends."""
    settings = patient(redis_server.url, request_log=request_log, **UNLIMITED)
    root = logging.getLogger()
    log, level = Log(), root.level
    root.addHandler(log)
    try:
        with running_api(settings, edge=edge) as api:
            root.setLevel(logging.DEBUG)
            yield Target(api.port, log=log)
    finally:
        root.removeHandler(log)
        root.setLevel(level)


def answer_to(api: ApiServer, sent: bytes, size: int = 1 << 30) -> Response:
    """Send this in pieces of this size, and return the only response. It is sound, and the connection ends with it."""
    (answer,) = responses(api.exchange(sent, size))
    assert answer.status in CODES
    assert re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", answer.headers["x-request-id"])
    if answer.status not in (204, 304):
        assert (answer.headers["content-type"], bool(answer.json)) == ("application/json", True)
    if answer.status >= 400:
        told = (answer.json["request_id"], answer.headers["cache-control"])
        assert told == (answer.headers["x-request-id"], "no-store")
    return answer
