"""Slices that fail at the same time, as they do when Redis is full."""

import asyncio
import gc
from typing import Any

import pytest

from projector.errors import Unavailable
from projector.line.batch import _add, _first_of
from projector.redis.apply import Applied


async def fail() -> Applied:
    raise Unavailable("OOM command not allowed")


async def test_no_error_is_left_that_nobody_asks_for() -> None:
    """asyncio would report it with a traceback: "Task exception was never retrieved"."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    try:
        in_flight = {asyncio.create_task(fail()) for _ in range(3)}
        with pytest.raises(Unavailable):
            _add(Applied(), in_flight, await _first_of(in_flight))
        assert not in_flight, "all have failed in the same turn of the event loop"
        gc.collect()
        assert reported == []
    finally:
        asyncio.get_running_loop().set_exception_handler(None)
