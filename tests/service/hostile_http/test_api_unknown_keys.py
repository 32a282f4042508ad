"""Well-formed keys that Redis does not know, as fast as one can: their cost is bounded, and they harm nobody else."""

import secrets
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from schemas import api_keys
from tests.harness.api_server import LEADS, ApiServer, Response, patient, responses, running_api
from tests.harness.api_server import get as request
from tests.harness.records import Records
from tests.harness.services import RedisService

LIMIT = 5
LONG = f"{LIMIT}/1h"
"""No test takes so long that another key may be tried meanwhile."""
PROXIES = "127.0.0.1,10.0.0.1"


@pytest.fixture
def api(redis_server: RedisService) -> Iterator[ApiServer]:
    """It takes its callers for proxies, and each test has client addresses of its own."""
    settings = patient(redis_server.url, api_unknown_key_limit=LONG, api_trusted_proxies=PROXIES)
    with running_api(settings) as api:
        yield api


def unknown_key() -> str:
    return api_keys.mint(str(uuid4()))


def get(api: ApiServer, key: str, client: str | None = None) -> Response:
    """Send a request through two proxies. The client itself names another address each time, which nobody believes."""
    path = f"2001:db8:{secrets.token_hex(2)}::1, {client}, 10.0.0.1"
    return api.get(LEADS + str(uuid4()), key=key, headers={"X-Forwarded-For": path} if client else {})


def pipelined(api: ApiServer, key: str, number: int) -> list[Response]:
    last = request(LEADS + "x", key, "Connection: close")
    return responses(api.exchange(request(LEADS + "x", key) * (number - 1) + last))


def look_ups(api: ApiServer, records: Records) -> int:
    """Returns how often a key was looked up. A first one makes sure that Redis knows the script. A worker that looks
    whether it is ready calls the script as well, and then GETRANGE, which no key here leads to.
    """
    get(api, unknown_key())
    stats = records.client.info("commandstats")
    scripts, others = (stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "getrange"))
    return int(scripts) - int(others)


@pytest.mark.parametrize("was_valid", [pytest.param(False, id="unknown"), pytest.param(True, id="revoked")])
def test_redis_is_asked_once_for_a_key_that_it_refused_a_moment_ago(
    api: ApiServer, records: Records, was_valid: bool
) -> None:
    records.serve()
    key = unknown_key()
    if was_valid:
        key = records.caller().key
        assert get(api, key).status == 404
        records.revoke(key)
    before = look_ups(api, records)
    began = time.monotonic()
    answers = pipelined(api, key, 200)
    passed = time.monotonic() - began
    assert {answer.status for answer in answers} == {401}
    assert {answer.error for answer in answers} == {"invalid_api_key"}
    assert look_ups(api, records) - before <= 2 + passed / 0.5


def test_unknown_keys_are_limited_for_each_client_address(api: ApiServer, records: Records) -> None:
    records.serve()
    before = look_ups(api, records)
    assert [get(api, unknown_key(), "192.0.2.1").status for _ in range(LIMIT)] == [401] * LIMIT
    answer = get(api, unknown_key(), "192.0.2.1")
    assert (answer.status, answer.error) == (429, "rate_limit_exceeded")
    assert answer.json["violated_policies"] == ["address"]
    assert answer.json["retry_after"] == int(answer.headers["retry-after"]) >= 1
    assert answer.headers["ratelimit-policy"] == f'"address";q={LIMIT};w=3600'
    assert answer.headers["ratelimit"].startswith('"address";r=0;t=')
    assert (answer.headers["x-ratelimit-limit"], answer.headers["x-ratelimit-remaining"]) == (str(LIMIT), "0")
    assert look_ups(api, records) - before == LIMIT + 1
    assert get(api, unknown_key(), "192.0.2.2").status == 401


def test_a_key_that_was_valid_is_not_affected(api: ApiServer, records: Records) -> None:
    caller = records.caller()
    assert get(api, caller.key, "192.0.2.4").status == 404
    statuses = [get(api, unknown_key(), "192.0.2.4").status for _ in range(LIMIT + 1)]
    assert statuses[-1] == 429
    assert [get(api, caller.key, "192.0.2.4").status for _ in range(10)] == [404] * 10
