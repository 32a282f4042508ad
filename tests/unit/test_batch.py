"""What a batch does with bad records, when they halt the line, and slices that fail at the same time."""

import asyncio
import gc
import re
from collections.abc import Coroutine
from itertools import chain
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from projector.dead_letter import DeadLetter
from projector.errors import Coordinates, LineStopped, Unavailable
from projector.kafka.accepted import Acceptance
from projector.line.apply import Applied
from projector.line.batch import WINDOW, BadRecordGuard, Batch
from projector.line.pace import Pacer
from projector.line.policy import Policy
from projector.offsets import Ranges
from projector.record import Partition, Record
from projector.redis.store import Store
from projector.upkeep import reapply
from schemas.faults import Fault
from schemas.settings import ProjectorSettings
from tests.harness import crm

LEADS, OTHER = Partition("crm.leads", 0), Partition("crm.leads", 1)
POLICY = Policy.of(ProjectorSettings())
ONE_BY_ONE = replace(POLICY, slice=-1.0)
"""A slice has no time at all, so it ends with each record."""


def records(pattern: str, partition: Partition = LEADS, first: int = 100) -> list[Record]:
    """Returns a record for each character: `x` is bad, `.` is good."""
    messages = [crm.lead(1), msgspec.structs.replace(crm.lead(1), value=b"{")]
    return [
        messages[letter == "x"].record(offset, partition.partition)
        for offset, letter in enumerate(pattern, start=first)
    ]


def accepting(*offsets: int, dropped: bool = False) -> "dict[Coordinates, Acceptance]":
    """Acceptances by coordinates."""
    acceptance = Acceptance(Ranges.of((offset, offset) for offset in offsets), 7, "known", dropped=dropped)
    return {("crm.leads", 0, offset): acceptance for offset in offsets}


def test_the_message_names_the_command_and_the_range() -> None:
    """The range ends with the last bad record that was read, so that accepting it takes as few commands as possible."""
    batch = Batch(BadRecordGuard(1, 3), POLICY)
    list(batch.slices({OTHER: records("..x", OTHER), LEADS: records("xxxx.x..")}, 100))
    assert batch.stopped
    begin = "3 consecutive bad records (LEADVIEW_DEAD_LETTER_ROW is 3); the last: crm.leads:0:101: "
    end = "for good: python -m projector dead-letters accept crm.leads:1:102 crm.leads:0:100-105 --note 'why'"
    assert re.fullmatch(f"{re.escape(begin)}.*accept these 6 bad records.*{re.escape(end)}", str(batch.stopped))
    assert batch.stopped.bad == (("crm.leads", 1, 102), ("crm.leads", 0, 100), ("crm.leads", 0, 101))


def test_accepted_records_are_parked_with_the_note_and_do_not_count() -> None:
    batch = Batch(BadRecordGuard(1, 3), POLICY, accepting(100, 102).get)
    slices = batch.slices({LEADS: records("xxxx")}, 100)
    assert ([*chain.from_iterable(slices)], batch.stopped) == ([], None)
    assert [(letter.offset, letter.accepted, letter.note, letter.accepted_at) for letter in batch.dead_letters] == [
        (100, True, "known", 7),
        (101, False, "", None),
        (102, True, "known", 7),
        (103, False, "", None),
    ]


def test_what_an_operator_has_dropped_is_not_parked_again() -> None:
    batch = Batch(BadRecordGuard(1, 2), POLICY, accepting(100, 102, dropped=True).get)
    slices = batch.slices({LEADS: records("x.x")}, 100)
    assert (len([*chain.from_iterable(slices)]), batch.dead_letters) == (1, [])


def test_slice_ends_after_a_time_whatever_the_records_are() -> None:
    """With no time at all, it ends with each record: also with a bad one, and behind the one that halts the line."""
    good = Batch(BadRecordGuard(1, 3), ONE_BY_ONE).slices({LEADS: records("......")}, 100)
    assert [len(intents) for intents in good] == [1, 1, 1, 1, 1, 1, 0]
    halted = Batch(BadRecordGuard(1, 3), ONE_BY_ONE)
    assert [len(intents) for intents in halted.slices({LEADS: records("xxxx.x..")}, 100)] == [0] * (2 + 5)
    assert "crm.leads:0:100-105" in str(halted.stopped), "the advice is the same"


