"""A key that is sent in the wrong place appears in no log line and in no response, not even without its prefix."""

from collections.abc import Iterator

import pytest

from tests.harness.api_server import LEADS, responses
from tests.harness.hostile import Target, target
from tests.harness.records import Records
from tests.harness.services import RedisService
from tests.harness.waiting import wait_until

REQUESTS = [
    pytest.param("GET /{key} HTTP/1.1\r\nHost: x", id="path"),
    pytest.param("GET {leads}{key} HTTP/1.1\r\nHost: x", id="id"),
    pytest.param("GET {leads}x/{key} HTTP/1.1\r\nHost: x", id="path below a record"),
    pytest.param("GET {leads}x?api_key={key} HTTP/1.1\r\nHost: x", id="query"),
    pytest.param("GET {leads}x#{key} HTTP/1.1\r\nHost: x", id="fragment"),
    pytest.param("GET http://{key}@elsewhere{leads}x HTTP/1.1\r\nHost: x", id="user of a URL"),
    pytest.param("{key} {leads}x HTTP/1.1\r\nHost: x", id="method"),
    pytest.param("GET {leads}x HTTP/{key}\r\nHost: x", id="version"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: {key}", id="Host"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: {key}@", id="Host that is not valid"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nX-Request-Id: {key}", id="X-Request-Id"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nX-Request-Id: a.{key}.b", id="X-Request-Id around it"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nX-Request-Id: {key}\r\nX: \x00", id="X-Request-Id, refused"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\r\nX-Request-Id: {key}", id="X-Request-Id twice"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nUser-Agent: {key}\r\nReferer: http://x/{key}", id="User-Agent"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {key}", id="X-Forwarded-For"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nOrigin: {key}\r\nCookie: {key}", id="Origin and Cookie"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nIf-None-Match: {key}", id="If-None-Match"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nX-Api-Key: {key}\r\nAuthorization: {key}", id="other headers"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}", id="where it belongs"),
    pytest.param("GET {leads}x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{key}", id="a body"),
]


@pytest.fixture
def api(redis_server: RedisService) -> Iterator[Target]:
    with target(redis_server, request_log="all") as api:
        yield api


@pytest.mark.parametrize(
    "start",
    [pytest.param(0, id="whole"), pytest.param(5, id="a part of the prefix"), pytest.param(8, id="no prefix")],
)
@pytest.mark.parametrize("request_form", REQUESTS)
def test_no_key_is_logged(api: Target, records: Records, request_form: str, start: int) -> None:
    key = records.caller().key
    api.log.lines.clear()
    sent = request_form.format(key=key[start:], leads=LEADS) + "\r\nConnection: close\r\n\r\n"
    (answer,) = responses(api.exchange(sent.encode()))
    wait_until(lambda: any("request answered" in line for line in api.log.lines), "the request is logged")
    assert [text for text in [*api.log.lines, str(answer)] if key[8:] in text] == []
