"""Which responses leave a log line, and what is in it."""

import logging
import re

import pytest

from api.errors import InvalidApiKey, NoSuchRecord, Unavailable
from api.request import Request, credentials, request_id
from api.request_log import SAMPLE, RequestLog
from docs.generate.key_vectors import Vector, vectors
from schemas.api_keys import PREFIX, key_hash, mint
from schemas.settings import RequestLogMode
from tests.harness import crm

KEY = mint(crm.ORGANIZATION)
CALLER = credentials(f"Bearer {KEY}".encode())


def write(log: RequestLog, status: int, error: Exception | None = None) -> None:
    request = Request(b"mine", "GET", last_segment=crm.LEAD.upper(), caller=CALLER, error=error)
    log.write(request, "/api/v1/ext/leads/{id}", status, 0.0012)


@pytest.mark.parametrize(
    ("mode", "lowest"),
    [pytest.param("off", 1000, id="off"), pytest.param("errors", 400, id="errors"), pytest.param("all", 0, id="all")],
)
def test_the_lowest_status(mode: RequestLogMode, lowest: int) -> None:
    assert RequestLog(mode).lowest == lowest


def test_a_line(caplog: pytest.LogCaptureFixture) -> None:
    write(RequestLog(), 503, Unavailable("there is no connection to Redis"))
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
        write(log, 404, NoSuchRecord())
        write(log, 503, Unavailable())
    assert sum(vars(record)["status"] == 404 for record in caplog.records) == SAMPLE
    assert sum(vars(record)["status"] == 503 for record in caplog.records) == SAMPLE + 20
    skipped = sum(vars(record).get("skipped", 0) for record in caplog.records)
    caplog.clear()
    now = 11.0
    write(log, 401, InvalidApiKey())
    assert vars(caplog.records[0]).get("skipped", 0) + skipped == 20


def test_all_are_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = RequestLog("all", clock=lambda: 1.0)
    for status in [200, 304, 404] * SAMPLE:
        write(log, status)
    assert len(caplog.records) == 3 * SAMPLE


@pytest.mark.parametrize("vector", vectors().valid, ids=lambda vector: vector.key[-6:])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param("{key}", id="a key"),
        pytest.param("of-{key}", id="something before it"),
        pytest.param("{rest}", id="no prefix"),
        pytest.param("ve_{rest}", id="a part of the prefix"),
        pytest.param("LV_LIVE_{rest}", id="a prefix in upper case"),
        pytest.param("lv_test_{rest}", id="another prefix"),
        pytest.param("a7{rest}0z", id="letters and digits around it"),
        pytest.param("0" * 70 + "{rest}", id="in the last characters of a long one"),
        pytest.param("{rest}" + "z" * 70, id="in the first characters of a long one"),
        pytest.param("{key:.20}", id="the beginning of a key"),
        pytest.param("{rest}.{rest}", id="twice"),
    ],
)
def test_a_key_is_no_request_id(vector: Vector, sent: str) -> None:
    text = sent.format(key=vector.key, rest=vector.key[len(PREFIX) :]).encode()
    assert len(text) <= 128
    assert re.fullmatch(b"[0-9a-f]{32}", request_id(text))


@pytest.mark.parametrize("vector", vectors().valid, ids=lambda vector: vector.key[-6:])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param("{rest:.57}", id="one character short"),
        pytest.param("{changed}", id="another checksum"),
        pytest.param("{rest:.30}-{changed:.28}", id="in two parts"),
        pytest.param("lv-1", id="the beginning of the prefix"),
        pytest.param("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", id="a traceparent"),
        pytest.param("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", id="a SHA-256"),
        pytest.param("0" * 128, id="zeros"),
    ],
)
def test_what_is_no_key_is_kept(vector: Vector, sent: str) -> None:
    rest = vector.key[len(PREFIX) :]
    changed = rest[:-1] + ("1" if rest[-1] == "0" else "0")
    text = sent.format(rest=rest, changed=changed).encode()
    assert request_id(text) == text