def test_large_record_is_read_in_parts() -> None:
    """The event loop turns between them, whether the record is good or bad, and also behind the one that halts."""
    good = crm.lead(referrer="x" * 300_000).record(100)
    bad = crm.lead(stage="x" * 300_000).record(101)
    batch = Batch(BadRecordGuard(1, 3), POLICY)
    assert [len(intents) for intents in batch.slices({LEADS: [good, bad, good]}, 100)] == [0, 0, 1, 0, 0, 0, 0, 1, 0]
    assert [letter.offset for letter in batch.dead_letters] == [101]
    halted = Batch(BadRecordGuard(1, 1), ONE_BY_ONE)
    assert [*halted.slices({LEADS: [*records("x"), bad, bad]}, 100)] == [[]] * 4
    assert halted.stopped


class Full(Store):
    """Redis refuses each write."""

    async def run(self, *_: Any, **__: Any) -> list[Any]:
        raise Unavailable("OOM command not allowed")


async def test_no_error_is_left_that_nobody_asks_for() -> None:
    """asyncio would report it with a traceback: "Task exception was never retrieved"."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    polled, store = {LEADS: records("." * 2500)}, Full(ProjectorSettings())
    store._clustered = False
    batch = Batch(BadRecordGuard(1, 3), ONE_BY_ONE)
    session: Any = SimpleNamespace(generations=())
    try:
        with pytest.raises(Unavailable):
            await batch.write(polled, session, store, Pacer())
        del batch
        gc.collect()
        assert reported == []
    finally:
        asyncio.get_running_loop().set_exception_handler(None)


IT_IS_BAD = Fault("other", found="it is bad")


def bad(offset: int = 0, *, accepted: bool = False) -> DeadLetter:
    return DeadLetter("crm.leads", 0, offset, "key", "", 0, accepted=accepted, fault=IT_IS_BAD)


def stopped_after(pattern: str, share: float, row: int) -> int | None:
    """Returns how many records of `pattern` (`x` bad, `a` accepted, `.` good) were counted when the line halted."""
    guard = BadRecordGuard(share, row)
    for count, record in enumerate(pattern, start=1):
        try:
            if record == ".":
                guard.passed(1)
            else:
                guard.note(bad(count, accepted=record == "a"), IT_IS_BAD)
        except LineStopped:
            return count
    return None


@pytest.mark.parametrize(
    ("pattern", "share", "row", "expected"),
    [
        pytest.param("." * 5000, 0.1, 3, None, id="only good records"),
        pytest.param("xx.xx.xx.", 1, 3, None, id="a good record ends the sequence in time"),
        pytest.param("..xxx", 1, 3, 5, id="as many consecutive bad records as the limit"),
        pytest.param("x", 1, 1, 1, id="a limit of one"),
        pytest.param("x." * 100, 0.1, 50, None, id="as many as the share allows"),
        pytest.param("x." * 101, 0.1, 50, 201, id="one more than the share allows, before the window is full"),
        pytest.param("x........." * 300, 0.1, 50, None, id="exactly the share, for ever"),
        pytest.param("." * 2000 + "x." * 101, 0.1, 50, 2201, id="one more than the share, after many good ones"),
        pytest.param("x." * 100 + "." * WINDOW + "x." * 100, 0.1, 50, None, id="old ones leave the window"),
        pytest.param("x." * 100 + "." * 799 + "x", 0.1, 50, 1000, id="the first still counts as the last of 1000"),
        pytest.param("x." * 100 + "." * 800 + "x", 0.1, 50, None, id="the first has left with the 1001st"),
        pytest.param("a" * 5000, 0.1, 3, None, id="only accepted records"),
        pytest.param("xaaxaax", 1, 3, 7, id="accepted records do not end a sequence of bad ones"),
        pytest.param("." * 900 + "a" * 500 + "x" * 100, 0.1, 500, None, id="accepted records are not in the share"),
        pytest.param("." * 900 + "a" * 500 + "x" * 101, 0.1, 500, 1501, id="new ones beside them are"),
    ],
)
def test_line_stops_at_the_limit_of_bad_records(pattern: str, share: float, row: int, expected: int | None) -> None:
    assert stopped_after(pattern, share, row) == expected


def test_the_message_of_a_share_says_how_many_and_why() -> None:
    guard = BadRecordGuard(0.001, 50)
    guard.note(bad(7), IT_IS_BAD)
    guard.passed(1)
    said = r"2 of the last 1000 records are bad \(LEADVIEW_DEAD_LETTER_SHARE is 0\.001\); .*crm\.leads:0:9: it is bad"
    with pytest.raises(LineStopped, match=said):
        guard.note(bad(9), IT_IS_BAD)


LIMITS = pytest.mark.parametrize(
    ("share", "row"), [pytest.param(1, 3, id="in a row"), pytest.param(0.002, 50, id="a share")]
)


@LIMITS
def test_fork_continues_the_count_of_its_guard_and_leaves_it_alone(share: float, row: int) -> None:
    """A batch that could not be covered is read again: its bad records must count only once, and its good ones end no
    sequence.
    """
    guard = BadRecordGuard(share, row)
    for _ in range(5):
        fork = guard.fork()
        fork.note(bad(), IT_IS_BAD)
        fork.note(bad(), IT_IS_BAD)
        guard.fork().passed(1)
    guard.note(bad(), IT_IS_BAD)
    guard.note(bad(), IT_IS_BAD)
    guard.fork().passed(1)
    for each in (guard.fork(), guard):
        with pytest.raises(LineStopped):
            each.note(bad(), IT_IS_BAD)


@LIMITS
def test_what_is_accepted_meanwhile_counts_no_longer(share: float, row: int) -> None:
    """Only that: with one of two bad records accepted, one more is allowed again, and not two."""
    guard = BadRecordGuard(share, row)
    guard.note(bad(1), IT_IS_BAD)
    guard.note(bad(2), IT_IS_BAD)
    guard.forgive(lambda record: record == ("crm.leads", 0, 1))
    guard.note(bad(3), IT_IS_BAD)
    with pytest.raises(LineStopped) as stopped:
        guard.note(bad(4), IT_IS_BAD)
    assert [offset for _, _, offset in stopped.value.bad] == [2, 3, 4]


LARGE = crm.lead(1, referrer="x" * 1_000_000).record()
BAD = [replace(LARGE, value=(LARGE.value or b"")[:-1], offset=offset) for offset in range(3)]
"""Nothing of them is written, so that no turn of the event loop is one in which Redis is awaited."""


async def turns_of(work: Coroutine[Any, Any, object]) -> int:
    """Returns how often the event loop turns until this is done, which writes nothing."""
    working = asyncio.create_task(work)
    turns = 0
    while not working.done():
        await asyncio.sleep(0)
        turns += 1
    await working
    return turns


async def test_large_record_that_is_applied_again_is_read_in_parts() -> None:
    assert await turns_of(reapply.write(Store(ProjectorSettings()), BAD, ())) > len(BAD)


def test_records_that_are_applied_again_are_written_in_batches() -> None:
    """A few at a time, fewer if they are large."""
    small = records("." * 2 * reapply._BATCH + ".")
    assert [len(batch) for batch in reapply._batches(small)] == [reapply._BATCH, reapply._BATCH, 1]
    assert [len(batch) for batch in reapply._batches([LARGE, *small[:3], LARGE])] == [1, 4]


async def test_after_a_slice_that_took_long_the_other_line_has_time_for_itself() -> None:
    """A change of access needs many turns of the event loop."""
    batch, session = Batch(BadRecordGuard(1, 10), ONE_BY_ONE), SimpleNamespace(generations=())
    writing = batch.write({LEADS: BAD}, session, Store(ProjectorSettings()), Pacer())  # type: ignore[arg-type]
    assert await turns_of(writing) > 100
    assert batch.advances({LEADS: 0})[LEADS].position.offset == BAD[-1].next_offset
    assert batch.advances({}) == {}, "the partition was revoked meanwhile"
    assert batch.applied == Applied()
    assert len(batch.dead_letters) == len(BAD)
