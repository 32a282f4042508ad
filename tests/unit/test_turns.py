"""Organizations take turns at Redis: none has more than its part, and none waits for another one's queue."""

import asyncio
from asyncio import Future, Task

import pytest

from api.redis.servers import Turns, _pause
from leadview.redis.errors import Unavailable

LONG = 60.0


class Callers:
    """Calls that have a turn, and calls that wait for one, in the order in which they had them."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.under_way: list[bytes] = []
        self.had: list[bytes] = []
        self.waiting: list[Task[None]] = []

    def call(self, name: bytes) -> None:
        turn = self.turns.take(name)
        if turn is None:
            self._begin(name)
        else:
            self.waiting.append(asyncio.get_running_loop().create_task(self._wait(name, turn)))

    async def end(self, name: bytes) -> None:
        self.under_way.remove(name)
        self.turns.leave(name)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _wait(self, name: bytes, turn: Future[None]) -> None:
        await self.turns.wait(name, turn)
        self._begin(name)

    def _begin(self, name: bytes) -> None:
        self.under_way.append(name)
        self.had.append(name)


async def test_one_organization_has_its_part_and_others_do_not_wait_for_it() -> None:
    callers = Callers(Turns(2, 8, most=100, timeout=LONG))
    for _ in range(5):
        callers.call(b"a")
    callers.call(b"b")
    assert sorted(callers.under_way) == [b"a", b"a", b"b"]
    for _ in range(3):
        await asyncio.sleep(0)
        await callers.end(b"a")
    assert callers.had == [b"a", b"a", b"b", b"a", b"a", b"a"]
    for name in (b"a", b"a", b"b"):
        await callers.end(name)
    assert callers.under_way == []


async def test_organizations_take_turns() -> None:
    callers = Callers(Turns(2, 2, most=100, timeout=LONG))
    for name in b"a", b"a", b"a", b"a", b"a", b"b", b"b", b"c":
        callers.call(name)
    await asyncio.sleep(0)
    while callers.under_way:
        await callers.end(callers.under_way[0])
    # `a` has all turns when the others come, and has none again before each of them had one.
    assert callers.had[:2] == [b"a", b"a"]
    assert sorted(callers.had[2:5]) == [b"a", b"b", b"c"]
    assert sorted(callers.had) == [b"a"] * 5 + [b"b"] * 2 + [b"c"]


async def test_calls_of_one_organization_keep_their_order() -> None:
    turns = Turns(1, 1, most=100, timeout=LONG)
    assert turns.take(b"a") is None
    waiting = [turns.take(b"a") for _ in range(3)]
    for turn in waiting:
        assert turn is not None
        assert not turn.done()
        turns.leave(b"a")
        assert turn.done()
    turns.leave(b"a")


async def test_what_waits_is_bounded_for_one_organization_and_for_all() -> None:
    turns = Turns(1, 8, most=8, timeout=LONG)
    taken = [turns.take(b"a") for _ in range(2)]
    with pytest.raises(Unavailable, match="2 requests of this organization"):
        turns.take(b"a")
    taken += [turns.take(name) for name in (b"b", b"b", b"c", b"c", b"d", b"d")]
    with pytest.raises(Unavailable, match="8 requests are waiting"):
        turns.take(b"e")


async def test_a_call_that_waits_too_long_fails_alone() -> None:
    turns = Turns(1, 8, most=100, timeout=0.01)
    assert turns.take(b"a") is None
    late, cancelled = turns.take(b"a"), turns.take(b"a")
    assert late is not None
    assert cancelled is not None
    with pytest.raises(Unavailable, match="not this request's turn"):
        await turns.wait(b"a", late)
    task = asyncio.create_task(turns.wait(b"a", cancelled))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    turns.leave(b"a")
    assert turns.take(b"a") is None, "those who gave up have no turn"


async def test_a_call_that_is_cancelled_as_it_gets_its_turn_passes_it_on() -> None:
    turns = Turns(1, 8, most=100, timeout=LONG)
    assert turns.take(b"a") is None
    turn, next_turn = turns.take(b"a"), turns.take(b"a")
    assert turn is not None
    assert next_turn is not None
    task = asyncio.create_task(turns.wait(b"a", turn))
    await asyncio.sleep(0)
    turns.leave(b"a")
    assert turn.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert next_turn.done()


def test_service_resumes_soon_however_long_the_outage_was() -> None:
    """The promise is a second after Redis's return: the pauses between attempts do not grow beyond a part of it."""
    assert _pause(0) <= 0.01
    assert max(_pause(failures) for failures in range(1000)) <= 0.3
