"""What runs beside the lines and beside requests: it continues after any error, except what an operator has to mend."""

import logging

import pytest

from projector.errors import Refused, Unavailable
from projector.stop import Stop, repeat
from runtime import background
from runtime.background import keep


async def test_task_that_failed_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "_PAUSE_SECONDS", 0)
    outcomes = iter([ValueError("nobody expected this"), KeyError(), None])

    async def run() -> None:
        if outcome := next(outcomes):
            raise outcome

    await keep("the report", run)
    assert list(outcomes) == []
    said = [(record.getMessage(), record.levelno, bool(record.exc_info)) for record in caplog.records]
    assert said == [("the report failed, and is started again", logging.ERROR, True)] * 2


async def run(*errors: Exception) -> int:
    """Returns how often a turn was called that raises these errors first, and then ends the repetition."""
    stop, coming, turns = Stop(), list(errors), 0

    async def turn() -> None:
        nonlocal turns
        turns += 1
        if coming:
            raise coming.pop(0)
        stop.set()

    await repeat("the test", turn, stop, lambda: 0.0)
    return turns


async def test_turn_that_fails_with_any_error_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    assert await run(Unavailable("Redis"), TypeError("a value of a record"), Unavailable("Kafka")) == 4
    said = [line.message for line in caplog.records]
    assert said[0] == "the test cannot continue now, and will be retried"
    assert said[1].startswith("the test failed, which is a defect of Leadview")
    assert "a value of a record" not in str([vars(line) for line in caplog.records])


async def test_what_an_operator_has_to_mend_ends_it() -> None:
    with pytest.raises(Refused):
        await run(Refused("the layout is another one"))
