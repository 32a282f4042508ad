"""What a worker of the API keeps and what waits in it is bounded, whatever callers send: uses of keys, latencies, what
it knows of keys, and the trials of keys. Organizations take turns at Redis: none has more than its part, and none waits
for another one's queue.
"""

import asyncio
import subprocess
import sys
from asyncio import Future, Task
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors import InvalidApiKey, TooManyGuesses, Unavailable
from api.keys import KnownKeys, Recent
from api.limits import Guesses
from api.metrics import p99
from api.redis import links
from api.redis.fair_queue import FairQueue
from api.redis.link import _pause
from api.request import Credentials, Request, credentials
from api.usage import MAX_KEYS, MAX_REFUSED_KEYS, Usage
from devstack.programs import ROOT
from runtime.redis import errors
from schemas.api_keys import mint
from schemas.metrics import LATENCY_BUCKETS
from schemas.settings import Limit
from tests.harness import crm
from tests.harness.waiting import PATIENCE_SECONDS


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
def test_usage_counts_requests_and_refusals_of_a_key_in_any_form(
    statuses: list[int], expected: tuple[int, int, float]
) -> None:
    """Also if the same key is sent in another form, such as `bearer`: then it has other credentials."""
    usage, forms = Usage(), (named(1), named(1))
    for at, status in enumerate(statuses):
        usage.count(forms[at % 2], status, at + 1.0)
    assert figures(usage) == {forms[0].key_record: expected}
    assert figures(usage) == {}, "it begins again"
    usage.count(forms[0], 200, 9.0)
    assert figures(usage) == {forms[0].key_record: (1, 0, 9.0)}


def count(usage: Usage, numbers: range, status: int = 200) -> None:
    for number in numbers:
        usage.count(named(number), status, 1.0)


