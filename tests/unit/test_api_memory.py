"""The bounded memory of a worker of the API, whatever callers send: uses of keys, latencies, what it keeps of keys, and
how many requests wait for the trial of a key.
"""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors import InvalidApiKey, TooManyGuesses, Unavailable
from api.keys import KnownKeys, Recent
from api.limits import Guesses
from api.metrics import BUCKETS_SECONDS, p99
from api.request import Credentials, Request, credentials
from api.usage import MAX_KEYS, MAX_REFUSED_KEYS, Usage
from schemas.api_keys import mint
from schemas.settings import Limit
from tests.harness import crm
from tests.harness.waiting import PATIENCE_SECONDS


def holder(digit: str = "1") -> Credentials:
    return credentials(f"Bearer {mint(crm.ORGANIZATION, digit * 30)}".encode())


def named(number: int) -> Credentials:
    name = b"key %d" % number
    return Credentials(name, name, name, name, name)


def figures(usage: Usage) -> dict[bytes, tuple[int, int, float]]:
    return {key: (used.requests, used.refusals, used.last) for key, used in usage._take().items()}


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        pytest.param([200, 304, 404, 400], (4, 0, 4.0), id="answered"),
        pytest.param([200, 401, 403, 429, 503], (5, 3, 5.0), id="refused"),
        pytest.param([401, 401], (2, 2, 2.0), id="never accepted"),
        pytest.param([401, 200], (2, 1, 2.0), id="accepted later"),
    ],
)
def test_requests_and_refusals(statuses: list[int], expected: tuple[int, int, float]) -> None:
    """Also if the same key is sent in another form, such as `bearer`: then it has other credentials."""
    usage, forms = Usage(), (holder(), holder())
    for at, status in enumerate(statuses):
        usage.count(forms[at % 2], status, at + 1.0)
    assert figures(usage) == {forms[0].key_record: expected}
    assert figures(usage) == {}, "it begins again"
    usage.count(forms[0], 200, 9.0)
    assert figures(usage) == {forms[0].key_record: (1, 0, 9.0)}


def test_unknown_keys_take_no_place_of_others() -> None:
    usage = Usage()
    for number in range(MAX_REFUSED_KEYS + 100):
        usage.count(named(-number - 1), 401, 1.0)
    for number in range(MAX_KEYS + 100):
        usage.count(named(number), 200, 1.0)
    assert len(figures(usage)) == MAX_REFUSED_KEYS + MAX_KEYS


def test_what_could_not_be_written_is_kept() -> None:
    usage = Usage()
    usage.count(holder("1"), 200, 1.0)
    usage._keep(usage._take())
    usage.count(holder("1"), 429, 2.0)
    assert figures(usage) == {holder("1").key_record: (2, 1, 2.0)}


SLOTS = len(BUCKETS_SECONDS) + 1


def buckets(**counts: int) -> list[int]:
    """Returns counts by the number of their bucket: `_0`, `_1` …"""
    return [counts.get(f"_{number}", 0) for number in range(SLOTS)]


@pytest.mark.parametrize(
    ("counted", "seconds"),
    [
        pytest.param(buckets(), 0.0, id="no responses"),
        pytest.param(buckets(_0=1000), 0.0005, id="all fast"),
        pytest.param(buckets(_0=990, _4=10), 0.0005, id="one in a hundred may be slow"),
        pytest.param(buckets(_0=989, _4=11), 0.01, id="more than that may not"),
        pytest.param(buckets(_4=1), 0.01, id="a single one"),
        pytest.param(buckets(_0=10, _11=1), 2.0, id="slower than the last bound"),
    ],
)
def test_p99(counted: list[int], seconds: float) -> None:
    assert p99(counted) == seconds


def name(number: int) -> bytes:
    return b"%d" % number


