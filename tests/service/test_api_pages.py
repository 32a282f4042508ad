"""Everything besides documents: CORS, request ids, health, readiness, the OpenAPI document."""

import re
from collections.abc import Iterator

import pytest

from tests.harness.api_server import CONTACTS, LEADS, ApiServer, patient, responses, running_api
from tests.harness.records import Records
from tests.harness.services import RedisService

EXPOSED = {
    "data-as-of",
    "etag",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-request-id",
}
UNKNOWN = "7734d9ad-624d-4093-aa96-4d1cb89f253f"


@pytest.fixture(scope="module")
def api(redis_server: RedisService) -> Iterator[ApiServer]:
    with running_api(patient(redis_server.url)) as api:
        yield api


@pytest.mark.parametrize("path", [LEADS + UNKNOWN, LEADS + "x", CONTACTS + UNKNOWN])
def test_preflight_needs_no_key(api: ApiServer, path: str) -> None:
    sent = {
        "Origin": "https://tool.example",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "authorization",
    }
    answer = api.get(path, method="OPTIONS", headers=sent)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-methods"] == "GET, HEAD, OPTIONS"
    assert answer.headers["access-control-allow-headers"] == "Authorization, If-None-Match, X-Request-Id"
    assert int(answer.headers["access-control-max-age"]) > 0
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", [LEADS + UNKNOWN, "/healthz", "/nothing", "/api/v1/ext/openapi.json"])
def test_cors_headers_if_an_origin_is_sent(api: ApiServer, path: str) -> None:
    answer = api.get(path, headers={"Origin": "https://tool.example"})
    assert answer.headers["access-control-allow-origin"] == "*"
    exposed = {name.lower() for name in answer.headers["access-control-expose-headers"].split(", ")}
    assert exposed >= EXPOSED
    assert "access-control-allow-origin" not in api.get(path).headers


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        pytest.param("a-B_3.x", True, id="sane"),
        pytest.param("x" * 128, True, id="just short enough"),
        pytest.param("x" * 129, False, id="too long"),
        pytest.param('x"y', False, id="a quote"),
        pytest.param("ü", False, id="not ASCII"),
        pytest.param("", False, id="empty"),
    ],
)
def test_request_id(api: ApiServer, sent: str, kept: bool) -> None:
    answer = api.get("/nothing", headers={"X-Request-Id": sent})
    assert (answer.headers["x-request-id"] == sent) is kept
    assert answer.json["request_id"] == answer.headers["x-request-id"]
    if not kept:
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/api/v1/ext/openapi.json"])
def test_pages_without_key(api: ApiServer, records: Records, path: str) -> None:
    records.serve()
    get, head, post = (api.get(path, method=method) for method in ("GET", "HEAD", "POST"))
    assert (get.status, head.status) == (200, 200)
    assert get.headers["content-type"] == "application/json"
    assert (head.body, head.headers["content-length"]) == (b"", str(len(get.body)))
    assert (post.status, post.error) == (405, "method_not_allowed")
    assert post.headers["allow"] == "GET, HEAD"


def test_openapi_is_served(api: ApiServer) -> None:
    assert api.get("/api/v1/ext/openapi.json").json["openapi"].startswith("3.1")


OPENAPI = "/api/v1/ext/openapi.json"


def test_openapi_is_not_sent_again(api: ApiServer) -> None:
    headers = api.get(OPENAPI).headers
    assert headers["vary"] == "Origin"
    tag = headers["etag"]
    for sent in (tag, tag.removeprefix("W/"), f'"other", {tag}', "*"):
        found = api.get(OPENAPI, headers={"If-None-Match": sent})
        assert (found.status, found.body, found.headers["etag"]) == (304, b"", tag), sent
        assert found.headers["vary"] == "Origin"
    assert api.get(OPENAPI, headers={"If-None-Match": 'W/"other"'}).status == 200


def test_every_error_links_to_its_description(redis_server: RedisService) -> None:
    """Also one of before routing."""
    with running_api(patient(redis_server.url, docs_url="https://docs.example/")) as api:
        found = [api.get("/nothing"), api.get(LEADS + "x"), api.get("/healthz", method="POST")]
        found += responses(api.exchange(b"GET / HTTP/1.1\r\n\r\n"))
    assert [answer.json["docs_url"] for answer in found] == [
        f"https://docs.example/errors.html#{code}"
        for code in ("not_found", "missing_api_key", "method_not_allowed", "bad_request")
    ]
