"""Rate limits as callers see them, also while Redis cannot write. And well-formed keys that Redis does not know, as
fast as one can: their cost is bounded, and they harm nobody else.
"""

import re
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
import redis

from devstack.redis_server import RedisServer
from schemas import api_keys, names
from tests.harness.api_server import LEADS, ApiServer, Response, patient, responses, running_api
from tests.harness.api_server import get as request
from tests.harness.records import Records
from tests.harness.services import RedisService, calls_of
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

NO_RECORD = LEADS + str(uuid4())
DAY = 24 * 3600
"""A window in which nothing comes back while a test runs, however slow the machine is."""


LIMIT = 5
LONG = f"{LIMIT}/1h"
"""No test takes so long that another key may be tried meanwhile."""
PROXIES = "127.0.0.1,10.0.0.1"


@pytest.fixture
def api(redis_server: RedisService, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """It takes its callers for proxies, and looks only once whether it is ready: with the script that requests call."""
    monkeypatch.setattr("api.redis.serving.POLL_SECONDS", 3600.0)
    own = {"key_rate_limit": "5/1m", "organization_rate_limit": "8/1m", "api_unknown_key_limit": LONG}
    with running_api(patient(redis_server.url, **own, api_trusted_proxies=PROXIES)) as api:
        yield api


def test_exactly_n_pass_over_all_keys_and_processes(
    api: ApiServer, records: Records, redis_server: RedisService
) -> None:
    caller = records.caller(key_limit=(9, 3600), organization_limit=(20, 3600))
    keys = [caller.key, *(api_keys.mint(caller.organization_id) for _ in range(2))]
    for key in keys:
        records.key(key, caller.organization_id)
    with running_api(patient(redis_server.url)) as other, ThreadPoolExecutor(8) as pool:
        asked = [(process, key) for process in (api, other) for key in keys] * 10
        answers = list(pool.map(lambda it: it[0].get(NO_RECORD, key=it[1]), asked))
    assert Counter(answer.status for answer in answers) == {404: 20, 429: 40}
    remaining = [re.findall(r"r=(\d+)", it.headers["ratelimit"])[1] for it in answers if it.status == 404]
    assert sorted(map(int, remaining)) == list(range(20))


def test_settings_are_the_default(api: ApiServer, records: Records) -> None:
    answer = api.get(NO_RECORD, key=records.caller().key)
    assert answer.headers["ratelimit-policy"] == '"key";q=5;w=60, "organization";q=8;w=60'
    assert answer.headers["ratelimit"] == '"key";r=4;t=12, "organization";r=7;t=8'


Change = Callable[[redis.Redis], object]


def fail_to_save(client: redis.Redis) -> None:
    shutil.rmtree(str(client.config_get("dir")["dir"]))
    client.config_set("save", "3600 1")  # a failed save blocks writes only if saving is enabled
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "saving fails")


def want_replicas(client: redis.Redis) -> None:
    client.config_set("min-replicas-to-write", "1")


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        pytest.param(
            lambda client: client.config_set("maxmemory", "1"),
            lambda client: client.config_set("maxmemory", "0"),
            id="OOM",
        ),
        pytest.param(
            lambda client: client.acl_setuser("default", enabled=True, commands=["-set"]),
            lambda client: client.acl_setuser("default", enabled=True, commands=["+set"]),
            id="NOPERM",
        ),
        pytest.param(fail_to_save, lambda client: client.config_set("save", ""), id="MISCONF"),
        pytest.param(
            want_replicas,
            lambda client: client.config_set("min-replicas-to-write", "0"),
            id="NOREPLICAS",
        ),
    ],
)
def test_the_local_limiter_decides_when_charges_cannot_be_written(
    own_redis: RedisServer, broken: Change, repaired: Change
) -> None:
    with own_redis.client() as client, running_api(patient(own_redis.url)) as api:
        caller = Records(client).caller(key_limit=(3, 3 * DAY), organization_limit=(100, 30 * DAY))
        broken(client)
        answers = [api.get(NO_RECORD, key=caller.key) for _ in range(4)]
        told = [(answer.status, answer.headers["x-ratelimit-remaining"]) for answer in answers]
        assert told == [(404, "2"), (404, "1"), (404, "0"), (429, "0")]
        assert (answers[-1].error, answers[-1].json["violated_policies"]) == ("rate_limit_exceeded", ["key"])
        assert DAY - PATIENCE_SECONDS <= int(answers[-1].headers["retry-after"]) <= DAY
        stored = client.keys("lv3{*}q*")
        assert not stored or broken is want_replicas, "Redis 6 lets scripts write without replicas"
        repaired(client)
        remaining = api.get(NO_RECORD, key=caller.key).headers["x-ratelimit-remaining"]
        assert remaining == ("0" if stored else "2"), "Redis charges again"


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
    """Returns how often a key was looked up. A first one makes sure that Redis knows the script."""
    get(api, unknown_key())
    return calls_of(records.client, "evalsha")


@pytest.mark.parametrize("was_valid", [pytest.param(False, id="unknown"), pytest.param(True, id="revoked")])
def test_redis_is_asked_once_for_a_key_that_it_refused_a_moment_ago(
    api: ApiServer, records: Records, was_valid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.keys.REFUSED_SECONDS", 3600.0)
    records.serve()
    key = unknown_key()
    if was_valid:
        key = records.caller().key
        assert get(api, key).status == 404
        records.revoke(key)
    before = look_ups(api, records)
    answers = pipelined(api, key, 200)
    assert {(answer.status, answer.error) for answer in answers} == {(401, "invalid_api_key")}
    assert look_ups(api, records) - before == 1 + 1


def test_unknown_keys_are_limited_for_each_client_address(api: ApiServer, records: Records) -> None:
    """A key that was valid before is not affected."""
    caller = records.caller()
    assert get(api, caller.key, "192.0.2.1").status == 404
    before = look_ups(api, records)
    assert [get(api, unknown_key(), "192.0.2.1").status for _ in range(LIMIT)] == [401] * LIMIT
    answer = get(api, unknown_key(), "192.0.2.1")
    refused = (answer.status, answer.error, answer.json["violated_policies"])
    assert refused == (429, "rate_limit_exceeded", ["address"])
    assert answer.json["retry_after"] == int(answer.headers["retry-after"]) >= 1
    policy = f'"address";q={LIMIT};w=3600'
    told = {"ratelimit-policy": policy, "x-ratelimit-limit": str(LIMIT), "x-ratelimit-remaining": "0"}
    assert answer.headers | told == answer.headers
    assert answer.headers["ratelimit"].startswith('"address";r=0;t=')
    assert look_ups(api, records) - before == LIMIT + 1
    assert get(api, unknown_key(), "192.0.2.2").status == 401
    assert get(api, caller.key, "192.0.2.1").status == 404
    records.client.delete(names.CONTROL)
    assert get(api, caller.key, "192.0.2.2").status == 503
    assert get(api, unknown_key(), "192.0.2.1").status == 503, "nobody knows whether a key is unknown"