@pytest.mark.parametrize("most", [1, 2, 7, 100])
@given(numbers=st.lists(st.integers(0, 200), max_size=400))
def test_it_never_holds_more_and_never_an_old_value(most: int, numbers: list[int]) -> None:
    recent: Recent[int] = Recent(most)
    last: dict[int, int] = {}
    for place, number in enumerate(numbers):
        assert recent.get(name(number)) in (None, last.get(number))
        recent.put(name(number), place)
        last[number] = place
        assert recent.get(name(number)) == place
    assert sum(recent.get(name(number)) is not None for number in range(201)) <= max(2, most)


def test_what_is_used_is_kept() -> None:
    recent: Recent[int] = Recent(100)
    recent.put(b"used", 1)
    for number in range(1000):
        recent.put(name(number), number)
        assert recent.get(b"used") == 1


class IdleStore:
    """Redis has nothing to do, and its shards are complete."""

    pending = 0

    def believes(self, _: bytes) -> bool:
        return True


def keys(max_in_flight: int, guesses: int = 100, clock: Any = lambda: 0.0) -> KnownKeys:
    store: Any = IdleStore()
    return KnownKeys(store, Guesses(Limit(guesses, 10)), max_in_flight, clock=clock)


def caller(organization: str = crm.ORGANIZATION) -> tuple[bytes, Credentials]:
    """Returns the header and the names of a new key."""
    header = f"Bearer {mint(organization)}".encode()
    return header, credentials(header)


REQUEST = Request(b"id", client="192.0.2.1")


@pytest.mark.parametrize(
    ("accepted", "error"), [(True, None), (False, InvalidApiKey), (None, Unavailable)], ids=["valid", "unknown", "lost"]
)
async def test_requests_with_the_same_key_wait_for_one_trial(
    accepted: bool | None, error: type[Exception] | None
) -> None:
    known, (header, first) = keys(max_in_flight=8), caller()
    trial = await known.admit(first, REQUEST)
    waiting = [asyncio.create_task(known.admit(first, REQUEST)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    with pytest.raises(Unavailable, match="2 requests wait for keys of this organization"):
        await asyncio.wait_for(known.admit(first, REQUEST), PATIENCE_SECONDS)
    known.settle(header, first, trial, accepted)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {error or type(None)}
    assert (known.known(header) is first) == (accepted is True)
    assert not known._waiting
    assert not known._trials


async def test_all_that_wait_for_a_trial_are_bounded_together() -> None:
    known, callers = keys(max_in_flight=4), [caller(crm.uuid(number)) for number in range(5)]
    trials = [await known.admit(each, REQUEST) for _, each in callers]
    waiting = [asyncio.create_task(known.admit(each, REQUEST)) for _, each in callers[:4]]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="4 requests are waiting for Redis"):
        await asyncio.wait_for(known.admit(callers[4][1], REQUEST), PATIENCE_SECONDS)
    for (header, each), trial in zip(callers, trials, strict=True):
        known.settle(header, each, trial, accepted=True)
    assert await asyncio.gather(*waiting) == [None] * 4


async def test_a_key_that_was_refused_is_tried_again_after_half_a_second() -> None:
    now = 7.0
    known, (header, unknown) = keys(8, guesses=2, clock=lambda: now), caller()
    known.settle(header, unknown, await known.admit(unknown, REQUEST), accepted=False)
    for now in (7.0, 7.4):  # noqa: B007 - the clock
        with pytest.raises(InvalidApiKey):
            await known.admit(unknown, REQUEST)
    now = 7.5
    assert await known.admit(unknown, REQUEST)
    with pytest.raises(TooManyGuesses):
        await known.admit(caller()[1], REQUEST)


async def test_only_unknown_keys_count_as_guesses() -> None:
    known = keys(8, guesses=1)
    for accepted in (True, None, True, False):
        header, each = caller()
        known.settle(header, each, await known.admit(each, REQUEST), accepted)
    with pytest.raises(TooManyGuesses):
        await known.admit(caller()[1], REQUEST)
