"""The HTTP API on real sockets: the checks in the order of its table, headers, HEAD, CORS, ETags, request ids,
and the pages that need no key."""

import re
from uuid import uuid4

import pytest

from schemas import api_keys
from tests.harness.api_server import CONTACTS, LEADS, ApiServer, Response, patient, responses, running_api
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService

LIMIT_HEADERS = {
    "ratelimit-policy",
    "ratelimit",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
}
JSON = "application/json"
UNKNOWN = "7734d9ad-624d-4093-aa96-4d1cb89f253f"
A_KEY = api_keys.mint(str(uuid4()))


def assert_error(answer: Response, status: int, code: str) -> None:
    assert (answer.status, answer.json["error"], answer.json["status"]) == (status, code, status)
    assert answer.json["message"]
    sent = {"x-request-id": answer.json["request_id"], "content-type": JSON, "cache-control": "no-store"}
    assert answer.headers | sent == answer.headers


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code"),
    [
        pytest.param("GET", "/", {}, 404, "not_found", id="unknown path"),
        pytest.param("GET", "/api/v1/ext/leads", {}, 404, "not_found", id="no id"),
        pytest.param("GET", LEADS, {}, 404, "not_found", id="nothing after the slash"),
        pytest.param("GET", f"{LEADS}{UNKNOWN}/", {}, 404, "not_found", id="slash at the end: no redirect"),
        pytest.param("GET", f"{LEADS}{UNKNOWN}/x", {}, 404, "not_found", id="one segment too many"),
        pytest.param("GET", "/healthz/", {}, 404, "not_found", id="slash behind another path"),
        pytest.param("GET", f"//api/v1/ext/leads/{UNKNOWN}", {}, 404, "not_found", id="two slashes"),
        pytest.param("POST", "/nothing", {}, 404, "not_found", id="unknown path before method"),
        pytest.param("POST", f"{LEADS}{UNKNOWN}", {}, 405, "method_not_allowed", id="method before key"),
        pytest.param("DELETE", f"{CONTACTS}x", {}, 405, "method_not_allowed", id="method before id"),
        pytest.param("GET", f"{LEADS}x", {}, 401, "missing_api_key", id="no key, before id"),
        pytest.param("GET", f"{LEADS}x", {"Authorization": ""}, 401, "missing_api_key", id="empty"),
        pytest.param("GET", f"{LEADS}x", {"Authorization": "Bearer"}, 401, "missing_api_key", id="no token"),
        pytest.param("GET", f"{LEADS}x", {"Authorization": "Bearer  "}, 401, "missing_api_key", id="spaces"),
        pytest.param(
            "GET", f"{LEADS}x", {"Authorization": f"Basic {A_KEY}"}, 401, "missing_api_key", id="another scheme"
        ),
        pytest.param("GET", f"{LEADS}x", {"Authorization": A_KEY}, 401, "missing_api_key", id="a key without scheme"),
        pytest.param(
            "GET", f"{LEADS}x", {"Authorization": "Bearer x"}, 401, "invalid_api_key", id="malformed, before id"
        ),
        pytest.param(
            "GET",
            f"{LEADS}x",
            {"Authorization": f"Bearer {A_KEY[:-1]}!"},
            401,
            "invalid_api_key",
            id="wrong checksum",
        ),
        pytest.param(
            "GET", f"{LEADS}x", {"Authorization": f"Bearer {A_KEY} x"}, 401, "invalid_api_key", id="two tokens"
        ),
        pytest.param(
            "GET", f"{LEADS}x", {"Authorization": f"Bearer {A_KEY}"}, 401, "invalid_api_key", id="unknown key"
        ),
    ],
)
def test_refused_before_the_record_is_looked_up(
    api: ApiServer, records: Records, method: str, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    records.serve()
    answer = api.get(path, method=method, headers=headers)
    assert_error(answer, status, code)
    assert not LIMIT_HEADERS & answer.headers.keys()
    assert answer.headers.get("allow") == ("GET, HEAD, OPTIONS" if status == 405 else None)
    challenge = {
        "missing_api_key": 'Bearer realm="leadview"',
        "invalid_api_key": 'Bearer realm="leadview", error="invalid_token"',
    }
    assert answer.headers.get("www-authenticate") == challenge.get(code)


def test_request_is_checked_for_key_access_limits_and_id_in_this_order(api: ApiServer, records: Records) -> None:
    caller = records.caller(key_limit=(1, 3600))
    assert_error(api.get(LEADS + "x", key=caller.key), 400, "invalid_id")
    limited = api.get(LEADS + "x", key=caller.key)
    assert_error(limited, 429, "rate_limit_exceeded")
    assert limited.headers.keys() >= LIMIT_HEADERS | {"retry-after"}
    records.organization(caller.organization_id, access=False, key_limit=(1, 3600))
    assert_error(api.get(LEADS + "x", key=caller.key), 403, "api_access_disabled")
    records.revoke(caller.key)
    assert_error(api.get(LEADS + "x", key=caller.key), 401, "invalid_api_key")


@pytest.mark.parametrize(
    "segment",
    [
        pytest.param("x", id="a word"),
        pytest.param(UNKNOWN + "0", id="a digit too many"),
        pytest.param(UNKNOWN.replace("-", ""), id="no hyphens"),
        pytest.param("{" + UNKNOWN + "}", id="braces"),
        pytest.param(UNKNOWN + "%0A", id="line feed behind"),
        pytest.param(f"{UNKNOWN[:10]}%2F{UNKNOWN[11:]}", id="a slash, percent-encoded"),
        pytest.param("%00", id="NUL"),
        pytest.param("%FF%FE", id="no UTF-8"),
        pytest.param("..", id="dots"),
        pytest.param("x" * 5000, id="long"),
    ],
)
def test_invalid_ids_are_charged(api: ApiServer, caller: Caller, segment: str) -> None:
    answer = api.get(LEADS + segment, key=caller.key)
    assert_error(answer, 400, "invalid_id")
    assert answer.headers["ratelimit"].startswith('"key";r=99;')


@pytest.mark.parametrize(("path", "kind"), [pytest.param(LEADS, "lead"), pytest.param(CONTACTS, "contact")])
def test_record_is_served_with_its_headers(
    api: ApiServer, records: Records, caller: Caller, path: str, kind: str
) -> None:
    body = {"id": "as it is", "tags": [], "name": "Zoë"}
    record_id = getattr(records, kind)(caller.organization_id, body)
    earliest = records.client.time()[0]
    answer = api.get(path + record_id, key=caller.key)
    latest = records.client.time()[0]
    assert (answer.status, answer.json) == (200, body)
    sent = {
        "content-type": JSON,
        "cache-control": "private, no-cache",
        "ratelimit-policy": '"key";q=100;w=10, "organization";q=300;w=10',
        "ratelimit": '"key";r=99;t=1, "organization";r=299;t=1',
        "x-ratelimit-limit": "100",
        "x-ratelimit-remaining": "99",
    }
    assert answer.headers | sent == answer.headers
    assert re.fullmatch(r'W/"[0-9a-f]{24}"', answer.headers["etag"])
    assert earliest <= int(answer.headers["x-ratelimit-reset"]) <= latest + 2
    assert "server" not in answer.headers
    for spelling in (record_id.upper(), record_id.replace("-", "%2D")):
        assert api.get(path + spelling, key=caller.key).json == body
    other = CONTACTS if path == LEADS else LEADS
    assert api.get(other + record_id, key=caller.key).status == 404


def test_head_is_get_without_a_body(api: ApiServer, records: Records, caller: Caller) -> None:
    lead_id = records.lead(caller.organization_id, {"id": "x"})
    for path, key in ((LEADS + lead_id, caller.key), (LEADS + UNKNOWN, caller.key), (LEADS + "x", None)):
        sent = {"X-Request-Id": "same"}
        get, head = (api.get(path, key=key, headers=sent, method=method) for method in ("GET", "HEAD"))
        assert (head.status, head.headers.keys(), head.body) == (get.status, get.headers.keys(), b"")
        assert head.headers["x-request-id"] == get.headers["x-request-id"] == "same"
        assert head.headers["content-length"] == str(len(get.body))


@pytest.mark.parametrize(
    ("header", "status"),
    [
        pytest.param("{etag}", 304, id="the tag"),
        pytest.param("{strong}", 304, id="made strong: compared weakly"),
        pytest.param("*", 304, id="any"),
        pytest.param('"a", {etag}, W/"b"', 304, id="in a list"),
        pytest.param('junk {etag} ,, "', 304, id="among garbage"),
        pytest.param('W/"000000000000000000000000"', 200, id="another"),
        pytest.param('"x"', 200, id="none of ours"),
        pytest.param('W/"{bare}-gzip"', 304, id="with the coding that Apache appends"),
        pytest.param('"{bare}--gzip"', 304, id="with the coding that Jetty appends"),
        pytest.param('"{bare};br"', 304, id="with a coding behind a semicolon"),
        pytest.param('W/"{bare}-zstd"', 304, id="with another coding"),
        pytest.param('"{bare}-x"', 200, id="with something else behind it"),
        pytest.param('"x{bare}-gzip"', 200, id="with something else before it"),
        pytest.param("{bare}", 200, id="without quotes"),
        pytest.param('"*"', 200, id="a quoted star is a tag"),
        pytest.param("", 200, id="empty"),
        pytest.param('"' + "x" * 8000 + '"', 200, id="long"),
    ],
)
def test_known_etag_gets_304_without_a_charge(api: ApiServer, records: Records, header: str, status: int) -> None:
    caller = records.caller(key_limit=(100, 360_000))  # nothing comes back while the test runs
    lead_id = records.lead(caller.organization_id, {"id": "x"})
    etag = api.get(LEADS + lead_id, key=caller.key).headers["etag"]
    sent = header.format(etag=etag, strong=etag[2:], bare=etag[3:-1])
    answer = api.get(LEADS + lead_id, key=caller.key, headers={"If-None-Match": sent})
    remaining = "99" if status == 304 else "98"  # 304 is not charged
    told = {"etag": etag, "cache-control": "private, no-cache", "x-ratelimit-remaining": remaining}
    assert (answer.status, answer.headers | told) == (status, answer.headers)
    if status == 304:
        assert (answer.body, "content-length" in answer.headers) == (b"", False)


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


PAGES = ("/healthz", "/readyz", "/api/v1/ext/openapi.json")


PREFLIGHT = {"Origin": "https://tool.example", "Access-Control-Request-Method": "GET"}


@pytest.mark.parametrize("path", [LEADS + UNKNOWN, LEADS + "x", CONTACTS + UNKNOWN, *PAGES, "/nothing", "/healthz/"])
def test_preflight_of_any_path_needs_no_key(api: ApiServer, path: str) -> None:
    answer = api.get(path, method="OPTIONS", headers=PREFLIGHT)
    told = {
        "allow": "GET, HEAD, OPTIONS",
        "access-control-allow-origin": "*",
        "access-control-allow-methods": "GET, HEAD, OPTIONS",
        "access-control-allow-headers": "Authorization, If-None-Match, Prefer, X-Request-Id",
    }
    assert (answer.status, answer.body, answer.headers | told) == (204, b"", answer.headers)
    assert int(answer.headers["access-control-max-age"]) > 0
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        pytest.param("authorization,traceparent", "authorization, traceparent", id="of a tracing SDK"),
        pytest.param("authorization, x-datadog-trace-id , Content-Type", None, id="with spaces"),
        pytest.param("a;b, x y, sentry-trace, é", "sentry-trace", id="what cannot be a name is left out"),
        pytest.param(",", "Authorization, If-None-Match, Prefer, X-Request-Id", id="none"),
    ],
)
def test_preflight_allows_every_header_that_is_asked_for(api: ApiServer, asked: str, allowed: str | None) -> None:
    sent = PREFLIGHT | {"Access-Control-Request-Headers": asked}
    answer = api.get(LEADS + UNKNOWN, method="OPTIONS", headers=sent)
    found = answer.headers["access-control-allow-headers"]
    assert found == (allowed or "authorization, x-datadog-trace-id, Content-Type")
    assert answer.headers["vary"] == "Access-Control-Request-Headers"


