"""Tasks beside the requests are started again."""

import asyncio
import logging

import pytest

from leadview import background
from leadview.background import keep


async def test_a_task_that_failed_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "_PAUSE_SECONDS", 0)
    outcomes = iter([ValueError("nobody expected this"), KeyError(), None])

    async def run() -> None:
        if outcome := next(outcomes):
            raise outcome

    await keep("the report", run)
    assert list(outcomes) == []
    assert [record.getMessage() for record in caplog.records] == ["the report failed, and is started again"] * 2
    assert all(record.levelno == logging.ERROR and record.exc_info for record in caplog.records)


async def test_a_task_that_is_cancelled_is_not_started_again() -> None:
    started = []

    async def run() -> None:
        started.append(1)
        await asyncio.Event().wait()

    task = asyncio.create_task(keep("the report", run))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert started == [1]
