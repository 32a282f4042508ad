"""When bad records halt the line."""

import pytest

from projector.dead_letter import DeadLetter
from projector.errors import LineStopped
from projector.line.batch import WINDOW, BadRecordGuard
from schemas.faults import Fault

IT_IS_BAD = Fault("other", found="it is bad")


def bad(offset: int = 0, *, accepted: bool = False) -> DeadLetter:
    return DeadLetter("crm.leads", 0, offset, "key", "", 0, accepted=accepted, fault=IT_IS_BAD)


def stopped_after(pattern: str, share: float, row: int) -> int | None:
    """Returns how many records of `pattern` (`x` bad, `a` accepted, `.` good) were counted when the line halted."""
    guard = BadRecordGuard(share, row)
    for count, record in enumerate(pattern, start=1):
        if record == ".":
            guard.passed(1)
            continue
        try:
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
def test_when_the_line_stops(pattern: str, share: float, row: int, expected: int | None) -> None:
    assert stopped_after(pattern, share, row) == expected


def test_the_message_says_how_many_and_why() -> None:
    guard = BadRecordGuard(1, 2)
    guard.note(bad(7), Fault("other", found="first"))
    with pytest.raises(
        LineStopped,
        match=r"2 consecutive bad records \(LEADVIEW_DEAD_LETTER_ROW is 2\); the last: crm\.leads:0:8: second",
    ) as stopped:
        guard.note(bad(8), Fault("other", found="second"))
    assert stopped.value.bad == (("crm.leads", 0, 7), ("crm.leads", 0, 8))
    shared = BadRecordGuard(0.001, 50)
    shared.note(bad(7), IT_IS_BAD)
    shared.passed(1)
    with pytest.raises(
        LineStopped, match=r"2 of the last 1000 records are bad \(LEADVIEW_DEAD_LETTER_SHARE is 0\.001\);"
    ):
        shared.note(bad(9), IT_IS_BAD)


def test_a_fork_continues_the_count_of_its_guard_and_leaves_it_alone() -> None:
    """A batch that could not be covered is read again: its bad records must count only once, and its good ones end no
    sequence.
    """
    guard = BadRecordGuard(1, 3)
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


@pytest.mark.parametrize(("share", "row"), [pytest.param(1, 3, id="in a row"), pytest.param(0.002, 50, id="a share")])
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
