"""Records that are applied again beside the lines give other work its turn, as those of a line do."""

import asyncio

import msgspec

from projector.redis.store import Store
from projector.upkeep import reapply
from schemas.settings import ProjectorSettings
from tests.harness import crm

LARGE = 1_000_000


async def test_a_large_record_is_read_in_steps() -> None:
    """It is bad, so that nothing is written: no turn is one in which Redis is awaited."""
    large = crm.lead(1, referrer="x" * LARGE).record()
    bad = msgspec.structs.replace(large, value=(large.value or b"")[:-1])
    store = Store(ProjectorSettings())
    writing = asyncio.create_task(reapply.write(store, [bad] * 3, ()))
    turns = 0
    while not writing.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await writing).written == 0
    assert turns > len([bad] * 3)
