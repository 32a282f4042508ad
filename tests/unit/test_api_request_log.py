"""Which responses leave a log line, and what is in it."""

import logging

import pytest

from api.credentials import credentials
from api.errors import InvalidApiKey, NoSuchRecord, Unavailable
from api.request import request_id
from api.request_log import SAMPLE, Entry, RequestLog
from schemas.api_keys import key_hash, mint
from schemas.settings import RequestLogMode
from tests.harness import crm

KEY = mint(crm.ORGANIZATION)
CALLER = credentials(f"Bearer {KEY}".encode())


def entry(status: int, error: Exception | None = None) -> Entry:
    return Entry(b"mine", "GET", "/api/v1/ext/leads/{id}", status, 0.0012, error, CALLER, crm.LEAD)


@pytest.mark.parametrize(
    ("mode", "lowest"),
    [pytest.param("off", 1000, id="off"), pytest.param("errors", 400, id="errors"), pytest.param("all", 0, id="all")],
)
def test_the_lowest_status(mode: RequestLogMode, lowest: int) -> None:
    assert RequestLog(mode).lowest == lowest


def test_a_line(caplog: pytest.LogCaptureFixture) -> None:
    RequestLog().write(entry(503, Unavailable("there is no connection to Redis")))
    [record] = caplog.records
    fields = vars(record)
    assert {name: fields[name] for name in ("request_id", "method", "route", "status", "error", "reason")} == {
        "request_id": "mine",
        "method": "GET",
        "route": "/api/v1/ext/leads/{id}",
        "status": 503,
        "error": "service_unavailable",
        "reason": "there is no connection to Redis",
    }
    assert (fields["organization"], fields["key"]) == (crm.ORGANIZATION, key_hash(KEY)[:12])
    assert (fields["duration_ms"], fields["record"]) == (1.2, crm.LEAD)
    assert record.levelno == logging.ERROR
    assert KEY[8:] not in str(fields)


def test_a_few_4xx_and_every_5xx(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 10.5
    log = RequestLog(clock=lambda: now)
    for _ in range(SAMPLE + 20):
        log.write(entry(404, NoSuchRecord()))
        log.write(entry(503, Unavailable()))
    assert sum(vars(record)["status"] == 404 for record in caplog.records) == SAMPLE
    assert sum(vars(record)["status"] == 503 for record in caplog.records) == SAMPLE + 20
    skipped = sum(vars(record).get("skipped", 0) for record in caplog.records)
    caplog.clear()
    now = 11.0
    log.write(entry(401, InvalidApiKey()))
    assert vars(caplog.records[0]).get("skipped", 0) + skipped == 20


def test_all_are_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = RequestLog("all", clock=lambda: 1.0)
    for status in [200, 304, 404] * SAMPLE:
        log.write(entry(status))
    assert len(caplog.records) == 3 * SAMPLE


def test_a_key_is_no_request_id() -> None:
    assert request_id(KEY.encode()) != KEY.encode()
    assert request_id(b"of-" + KEY.encode()) != b"of-" + KEY.encode()
    assert request_id(b"lv-1") == b"lv-1"
