"""What a rebuild costs, what prevents it, how far it is, and when it yields."""

import pytest

from projector.kafka.topics import Retention, Topic
from projector.ledger.control import State
from projector.line.pace import Pacer
from projector.rebuild import preflight
from projector.rebuild.replay import Progress
from projector.record import Partition
from projector.redis.store import Store
from schemas.settings import ProjectorSettings
from tests.harness.generations import generation, ids

LEADS = Partition("crm.leads", 0)
MIB = 1_048_576


@pytest.mark.parametrize(
    ("writing", "memory", "expected"),
    [
        pytest.param((1,), {"maxmemory": 100 * MIB}, (30, 60, "Redis's maxmemory"), id="as much as there is"),
        pytest.param((1, 2), {"maxmemory": 100 * MIB}, (15, 60, "Redis's maxmemory"), id="as much as one of two"),
        pytest.param((1,), {"maxmemory": 0}, (30, 150, "the machine's memory"), id="no bound in Redis"),
    ],
)
def test_memory(writing: tuple[int, ...], memory: dict[str, int], expected: tuple[int, int, str]) -> None:
    info = {
        "used_memory": 40 * MIB,
        "used_memory_startup": 10 * MIB,
        "used_memory_rss": 50 * MIB,
        "total_system_memory": 200 * MIB,
    }
    needed, free, bound = preflight._memory(info | memory, State(generation(1), ids(*writing), {}, ("ledger",)))
    assert (needed // MIB, free // MIB, bound) == expected


@pytest.mark.parametrize(
    ("kept", "is_problem"),
    [
        pytest.param(Retention("compact", 604_800_000, -1), False, id="compacted"),
        pytest.param(Retention("delete", 604_800_000, -1), True, id="deleted after a week"),
        pytest.param(Retention("compact,delete", 604_800_000, -1), True, id="compacted, and deleted after a week"),
        pytest.param(Retention("delete", -1, 1000), True, id="deleted beyond a size"),
        pytest.param(Retention("delete", -1, -1), False, id="delete without a bound keeps everything"),
    ],
)
def test_retention(kept: Retention, is_problem: bool) -> None:
    topic = Topic("crm.leads", exists=True, allowed=True, partitions=(LEADS,), leaderless=(), retention=kept)
    assert bool(preflight._topics([topic])) == is_problem
    assert kept.deletes == is_problem


def test_a_missing_topic() -> None:
    topic = Topic("crm.leads", exists=False, allowed=True, partitions=(), leaderless=(), retention=None)
    assert "topic crm.leads is missing" in preflight._topics([topic])[0]


def test_records_that_are_gone() -> None:
    assert preflight._missing({LEADS: (0, 9)}) == []
    assert "begins at offset 5" in preflight._missing({LEADS: (5, 9)})[0]
    assert preflight._unread({LEADS: (5, 9)}, {LEADS: 5}) == []
    assert preflight._unread({LEADS: (5, 9)}, {LEADS: None}) == []
    assert "lost the offsets 3 to 4" in preflight._unread({LEADS: (5, 9)}, {LEADS: 3})[0]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (89, "89 s"), (600, "10 min"), (5399, "90 min"), (7200, "2.0 h")]
)
def test_duration(seconds: float, text: str) -> None:
    assert preflight.duration(seconds) == text


def test_progress() -> None:
    assert (Progress(3, 10).left, Progress(3, 10).finished) == (7, False)
    assert Progress(10, 10).finished
    assert Progress(0, 0).finished


def test_the_pause_adapts() -> None:
    pacer = Pacer.of_replay(Store(ProjectorSettings()), 0.010)  # it reads nothing here
    pauses = []
    for slowest in (0.005, 0.010, 0.011, 0.5, 0.5, *[1.0] * 6):
        pacer._adapt(slowest)
        pauses.append(pacer.pause)
    assert pauses[:5] == [0, 0, 0.01, 0.02, 0.04]
    assert pauses[-1] == 0.5, "it never stops completely"
    for _ in range(30):
        pacer._adapt(0.001)
    assert pacer.pause == 0


def test_small_batches_while_the_api_answers() -> None:
    store = Store(ProjectorSettings())  # it reads nothing here
    pacer, never = Pacer.of_replay(store, 0.010), Pacer.of_replay(store, 0)
    assert (pacer.yields, never.yields) == (True, False), "it is unknown yet whether an API worker answers requests"
    yields = []
    for slowest in (0.0, 0.0005, 0.0):
        pacer._answered_at -= 4.0
        pacer._adapt(slowest)
        yields.append(pacer.yields)
    assert yields == [True, True, True]
    pacer._answered_at -= 4.0
    pacer._adapt(0.0)
    assert not pacer.yields
