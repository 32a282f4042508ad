"""Redis loses its state during a drop: the drop must stop, because the number may belong to another generation."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from projector.errors import Refused
from projector.ledger.generations import Description, change_writing
from projector.rebuild import drop
from schemas import names, resources
from tests.harness import crm
from tests.harness.projection import Projection, open_projection
from tests.harness.services import RedisService
from tests.harness.waiting import eventually

LEAD = names.document(resources.LEAD, names.organization(crm.ORGANIZATION), 1, crm.LEAD)


def generations(projection: Projection, live: int, *written: int) -> None:
    """Store the live generation and the written ones, all complete."""
    projection.client.hset(names.GENERATIONS, "live", live)
    for number in written:
        description = Description(1, "2026-01-01T00:00:00Z", complete=True)
        projection.client.hset(names.GENERATIONS, str(number), msgspec.json.encode(description))
    projection.client.hset(names.POSITIONS, "writing", ",".join(map(str, written)))


@pytest.mark.parametrize(
    ("reached", "back"),
    [
        pytest.param(lambda client: client.hexists(names.GENERATIONS, "dropping:1"), True, id="went back at once"),
        pytest.param(
            lambda client: client.hget(names.POSITIONS, "writing") == b"2", False, id="emptied before it is swept"
        ),
    ],
)
async def test_redis_forgets_a_drop(redis_server: RedisService, reached: Callable[[Any], bool], back: bool) -> None:
    """If the drop continued, projectors would write no generation and cover no batch, or served keys would be lost."""
    async with open_projection(redis_server) as projection:
        client = projection.client
        generations(projection, 2, 1, 2)
        await projection.apply(crm.lead().record(), generations=(1, 2))
        dropping = asyncio.create_task(drop.drop(projection.store, 1))
        await eventually(lambda: reached(client), "it is being dropped")
        client.flushall()
        if back:
            generations(projection, 1, 1)
        await projection.apply(crm.lead().record())
        with pytest.raises(Refused, match="emptied or went back in time"):
            await dropping
        assert client.hget(names.POSITIONS, "writing") in (b"1", None)
        assert client.exists(LEAD)


async def test_one_generation_is_always_written(projection: Projection) -> None:
    assert not await change_writing(projection.store, (1,), ())
    assert projection.client.hget(names.POSITIONS, "writing") is None


async def test_redis_is_emptied_in_the_last_pass(redis_server: RedisService) -> None:
    """Nothing is left to sweep, but that does not mean that the drop is done."""
    async with open_projection(redis_server) as projection:
        with pytest.raises(Refused, match="emptied or went back"):
            await drop._sweep(projection.store, 1)
