"""Rate limits as callers see them."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from schemas import api_keys, names
from tests.harness.api_server import LEADS, ApiServer, Response, patient, running_api
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService
from tests.harness.waiting import PATIENCE_SECONDS

NO_RECORD = LEADS + str(uuid4())
DAY = 24 * 3600
"""A window in which nothing comes back while a test runs, however slow the machine is."""


@pytest.fixture(scope="module")
def api(redis_server: RedisService) -> Iterator[ApiServer]:
    settings = patient(redis_server.url, key_rate_limit="5/1m", organization_rate_limit="8/1m")
    with running_api(settings) as api:
        yield api


def test_exactly_n_pass_over_all_keys_and_processes(
    api: ApiServer, records: Records, redis_server: RedisService
) -> None:
    """All keys of an organization and all processes of the API share the organization's limit."""
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


def test_only_the_clock_of_redis_counts(api: ApiServer, records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = records.caller(key_limit=(2, 3600))
    earliest = records.client.time()[0]
    assert api.get(NO_RECORD, key=caller.key).status == 404
    monkeypatch.setattr(
        time, "time", lambda: 4_000_000_000.0
    )  # also for the API, which runs in a thread of this process
    answers = [api.get(NO_RECORD, key=caller.key) for _ in range(2)]
    assert [answer.status for answer in answers] == [404, 429]
    reset = int(answers[1].headers["x-ratelimit-reset"])
    assert earliest <= reset - 3600 <= records.client.time()[0] + 1


def test_settings_are_the_default(api: ApiServer, records: Records) -> None:
    answer = api.get(NO_RECORD, key=records.caller().key)
    assert answer.headers["ratelimit-policy"] == '"key";q=5;w=60, "organization";q=8;w=60'
    assert answer.headers["ratelimit"] == '"key";r=4;t=12, "organization";r=7;t=8'


def test_retry_after_and_t_are_true(api: ApiServer, records: Records) -> None:
    """When `t` seconds have passed, more requests remain than `r` says; it is 0 if the bucket is full, and never later
    than `Retry-After`. Waiting so long is enough.
    """
    caller = records.caller(key_limit=(2, 2 * DAY), organization_limit=(50, 50 * DAY))
    lead = LEADS + records.lead(caller.organization_id, {"id": "x"})

    def unchanged() -> Response:
        """Returns an answer that is free of charge."""
        return api.get(lead, key=caller.key, headers={"If-None-Match": "*"})

    assert left(unchanged()) == [(2, 0), (50, 0)]
    (remaining, more_in), (_, of_organization) = left(api.get(lead, key=caller.key))
    assert (remaining, of_organization) == (1, more_in)
    assert DAY - PATIENCE_SECONDS <= more_in <= DAY
    pass_time(records, caller, more_in)
    assert left(unchanged())[0] == (2, 0)
    assert [api.get(lead, key=caller.key).status for _ in range(2)] == [200, 200]
    refused = api.get(lead, key=caller.key)
    retry_after = int(refused.headers["retry-after"])
    (remaining, more_in), _ = left(refused)
    assert (refused.status, remaining) == (429, 0)
    assert DAY - PATIENCE_SECONDS <= more_in <= retry_after <= DAY
    assert (refused.json["violated_policies"], refused.json["retry_after"]) == (["key"], retry_after)
    pass_time(records, caller, retry_after)
    assert api.get(lead, key=caller.key).status == 200


def pass_time(records: Records, caller: Caller, seconds: int) -> None:
    """Let the bucket of the key be full again so much earlier, as if time had passed."""
    records.client.decrby(names.key_limit(caller.name, api_keys.key_hash(caller.key)), seconds * 1_000_000)


def left(answer: Response) -> list[tuple[int, int]]:
    """Returns `r` and `t` of both limits."""
    return [(int(r), int(t)) for r, t in re.findall(r";r=(\d+);t=(\d+)", answer.headers["ratelimit"])]
