"""Rate-limit headers from the script's reply; its times are in microseconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.limits import exceeded, headers, seconds
from api.redis.store import Reply

REPLY = Reply(200, 1_700_000_000_000_001, 100, 10, 99, 100_000, 300, 10, 299, 33_334)


def test_headers() -> None:
    assert dict(headers(REPLY)) == {
        b"ratelimit-policy": b'"key";q=100;w=10, "organization";q=300;w=10',
        b"ratelimit": b'"key";r=99;t=1, "organization";r=299;t=1',
        b"x-ratelimit-limit": b"100",
        b"x-ratelimit-remaining": b"99",
        b"x-ratelimit-reset": b"1700000001",
    }


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
    assert dict(headers(reply))[b"x-ratelimit-limit"] == limit


@pytest.mark.parametrize(
    ("microseconds", "rounded"),
    [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (1_700_000_000_000_001, 1_700_000_001)],
)
def test_seconds_are_rounded_up(microseconds: int, rounded: int) -> None:
    assert seconds(microseconds) == rounded


@pytest.mark.parametrize(("violated", "policies"), [(1, ["key"]), (2, ["organization"]), (3, ["key", "organization"])])
def test_violated_policies(violated: int, policies: list[str]) -> None:
    error = exceeded(Reply(429, wait=1, violated=violated))
    assert (error.violated, error.retry_after) == (policies, 1)


@given(st.integers(1, 10**13))
def test_retry_after_is_long_enough_and_less_than_a_second_longer(wait: int) -> None:
    retry_after = exceeded(Reply(429, wait=wait, violated=1)).retry_after
    assert retry_after >= 1
    assert wait <= retry_after * 1_000_000 < wait + 1_000_000
