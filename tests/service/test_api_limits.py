"""Rate limits as callers see them."""

import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from schemas import api_keys
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer, Response, patient, running_api
from tests.harness.leadview import Leadview
from tests.harness.records import Records
from tests.harness.services import RedisService
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

NO_RECORD = LEADS + str(uuid4())
DAY = 24 * 3600
"""A window in which nothing comes back while a test runs, however slow the machine is."""


@pytest.fixture(scope="module")
def api(redis_server: RedisService) -> Iterator[ApiServer]:
    settings = patient(redis_server.url, key_rate_limit="5/1m", organization_rate_limit="8/1m")
    with running_api(settings) as api:
        yield api


@pytest.mark.parametrize("quota", [1, 5, 24])
def test_exactly_n_of_n_and_one_concurrent_callers_pass(api: ApiServer, records: Records, quota: int) -> None:
    caller = records.caller(key_limit=(quota, DAY), organization_limit=(1000, DAY))
    with ThreadPoolExecutor(quota + 1) as pool:
        answers = list(pool.map(lambda _: api.get(NO_RECORD, key=caller.key), range(quota + 1)))
    assert Counter(answer.status for answer in answers) == {404: quota, 429: 1}
    remaining = sorted(int(it.headers["x-ratelimit-remaining"]) for it in answers if it.status == 404)
    assert remaining == list(range(quota))


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


@pytest.mark.parametrize(
    ("key_limit", "organization_limit", "quota", "reset_in"),
    [
        pytest.param((2, 60), (9, 60), 2, 30, id="the key's is tighter"),
        pytest.param((9, 60), (2, 120), 2, 60, id="the organization's is tighter"),
        pytest.param((4, 60), (4, 120), 4, 15, id="equal: the key's"),
    ],
)
def test_the_older_headers_describe_the_tighter_limit(
    api: ApiServer,
    records: Records,
    key_limit: tuple[int, int],
    organization_limit: tuple[int, int],
    quota: int,
    reset_in: int,
) -> None:
    caller = records.caller(key_limit=key_limit, organization_limit=organization_limit)
    earliest = records.client.time()[0]
    answer = api.get(NO_RECORD, key=caller.key)
    latest = records.client.time()[0]
    assert answer.headers["x-ratelimit-limit"] == str(quota)
    assert answer.headers["x-ratelimit-remaining"] == str(quota - 1)
    assert earliest <= int(answer.headers["x-ratelimit-reset"]) - reset_in <= latest + 1


@pytest.mark.parametrize(
    ("key_limit", "organization_limit", "violated"),
    [
        pytest.param((1, DAY), (9, DAY), ["key"], id="the key's"),
        pytest.param((9, DAY), (1, DAY), ["organization"], id="the organization's"),
        pytest.param((1, DAY), (1, DAY), ["key", "organization"], id="both"),
    ],
)
def test_429_names_the_limits_that_were_hit(
    api: ApiServer,
    records: Records,
    key_limit: tuple[int, int],
    organization_limit: tuple[int, int],
    violated: list[str],
) -> None:
    caller = records.caller(key_limit=key_limit, organization_limit=organization_limit)
    began = time.monotonic()
    assert api.get(NO_RECORD, key=caller.key).status == 404
    answer = api.get(NO_RECORD, key=caller.key)
    passed = time.monotonic() - began
    assert (answer.status, answer.json["violated_policies"]) == (429, violated)
    assert answer.json["retry_after"] == int(answer.headers["retry-after"])
    assert DAY - passed <= answer.json["retry_after"] <= DAY


def test_refused_requests_charge_neither_limit(api: ApiServer, records: Records) -> None:
    caller = records.caller(key_limit=(1, DAY), organization_limit=(5, DAY))
    other = api_keys.mint(caller.organization_id)
    records.key(other, caller.organization_id)
    statuses = [api.get(NO_RECORD, key=caller.key).status for _ in range(5)]
    assert statuses == [404, 429, 429, 429, 429]
    assert '"organization";r=3;' in api.get(NO_RECORD, key=other).headers["ratelimit"]


def test_retry_after_is_true(api: ApiServer, records: Records) -> None:
    caller = records.caller(key_limit=(3, 12))
    retry_after, began = 0, time.monotonic()
    statuses: list[int] = []
    while 429 not in statuses:
        answer = api.get(NO_RECORD, key=caller.key)
        statuses.append(answer.status)
        retry_after = int(answer.headers.get("retry-after", "0"))
    passed = time.monotonic() - began
    assert max(1, math.ceil(4 - passed)) <= retry_after <= 4
    time.sleep(retry_after)  # the promise itself: waiting so long is enough
    assert api.get(NO_RECORD, key=caller.key).status == 404


def test_a_limit_that_was_changed_holds_at_once(api: ApiServer, records: Records) -> None:
    """A caller that used up a limit per hour must not be refused for an hour once the limit is one of seconds."""
    caller = records.caller(key_limit=(2, 3600))
    statuses = [api.get(NO_RECORD, key=caller.key).status for _ in range(3)]
    assert statuses == [404, 404, 429]
    records.organization(caller.organization_id, key_limit=(2, 2))
    answer = api.get(NO_RECORD, key=caller.key)
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    time.sleep(1)
    assert api.get(NO_RECORD, key=caller.key).status == 404


def test_t_is_true_wherever_leadview_runs(leadview_anywhere: Leadview) -> None:
    """When `t` seconds have passed, more requests remain than `r` says; it is 0 if the bucket is full, and never later
    than `Retry-After`. The limits are those of the organization's event.
    """
    key = api_keys.mint(crm.ORGANIZATION)
    limits = {"key": {"quota": 2, "window_seconds": 4}, "organization": {"quota": 50, "window_seconds": DAY}}
    leadview_anywhere.publish(
        crm.organization(rate_limits=limits), crm.api_key(hash=api_keys.key_hash(key)), crm.lead(1)
    )
    leadview_anywhere.start("run")
    lead = LEADS + crm.LEAD

    def left(answer: Response) -> list[tuple[int, int]]:
        """Returns `r` and `t` of both limits."""
        return [(int(r), int(t)) for r, t in re.findall(r";r=(\d+);t=(\d+)", answer.headers["ratelimit"])]

    with leadview_anywhere.api() as api:

        def unchanged() -> Response:
            """Returns an answer that is free of charge."""
            return api.get(lead, key=key, headers={"If-None-Match": "*"})

        wait_until(lambda: unchanged().status == 304, "the lead is served")
        assert left(unchanged()) == [(2, 0), (50, 0)]
        (remaining, more_in), (_, of_organization) = left(api.get(lead, key=key))
        assert (remaining, 1 <= more_in <= 2) == (1, True)
        assert DAY // 50 - PATIENCE_SECONDS <= of_organization <= DAY // 50
        time.sleep(more_in)  # the promise itself
        assert left(unchanged())[0] == (2, 0)
        answers = [api.get(lead, key=key)]
        while answers[-1].status != 429:
            answers.append(api.get(lead, key=key))
        (remaining, more_in), _ = left(answers[-1])
        assert (remaining, 1 <= more_in <= int(answers[-1].headers["retry-after"])) == (0, True)
