"""The local limiter of a worker, used when Redis cannot write charges. The clock is part of each test, in seconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.limits import LocalLimiter
from api.redis.store import Reply
from api.request import Credentials, credentials
from schemas import api_keys
from tests.harness.crm import ORGANIZATION, OTHER_ORGANIZATION

SECOND = 1_000_000
SERVED = Reply(200, 1_700_000_000 * SECOND, 2, 10, 2, 0, 3, 10, 3, 0, charged=0, value=b"document")


def caller(digit: str = "1", organization: str = ORGANIZATION) -> Credentials:
    return credentials(f"Bearer {api_keys.mint(organization, digit * 30)}".encode())


class At:
    """A clock that is set by the test."""

    seconds = 1000.0

    def __call__(self) -> int:
        return round(self.seconds * 1e9)


def statuses(limiter: LocalLimiter, *callers: Credentials, reply: Reply = SERVED) -> list[int]:
    return [limiter.charge(each, reply).status for each in callers]


def test_the_quota_of_a_key_passes() -> None:
    limiter = LocalLimiter(clock=At())
    assert statuses(limiter, *[caller()] * 4) == [200, 200, 429, 429]


@pytest.mark.parametrize("status", [200, 400, 404])
def test_the_reply_says_what_remains(status: int) -> None:
    reply = LocalLimiter(clock=At()).charge(caller(), replace(SERVED, status=status))
    assert reply == replace(
        SERVED,
        status=status,
        key_remaining=1,
        key_full_in=5 * SECOND,
        organization_remaining=2,
        organization_full_in=3_333_334,
    )


@pytest.mark.parametrize(
    ("before", "asks", "violated", "wait"),
    [
        pytest.param("11", "1", 1, 5 * SECOND, id="the key's"),
        pytest.param("112", "3", 2, 3_333_334, id="the organization's"),
        pytest.param("112", "1", 3, 5 * SECOND, id="both: the longer wait"),
    ],
)
def test_429_charges_neither_and_says_when(before: str, asks: str, violated: int, wait: int) -> None:
    clock = At()
    limiter = LocalLimiter(clock=clock)
    statuses(limiter, *map(caller, before))
    for _ in range(3):
        reply = limiter.charge(caller(asks), SERVED)
        assert (reply.status, reply.violated, reply.wait, reply.value) == (429, violated, wait, b"")
    clock.seconds += (wait - 1) / SECOND
    assert limiter.charge(caller(asks), SERVED).status == 429
    clock.seconds += 1 / SECOND
    assert limiter.charge(caller(asks), SERVED).status == 200


def test_organizations_do_not_share_buckets() -> None:
    limiter = LocalLimiter(clock=At())
    assert statuses(limiter, *[caller()] * 3, caller("1", OTHER_ORGANIZATION)) == [200, 200, 429, 200]


def test_a_limit_that_was_lowered_holds_at_once() -> None:
    limiter = LocalLimiter(clock=At())
    hourly = replace(SERVED, key_window=3600, organization_window=3600)
    assert statuses(limiter, *[caller()] * 3, reply=hourly) == [200, 200, 429]
    assert limiter.charge(caller(), SERVED).wait == 5 * SECOND


def test_memory_is_bounded() -> None:
    """The bucket that has not been charged for the longest time is forgotten."""
    limiter = LocalLimiter(max_buckets=4, clock=At())
    many = [caller("2", f"00000000-0000-4000-8000-{number:012}") for number in range(50)]
    assert statuses(limiter, *many) == [200] * 50
    assert len(limiter._full_at) == 4
    assert statuses(limiter, many[-1], many[-1]) == [200, 429]


def test_what_is_in_regular_use_is_not_forgotten() -> None:
    limiter, large = LocalLimiter(max_buckets=4, clock=At()), replace(SERVED, key_quota=100, organization_quota=100)
    left = []
    for number in range(50):
        left.append(limiter.charge(caller(), large).key_remaining)
        limiter.charge(caller("2", f"00000000-0000-4000-8000-{number:012}"), large)
    assert left == list(range(99, 49, -1))


@given(st.lists(st.integers(0, 4 * SECOND), min_size=1, max_size=60))
def test_never_more_than_the_quota_and_what_was_regained(pauses: list[int]) -> None:
    clock = At()
    limiter = LocalLimiter(clock=clock)
    served = []
    for pause in pauses:
        clock.seconds += pause / SECOND
        if limiter.charge(caller(), SERVED).status == 200:
            served.append(clock.seconds)
    for start in range(len(served)):
        for end in range(start, len(served)):
            assert end - start + 1 <= 2 + (served[end] - served[start]) / 5 + 1e-3
