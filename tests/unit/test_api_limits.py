"""Rate-limit headers from the script's reply; its times are in microseconds."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.errors import TooManyGuesses
from api.limits import Guesses, exceeded, headers, seconds
from api.redis.store import Reply
from schemas.gcra import interval
from schemas.settings import Limit

REPLY = Reply(200, 1_700_000_000_000_001, 100, 10, 99, 100_000, 300, 10, 299, 33_334)


def read(lines: bytes) -> dict[bytes, bytes]:
    """Returns the value of each header."""
    return dict(line.split(b": ", 1) for line in lines.split(b"\r\n") if line)


def test_headers() -> None:
    assert read(headers(REPLY)) == {
        b"ratelimit-policy": b'"key";q=100;w=10, "organization";q=300;w=10',
        b"ratelimit": b'"key";r=99;t=1, "organization";r=299;t=1',
        b"x-ratelimit-limit": b"100",
        b"x-ratelimit-remaining": b"99",
        b"x-ratelimit-reset": b"1700000001",
    }


@pytest.mark.parametrize(
    ("quota", "window", "remaining", "full_in", "more_in"),
    [
        pytest.param(100, 10, 100, 0, 0, id="full"),
        pytest.param(1, 60, 1, 0, 0, id="full, of one request"),
        pytest.param(6, 60, 5, 10_000_000, 10, id="one request was just made"),
        pytest.param(6, 60, 4, 20_000_000, 10, id="two were: the next one comes as soon"),
        pytest.param(6, 60, 4, 13_000_000, 3, id="it comes in the middle of an interval"),
        pytest.param(6, 60, 4, 12_000_001, 3, id="rounded up"),
        pytest.param(6, 60, 0, 60_000_000, 10, id="used up"),
        pytest.param(6, 60, 0, 50_000_001, 1, id="used up, and the next one is due"),
        pytest.param(3, 1, 2, 333_334, 1, id="less than a second"),
    ],
)
def test_t_is_when_more_requests_remain(quota: int, window: int, remaining: int, full_in: int, more_in: int) -> None:
    """draft-ietf-httpapi-ratelimit-headers-10: the effective window is that of `r`, not that of the whole quota."""
    by_key = Reply(200, 0, quota, window, remaining, full_in, 300, 10, 300, 0)
    found = read(headers(by_key))
    assert found[b"ratelimit"] == b'"key";r=%d;t=%d, "organization";r=300;t=0' % (remaining, more_in)
    assert found[b"x-ratelimit-reset"] == b"%d" % seconds(full_in), "when all of them remain"
    by_organization = Reply(200, 0, 300, 10, 300, 0, quota, window, remaining, full_in)
    assert read(headers(by_organization))[b"ratelimit"].endswith(b'"organization";r=%d;t=%d' % (remaining, more_in))


@given(st.integers(1, 1000), st.integers(1, 100_000), st.data())
def test_t_of_a_limit_that_was_hit_is_not_later_than_retry_after(quota: int, window: int, data: st.DataObject) -> None:
    step = interval(quota, window)
    wait = data.draw(st.integers(1, step))
    error = exceeded(Reply(429, 0, quota, window, 0, step * (quota - 1) + wait, 1, 1, 1, 0, wait, 1))
    [t] = re.findall(rb'"key";r=0;t=(\d+)', read(error.headers)[b"ratelimit"])
    assert (wait + 999_999) // 1_000_000 == int(t) <= error.retry_after


def test_t_of_an_address_is_retry_after() -> None:
    """It is when one more try remains, not when all of them do."""
    guesses = Guesses(Limit(2, 7200))
    began = time.time()
    guesses.charge(b"192.0.2.1")
    guesses.charge(b"192.0.2.1")
    with pytest.raises(TooManyGuesses) as raised:
        guesses.charge(b"192.0.2.1")
    error = raised.value
    assert read(error.headers)[b"ratelimit"] == b'"address";r=0;t=%d' % error.retry_after
    assert error.retry_after <= 3600
    full_at = int(read(error.headers)[b"x-ratelimit-reset"])
    assert began + 7200 <= full_at <= time.time() + 7200 + 2, "rounded up twice"


@pytest.mark.parametrize(
    ("remaining", "limit"),
    [
        pytest.param((5, 6), b"100", id="the key's"),
        pytest.param((6, 5), b"300", id="the organization's"),
        pytest.param((5, 5), b"100", id="equal: the key's"),
        pytest.param((0, 0), b"100", id="both used up: the key's"),
    ],
)
def test_the_tighter_limit(remaining: tuple[int, int], limit: bytes) -> None:
    key, organization = remaining
    reply = Reply(200, 0, 100, 10, key, 0, 300, 10, organization, 0)
    assert read(headers(reply))[b"x-ratelimit-limit"] == limit


@pytest.mark.parametrize(
    ("microseconds", "rounded"),
    [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (1_700_000_000_000_001, 1_700_000_001)],
)
def test_seconds_are_rounded_up(microseconds: int, rounded: int) -> None:
    assert seconds(microseconds) == rounded


@pytest.mark.parametrize(("violated", "policies"), [(1, ["key"]), (2, ["organization"]), (3, ["key", "organization"])])
def test_violated_policies(violated: int, policies: list[str]) -> None:
    error = exceeded(replace(REPLY, status=429, wait=1, violated=violated))
    assert (error.violated, error.retry_after) == (policies, 1)


@given(st.integers(1, 10**13))
def test_retry_after_is_long_enough_and_less_than_a_second_longer(wait: int) -> None:
    retry_after = exceeded(replace(REPLY, status=429, wait=wait, violated=1)).retry_after
    assert retry_after >= 1
    assert wait <= retry_after * 1_000_000 < wait + 1_000_000