@pytest.mark.parametrize("left_out", PREFLIGHT)
def test_options_of_an_unknown_path_without_a_preflight_is_404(api: ApiServer, left_out: str) -> None:
    sent = {name: value for name, value in PREFLIGHT.items() if name != left_out}
    assert api.get("/nothing", method="OPTIONS", headers=sent).error == "not_found"


@pytest.mark.parametrize("path", [LEADS + UNKNOWN, "/healthz", "/nothing", "/api/v1/ext/openapi.json"])
def test_cors_headers_if_an_origin_is_sent(api: ApiServer, path: str) -> None:
    answer = api.get(path, headers={"Origin": "https://tool.example"})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert {*answer.headers["access-control-expose-headers"].lower().split(", ")} >= EXPOSED
    assert "access-control-allow-origin" not in api.get(path).headers


@pytest.mark.parametrize("path", PAGES)
def test_page_without_a_key_answers_get_and_head(api: ApiServer, records: Records, path: str) -> None:
    records.serve()
    get, head, post = (api.get(path, method=method) for method in ("GET", "HEAD", "POST"))
    assert (get.status, get.headers["content-type"]) == (200, JSON)
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(get.body)))
    assert (post.status, post.error, post.headers["allow"]) == (405, "method_not_allowed", "GET, HEAD, OPTIONS")


OPENAPI = "/api/v1/ext/openapi.json"


def test_openapi_is_not_sent_again(api: ApiServer) -> None:
    headers = api.get(OPENAPI).headers
    assert headers["vary"] == "Origin"
    tag = headers["etag"]
    for sent in (tag, tag.removeprefix("W/"), f'"other", {tag}', f'{tag[:-1]}-gzip"', "*"):
        found = api.get(OPENAPI, headers={"If-None-Match": sent})
        told = (found.status, found.body, found.headers["etag"], found.headers["vary"])
        assert told == (304, b"", tag, "Origin"), sent
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
