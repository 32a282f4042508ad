"""Rate limits in a worker: buckets, headers, and the local limiter that decides while Redis cannot write charges."""

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.errors import TooManyGuesses
from api.limits import Guesses, LocalLimiter, exceeded, headers, seconds
from api.redis.store import Reply
from api.request import Credentials, credentials
from schemas import api_keys
from schemas.gcra import Bucket, bucket, interval
from schemas.layouts import Outcome
from schemas.settings import Limit
from tests.harness.crm import ORGANIZATION


@pytest.mark.parametrize(
    ("quota", "window", "full_in", "found"),
    [
        pytest.param(100, 10, 0, Bucket(100_000, 100, 0, 0), id="full"),
        pytest.param(100, 10, -5, Bucket(100_000, 100, 0, 0), id="full for some time"),
        pytest.param(100, 10, 150_000, Bucket(100_000, 98, 150_000, 0), id="a request and a half are missing"),
        pytest.param(10, 10, 9_500_000, Bucket(1_000_000, 0, 9_500_000, 500_000), id="half a request is left"),
        pytest.param(10, 10, 99_000_000, Bucket(1_000_000, 0, 10_000_000, 1_000_000), id="the limit was lowered"),
        pytest.param(3, 10, 0, Bucket(3_333_334, 3, 0, 0), id="the interval is rounded up"),
    ],
)
def test_bucket_shows_what_remains_and_when(quota: int, window: int, full_in: int, found: Bucket) -> None:
    assert (bucket(quota, window, full_in), interval(quota, window)) == (found, found.interval)


REPLY = Reply(Outcome.SERVED, 1_700_000_000_000_001, 100, 10, 100_000, 300, 10, 33_334)


def read(lines: bytes) -> dict[bytes, bytes]:
    """Returns the value of each header."""
    return dict(line.split(b": ", 1) for line in lines.split(b"\r\n") if line)


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
def test_ratelimit_t_is_when_more_requests_remain(
    quota: int, window: int, remaining: int, full_in: int, more_in: int
) -> None:
    """draft-ietf-httpapi-ratelimit-headers-10: the effective window is that of `r`, not that of the whole quota."""
    by_key = Reply(Outcome.SERVED, 0, quota, window, full_in, 300, 10, 0)
    found = read(headers(by_key))
    assert found[b"ratelimit"] == b'"key";r=%d;t=%d, "organization";r=300;t=0' % (remaining, more_in)
    assert found[b"x-ratelimit-reset"] == b"%d" % seconds(full_in), "when all of them remain"
    by_organization = Reply(Outcome.SERVED, 0, 300, 10, 0, quota, window, full_in)
    assert read(headers(by_organization))[b"ratelimit"].endswith(b'"organization";r=%d;t=%d' % (remaining, more_in))


@given(st.integers(1, 1000), st.integers(1, 100_000), st.data())
def test_ratelimit_t_of_a_limit_that_was_hit_is_not_later_than_retry_after(
    quota: int, window: int, data: st.DataObject
) -> None:
    step = interval(quota, window)
    wait = data.draw(st.integers(1, step))
    error = exceeded(Reply(Outcome.LIMITED, 0, quota, window, step * (quota - 1) + wait, 1, 1, 0))
    [t] = re.findall(rb'"key";r=0;t=(\d+)', read(error.headers)[b"ratelimit"])
    assert (wait + 999_999) // 1_000_000 == int(t) <= error.retry_after


def test_ratelimit_t_of_an_address_is_retry_after() -> None:
    """It is when one more try remains, not when all of them do."""
    guesses, began = Guesses(Limit(2, 7200)), time.time()
    guesses.charge(b"192.0.2.1")
    guesses.charge(b"192.0.2.1")
    with pytest.raises(TooManyGuesses) as raised:
        guesses.charge(b"192.0.2.1")
    found, retry_after = read(raised.value.headers), raised.value.retry_after
    assert found[b"ratelimit"] == b'"address";r=0;t=%d' % retry_after
    assert retry_after <= 3600
    full_at = int(found[b"x-ratelimit-reset"])
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
def test_x_ratelimit_headers_show_the_tighter_limit(remaining: tuple[int, int], limit: bytes) -> None:
    of_key, of_organization = (100 - remaining[0]) * 100_000, (300 - remaining[1]) * interval(300, 10)
    reply = Reply(Outcome.SERVED, 0, 100, 10, of_key, 300, 10, of_organization)
    assert read(headers(reply))[b"x-ratelimit-limit"] == limit


