"""The guards of the tests themselves: each must be able to fail."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from tests.harness.leftovers import no_swallowed_errors, without_leftover_tasks


async def waits_for_its_task() -> None:
    await asyncio.create_task(asyncio.sleep(0))


async def cancels_its_task() -> None:
    asyncio.create_task(asyncio.sleep(60)).cancel()


async def test_a_running_task_is_found() -> None:
    begun = []

    async def leaves_a_task() -> None:
        begun.append(asyncio.create_task(asyncio.sleep(60)))

    with pytest.raises(AssertionError, match="left tasks running"):
        await without_leftover_tasks(leaves_a_task)()
    begun[0].cancel()


@pytest.mark.parametrize("test", [waits_for_its_task, cancels_its_task])
async def test_an_ended_task_is_fine(test: Callable[[], Awaitable[None]]) -> None:
    await without_leftover_tasks(test)()


def test_a_reported_error_is_found() -> None:
    with pytest.raises(AssertionError, match="elsewhere reported"), no_swallowed_errors("elsewhere"):
        logging.getLogger("elsewhere").error("an exception was never retrieved")


def test_a_warning_is_fine() -> None:
    with no_swallowed_errors("elsewhere"):
        logging.getLogger("elsewhere").warning("slow")
