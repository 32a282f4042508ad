"""The stopwatch for promises in seconds."""

import ctypes
import threading

from tests.harness.stopwatch import Stopwatch
from tests.harness.waiting import seconds_until


def stand_still(seconds: float) -> None:
    """No other thread of this process runs meanwhile: the call keeps the interpreter's lock."""
    ctypes.PyDLL(None).usleep(round(seconds * 1e6))


def test_time_goes_by() -> None:
    with Stopwatch() as stopwatch:
        threading.Event().wait(0.2)
        assert stopwatch.seconds + stopwatch.lost >= 0.2


def test_time_in_which_the_machine_stood_still_does_not_count() -> None:
    with Stopwatch() as stopwatch:
        threading.Event().wait(0.05)
        before = stopwatch.lost
        stand_still(0.5)
        assert stopwatch.lost - before >= 0.4
        before = stopwatch.lost
        threading.Event().wait(0.05)
        assert stopwatch.lost >= before, "nothing is forgotten when the thread wakes up"


async def test_the_seconds_until_something_is_true() -> None:
    answers = iter([False, False, True])

    def stands_still_and_answers() -> bool:
        stand_still(0.5)
        return next(answers)

    with Stopwatch() as stopwatch:
        seconds = await seconds_until(stands_still_and_answers, "it is true")
        assert seconds <= stopwatch.seconds + stopwatch.lost - 0.8