@pytest.mark.parametrize(
    ("waits", "policies"),
    [
        pytest.param((1, 0), ["key"], id="the key's"),
        pytest.param((0, 1), ["organization"], id="the organization's"),
        pytest.param((1, 2), ["key", "organization"], id="both: the longer wait"),
    ],
)
@given(wait=st.integers(1, 5 * 10**12))
@example(wait=1_000_001)
def test_retry_after_is_long_enough_and_less_than_a_second_longer(
    waits: tuple[int, int], policies: list[str], wait: int
) -> None:
    key_wait, organization_wait = (times * wait for times in waits)
    # Of a bucket of one request, the next one comes when it is full.
    error = exceeded(Reply(Outcome.LIMITED, 0, 1, 10**7, key_wait, 1, 10**7, organization_wait))
    assert error.violated == policies
    longer = max(key_wait, organization_wait)
    assert longer <= error.retry_after * 1_000_000 < longer + 1_000_000


SECOND = 1_000_000
SERVED = Reply(Outcome.SERVED, 1_700_000_000 * SECOND, 2, 10, 0, 3, 10, 0, charged=0, value=b"document")


def caller(digit: str = "1", organization: str = ORGANIZATION) -> Credentials:
    return credentials(f"Bearer {api_keys.mint(organization, digit * 30)}".encode())


class At:
    """A clock that is set by the test."""

    seconds = 1000.0

    def __call__(self) -> int:
        return round(self.seconds * 1e9)


def outcomes(limiter: LocalLimiter, *callers: Credentials, reply: Reply = SERVED) -> list[int]:
    return [limiter.charge(each, reply).outcome for each in callers]


@pytest.mark.parametrize("outcome", [Outcome.SERVED, Outcome.NO_ID, Outcome.MISSING])
def test_the_reply_says_what_remains(outcome: int) -> None:
    reply = LocalLimiter(clock=At()).charge(caller(), replace(SERVED, outcome=outcome))
    assert reply == replace(
        SERVED,
        outcome=outcome,
        key_full_in=5 * SECOND,
        organization_full_in=3_333_334,
    )
    assert [left.remaining for left in reply.buckets()] == [1, 2]


@pytest.mark.parametrize(
    ("before", "asks", "waits"),
    [
        pytest.param("11", "1", [5 * SECOND, 0], id="the key's"),
        pytest.param("112", "3", [0, 3_333_334], id="the organization's"),
        pytest.param("112", "1", [5 * SECOND, 3_333_334], id="both"),
    ],
)
def test_429_charges_neither_and_says_when(before: str, asks: str, waits: list[int]) -> None:
    clock = At()
    limiter = LocalLimiter(clock=clock)
    outcomes(limiter, *map(caller, before))
    for _ in range(3):
        reply = limiter.charge(caller(asks), SERVED)
        assert (reply.outcome, reply.value, [left.wait for left in reply.buckets()]) == (Outcome.LIMITED, b"", waits)
    clock.seconds += (max(waits) - 1) / SECOND
    assert limiter.charge(caller(asks), SERVED).outcome == Outcome.LIMITED
    clock.seconds += 1 / SECOND
    assert limiter.charge(caller(asks), SERVED).outcome == Outcome.SERVED


def test_local_limiter_with_many_callers_forgets_the_oldest() -> None:
    """The bucket that has not been charged for the longest time is forgotten. Organizations share none."""
    limiter = LocalLimiter(max_buckets=4, clock=At())
    many = [caller("2", f"00000000-0000-4000-8000-{number:012}") for number in range(50)]
    assert outcomes(limiter, *many) == [Outcome.SERVED] * 50
    assert len(limiter._full_at) == 4
    assert outcomes(limiter, many[-1], many[-1]) == [Outcome.SERVED, Outcome.LIMITED]


def test_what_is_in_regular_use_is_not_forgotten() -> None:
    limiter, large = LocalLimiter(max_buckets=4, clock=At()), replace(SERVED, key_quota=100, organization_quota=100)
    left = []
    for number in range(50):
        left.append(limiter.charge(caller(), large).buckets()[0].remaining)
        limiter.charge(caller("2", f"00000000-0000-4000-8000-{number:012}"), large)
    assert left == list(range(99, 49, -1))


@given(st.lists(st.integers(0, 4 * SECOND), min_size=1, max_size=60))
def test_never_more_than_the_quota_and_what_was_regained(pauses: list[int]) -> None:
    clock = At()
    limiter = LocalLimiter(clock=clock)
    served = []
    for pause in pauses:
        clock.seconds += pause / SECOND
        if limiter.charge(caller(), SERVED).outcome == Outcome.SERVED:
            served.append(clock.seconds)
    for start in range(len(served)):
        for end in range(start, len(served)):
            assert end - start + 1 <= 2 + (served[end] - served[start]) / 5 + 1e-3
