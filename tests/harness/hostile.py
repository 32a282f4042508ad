"""An API under attack, and its log."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from api.edge import Edge
from schemas.settings import RequestLogMode
from tests.harness.api_server import ApiServer, Response, patient, running_api
from tests.harness.records import Caller
from tests.harness.services import RedisService

SECRET = "Zaphodia Beeblebrox"
"""Part of the documents of these tests."""
CODES = {200, 204, 304, 400, 401, 404, 405, 408, 431}
MANY = "1000000/1s"


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
    redis_server: RedisService, *, edge: type[Edge] = Edge, request_log: RequestLogMode = "errors"
) -> Iterator[Target]:
    """Logs at the level `debug` until the block ends."""
    settings = patient(redis_server.url, key_rate_limit=MANY, organization_rate_limit=MANY, request_log=request_log)
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


def open_connections(api: Target) -> int:
    """Returns how many connections the API has, which runs in this process."""
    return sum(
        each.laddr.port == api.port and each.status == psutil.CONN_ESTABLISHED
        for each in psutil.Process().net_connections("tcp")
        if each.laddr and each.raddr and each.raddr.port != api.port
    )


def assert_sound(answer: Response) -> None:
    assert answer.status in CODES
    assert answer.headers["x-request-id"]
    if answer.status not in (204, 304):
        assert answer.headers["content-type"] == "application/json"
        assert answer.json
    if answer.status >= 400:
        assert answer.json["request_id"] == answer.headers["x-request-id"]
