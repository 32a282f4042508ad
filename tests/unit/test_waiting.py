"""How tests wait, and what a timeout says."""

import time

import pytest

from tests.harness.waiting import eventually, last_false


async def test_it_returns_when_the_answer_is_true() -> None:
    answers = iter([None, 0, "", "ready"])
    await eventually(lambda: next(answers), "ready")
    assert list(answers) == []


async def test_a_coroutine_function_is_awaited() -> None:
    answers = iter([False, True])

    async def predicate() -> bool:
        return next(answers)

    await eventually(predicate, "ready")
    assert list(answers) == []


async def test_a_failed_assertion_means_not_yet() -> None:
    answers = iter([1, 2, 3])

    def predicate() -> bool:
        assert next(answers) == 3
        return True

    await eventually(predicate, "it is three")


async def test_a_timeout_names_the_condition_and_the_last_result() -> None:
    with pytest.raises(TimeoutError, match=r"waited 0 s until the moon is blue; last seen: \[\]"):
        await eventually(list, "the moon is blue", timeout=0)


async def test_it_is_called_once_more_after_the_deadline() -> None:
    """A machine that stood still until then must not make a test fail."""
    answers = iter([False, True])
    await eventually(lambda: next(answers), "ready", timeout=0.001)
    assert list(answers) == []


async def test_other_errors_go_through() -> None:
    with pytest.raises(ZeroDivisionError):
        await eventually(lambda: 1 / 0, "never")


def test_the_time_of_the_last_false_is_before_it_was_asked() -> None:
    """Between that call and its result, the condition may have become true already."""
    asked = []

    def predicate() -> bool | None:
        asked.append(time.monotonic())
        return (False, False, None, True)[len(asked) - 1]

    last = last_false(predicate, "the fourth call is true")
    assert last is not None
    assert asked[0] < last <= asked[1]


def test_there_is_no_last_false_if_it_was_true_at_once() -> None:
    assert last_false(lambda: True, "true") is None
