"""The bounded memory of the API: what it keeps of keys, and how many requests wait for the trial of a key."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors import InvalidApiKey, TooManyGuesses, Unavailable
from api.keys import KnownKeys, Recent
from api.limits import Guesses
from api.request import Credentials, Request, credentials
from schemas.api_keys import mint
from schemas.settings import Limit
from tests.harness import crm
from tests.harness.waiting import PATIENCE_SECONDS


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