def uncounted(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Returns how many requests were not counted, as the log says it."""
    said = [record for record in caplog.records if record.name == "api.usage"]
    caplog.clear()
    return [vars(record)["requests"] for record in said]


def test_unknown_keys_take_no_place_of_others(caplog: pytest.LogCaptureFixture) -> None:
    usage = Usage()
    count(usage, range(-MAX_REFUSED_KEYS - 1, 0), 401)
    count(usage, range(MAX_KEYS + 1))
    assert len(figures(usage)) == MAX_REFUSED_KEYS + MAX_KEYS
    assert uncounted(caplog) == [2]
    assert figures(usage) == {}
    assert uncounted(caplog) == []


def test_what_could_not_be_written_is_kept() -> None:
    usage = Usage()
    usage.count(named(1), 200, 1.0)
    usage._keep(usage._take())
    usage.count(named(1), 429, 2.0)
    assert figures(usage) == {named(1).key_record: (2, 1, 2.0)}


def test_what_is_kept_has_the_same_bound(caplog: pytest.LogCaptureFixture) -> None:
    usage = Usage()
    count(usage, range(MAX_KEYS))
    unwritten = usage._take()
    count(usage, range(MAX_KEYS, MAX_KEYS + 100))
    usage._keep(unwritten)
    assert len(figures(usage)) == MAX_KEYS
    assert uncounted(caplog) == [100]


def buckets(**counts: int) -> list[int]:
    """Returns counts by the number of their bucket: `_0`, `_1` …"""
    return [counts.get(f"_{number}", 0) for number in range(len(LATENCY_BUCKETS) + 1)]


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
def test_p99_is_the_upper_bound_of_its_bucket(counted: list[int], seconds: float) -> None:
    assert p99(counted) == seconds


def name(number: int) -> bytes:
    return b"%d" % number


@pytest.mark.parametrize("most", [1, 2, 7, 100])
@given(numbers=st.lists(st.integers(0, 200), max_size=400))
def test_recent_values_are_never_more_and_never_old(most: int, numbers: list[int]) -> None:
    recent: Recent[int] = Recent(most)
    last: dict[int, int] = {}
    for place, number in enumerate(numbers):
        assert recent.get(name(number)) in (None, last.get(number))
        recent.put(name(number), place)
        last[number] = place
        assert recent.get(name(number)) == place
    assert sum(recent.get(name(number)) is not None for number in range(201)) <= max(2, most)


def test_recent_value_that_is_used_is_kept() -> None:
    recent: Recent[int] = Recent(100)
    recent.put(b"used", 1)
    for number in range(1000):
        recent.put(name(number), number)
        assert recent.get(b"used") == 1


def keys(
    max_in_flight: int, guesses: int = 100, clock: Any = lambda: 0.0, believes: Callable[[bytes], bool] = lambda _: True
) -> KnownKeys:
    """Redis has nothing to do, and its shards are complete, unless `believes` says something else."""
    store: Any = SimpleNamespace(pending=0, believes=believes)
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
    assert (known.known(header) is first, len(known._waiting), len(known._trials)) == (accepted is True, 0, 0)


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


@pytest.mark.parametrize(
    ("now", "believed", "error"),
    [
        pytest.param(7.4, True, InvalidApiKey, id="not within half a second"),
        pytest.param(7.5, True, TooManyGuesses, id="after half a second, as another guess"),
        pytest.param(7.4, False, Unavailable, id="nobody can know it if its shard is incomplete"),
        pytest.param(7.5, False, Unavailable, id="nor is it a guess then"),
    ],
)
async def test_key_that_was_refused_is_tried_again(now: float, believed: bool, error: type[Exception]) -> None:
    times = iter((7.0, 7.0, now))
    known, (header, unknown) = keys(8, guesses=1, clock=lambda: next(times), believes=lambda _: believed), caller()
    known.settle(header, unknown, await known.admit(unknown, REQUEST), accepted=False)
    with pytest.raises(error):
        await known.admit(unknown, REQUEST)


async def test_only_unknown_keys_count_as_guesses() -> None:
    known = keys(8, guesses=1)
    for accepted in (True, None, True, False):
        header, each = caller()
        known.settle(header, each, await known.admit(each, REQUEST), accepted)
    with pytest.raises(TooManyGuesses):
        await known.admit(caller()[1], REQUEST)


LONG = 60.0


class Callers:
    """Calls of these organizations: those that have a turn, and those that wait for one, in the order in which they had
    them.
    """

    def __init__(self, turns: FairQueue, *names: bytes) -> None:
        self.turns = turns
        self.under_way: list[bytes] = []
        self.had: list[bytes] = []
        self.waiting: list[Task[None]] = []
        for name in names:
            turn = turns.take(name)
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
    callers = Callers(FairQueue(2, 8, most=100, timeout=LONG), *[b"a"] * 5, b"b", b"b")
    assert sorted(callers.under_way) == [b"a", b"a", b"b", b"b"]
    await callers.end(b"b")
    for ended in range(3):
        await asyncio.sleep(0)
        in_order = [True] * ended + [False] * (3 - ended)
        assert (callers.under_way.count(b"a"), [task.done() for task in callers.waiting]) == (2, in_order)
        await callers.end(b"a")
    assert callers.had == [b"a", b"a", b"b", b"b", b"a", b"a", b"a"]
    for name in (b"a", b"a", b"b"):
        await callers.end(name)
    assert (callers.under_way, callers.turns.pending, callers.turns._under_way) == ([], 0, {})


async def test_organization_with_many_requests_waits_for_the_others() -> None:
    callers = Callers(FairQueue(2, 2, most=100, timeout=LONG), *[b"a"] * 5, b"b", b"b", b"c")
    await asyncio.sleep(0)
    while callers.under_way:
        assert len(callers.under_way) <= 2
        await callers.end(callers.under_way[0])
    # `a` has all turns when the others come, and has none again before each of them had one.
    assert callers.had[:2] == [b"a", b"a"]
    assert sorted(callers.had[2:5]) == [b"a", b"b", b"c"]
    assert sorted(callers.had) == [b"a"] * 5 + [b"b"] * 2 + [b"c"]


async def test_what_waits_is_bounded_for_one_organization_and_for_all() -> None:
    turns = FairQueue(1, 8, most=8, timeout=LONG)
    taken = [turns.take(b"a") for _ in range(2)]
    with pytest.raises(errors.Unavailable, match="2 requests of this organization"):
        turns.take(b"a")
    taken += [turns.take(name) for name in (b"b", b"b", b"c", b"c", b"d", b"d")]
    with pytest.raises(errors.Unavailable, match="8 requests are waiting"):
        turns.take(b"e")


async def test_call_that_waits_too_long_fails_alone() -> None:
    callers = Callers(FairQueue(1, 8, most=100, timeout=0.01), *[b"a"] * 3)
    await asyncio.sleep(0)
    late, cancelled = callers.waiting
    cancelled.cancel()
    with pytest.raises(errors.Unavailable, match="not this request's turn"):
        await late
    await callers.end(b"a")
    assert callers.turns.take(b"a") is None, "those who gave up have no turn"


async def test_call_that_is_cancelled_as_it_gets_its_turn_passes_it_on() -> None:
    callers = Callers(FairQueue(1, 8, most=100, timeout=LONG), *[b"a"] * 3)
    await asyncio.sleep(0)
    cancelled, following = callers.waiting
    callers.turns.leave(b"a")
    cancelled.cancel()
    await asyncio.wait_for(following, PATIENCE_SECONDS)
    assert cancelled.cancelled()


def test_service_resumes_soon_however_long_the_outage_was() -> None:
    """The promise is a second after Redis's return, or after the promotion of a replica: all pauses before the API sees
    that, and between its attempts, are a part of it together.
    """
    assert _pause(0) <= 0.01
    longest = max(_pause(failures) for failures in range(1000))
    assert longest <= 0.3
    assert links._CHECK_SECONDS + links._MAP_PAUSE_SECONDS + longest <= 0.7


@pytest.mark.parametrize(
    ("files", "connections", "that_wait"),
    [
        pytest.param(1_128, 500, 500, id="fewer than both need"),
        pytest.param(100, 1, 0, id="hardly any"),
    ],
)
def test_a_low_limit_of_open_files_is_shared_by_connections_and_requests_that_wait(
    files: int, connections: int, that_wait: int
) -> None:
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, {files}))\n"
        "from api import server; print(*server._raise_file_limit())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.split() == [str(connections), str(that_wait)]
