"""When bad records halt the line."""

import pytest

from projector.errors import LineStopped
from projector.line.guard import WINDOW, BadRecordGuard


def stopped_after(pattern: str, share: float, row: int) -> int | None:
    """Returns how many records of `pattern` (`x` bad, `.` good) were counted when the line halted, if it did."""
    guard = BadRecordGuard(share, row)
    for count, record in enumerate(pattern, start=1):
        if record != "x":
            guard.passed(1)
            continue
        try:
            guard.note("it is bad")
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
    ],
)
def test_when_the_line_stops(pattern: str, share: float, row: int, expected: int | None) -> None:
    assert stopped_after(pattern, share, row) == expected


def test_the_message_says_how_many_and_why() -> None:
    guard = BadRecordGuard(1, 2)
    guard.note("first")
    with pytest.raises(LineStopped, match="2 consecutive bad records; the last: second"):
        guard.note("second")


def test_a_fork_that_is_dropped_counts_nothing() -> None:
    """A batch that could not be covered is read again: its bad records must count only once."""
    guard = BadRecordGuard(1, 3)
    for _ in range(5):
        fork = guard.fork()
        fork.note("bad")
        fork.note("bad")
    guard.note("bad")
    guard.note("bad")
    with pytest.raises(LineStopped):
        guard.note("bad")


def test_a_fork_continues_the_count_of_its_guard() -> None:
    guard = BadRecordGuard(1, 3)
    guard.note("bad")
    guard.note("bad")
    with pytest.raises(LineStopped):
        guard.fork().note("bad")
