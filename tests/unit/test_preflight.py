"""What a rebuild costs, what prevents it, how far it is, and when it yields."""

import pytest

from projector.commands import rebuild
from projector.kafka.topics import Retention, Topic
from projector.ledger.control import ControlRecord
from projector.line.pace import Pacer
from projector.operate.words import duration
from projector.record import Partition
from projector.redis.store import Memory, Store
from schemas.settings import ProjectorSettings
from tests.harness import control

LEADS = Partition("crm.leads", 0)
MIB = 1_048_576


@pytest.mark.parametrize(
    ("writing", "limit", "expected"),
    [
        pytest.param((1,), 100 * MIB, (30, 60, "Redis's maxmemory"), id="as much as there is"),
        pytest.param((1, 2), 100 * MIB, (15, 60, "Redis's maxmemory"), id="as much as one of two"),
        pytest.param((1,), 0, (30, 150, "the machine's memory"), id="no bound in Redis"),
    ],
)
def test_memory(writing: tuple[int, ...], limit: int, expected: tuple[int, int, str]) -> None:
    memory = Memory(40 * MIB, limit, "noeviction", at_start=10 * MIB, resident=50 * MIB, machine=200 * MIB)
    needed, free, bound = rebuild._memory([memory], control.state_of(1, *writing))
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
    assert bool(rebuild._of_topics([topic])) == is_problem
    assert kept.deletes == is_problem


def test_a_missing_topic() -> None:
    topic = Topic("crm.leads", exists=False, allowed=True, partitions=(), leaderless=(), retention=None)
    assert "topic crm.leads: missing" in rebuild._of_topics([topic])[0]


def record(position: int | None) -> ControlRecord:
    return control.record_of(control.state_of(), {} if position is None else {LEADS: position})


@pytest.mark.parametrize(
    ("first", "position", "said"),
    [
        pytest.param(0, 3, [], id="all are there"),
        pytest.param(5, 5, ["begins at offset 5"], id="the first ones are gone"),
        pytest.param(5, None, ["begins at offset 5"], id="nothing was applied yet"),
        pytest.param(5, 3, ["begins at offset 5", "lost the offsets 3 to 4"], id="before they were read"),
    ],
)
def test_records_that_are_gone(first: int, position: int | None, said: list[str]) -> None:
    found = rebuild._lost(record(position), {LEADS: (first, 9)})
    assert [words in each for words, each in zip(said, found, strict=True)] == [True] * len(said)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (1.25, "1.2 s"), (89, "89 s"), (600, "10 min"), (5399, "90 min"), (7200, "2 h"), (864000, "10 d")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


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
