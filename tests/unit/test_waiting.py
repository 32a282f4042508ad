"""`eventually`: how tests wait, and what they say when it was in vain."""

import pytest

from tests.harness.waiting import eventually


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


async def test_in_vain_it_says_what_for_and_what_it_saw() -> None:
    with pytest.raises(TimeoutError, match=r"waited 0 s until the moon is blue; last seen: \[\]"):
        await eventually(list, "the moon is blue", timeout=0)


async def test_it_is_asked_once_more_after_the_deadline() -> None:
    """A machine that stood still until then is no reason to give up."""
    answers = iter([False, True])
    await eventually(lambda: next(answers), "ready", timeout=0.001)
    assert list(answers) == []


async def test_other_errors_go_through() -> None:
    with pytest.raises(ZeroDivisionError):
        await eventually(lambda: 1 / 0, "never")
