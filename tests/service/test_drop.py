"""Redis loses its state during a drop: the drop must stop, because the number may belong to another generation."""

import asyncio
from math import inf

import pytest
from msgspec.structs import replace

from projector.errors import Refused
from projector.ledger import copies, sweep
from projector.ledger.control import Generation
from projector.mapping import VERSION
from projector.rebuild import drop
from projector.redis.store import Store
from schemas import names, resources
from tests.harness import control, crm
from tests.harness.projection import Projection, open_projection
from tests.harness.services import RedisService
from tests.harness.waiting import eventually

LEAD = names.document(resources.LEAD, names.organization(crm.ORGANIZATION), 1, crm.LEAD)


def _is_dropping(projection: Projection) -> bool:
    copy = control.read(projection.client)
    return copy is not None and copy.state.dropping == (1,)


@pytest.mark.parametrize("back", [pytest.param(True, id="went back"), pytest.param(False, id="emptied")])
async def test_redis_forgets_a_drop(redis_server: RedisService, back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the drop continued, projectors would write no generation and cover no batch, or served keys would be lost."""
    monkeypatch.setattr(sweep, "_ACKNOWLEDGE_SECONDS", inf)
    async with open_projection(redis_server) as projection:
        writer = Store(projection.settings, writer_id="slow")  # the drop waits for it before its sweep
        await writer.memories()
        client = projection.client
        control.write(client, live=2, written=(1, 2), previous=1)
        await projection.apply(crm.lead().record(), generations=(1, 2))
        dropping = asyncio.create_task(drop.drop(projection.store, 1))
        await eventually(lambda: _is_dropping(projection), "it is being dropped")
        client.flushall()
        if back:
            control.write(client)
        await copies.current(projection.store)
        await projection.apply(crm.lead().record())
        await writer.close()
        with pytest.raises(Refused, match="emptied or went back in time"):
            await dropping
        copy = control.read(client)
        assert copy is not None
        assert copy.state.written == (1,)
        assert client.exists(LEAD)


async def test_one_generation_is_always_written(projection: Projection) -> None:
    record = await control.complete(projection.store)
    with pytest.raises(Refused, match="Generation 1 is live"):
        await drop.drop(projection.store, 1)
    assert (await copies.current(projection.store)).stamp == record.stamp


async def test_redis_is_emptied_in_the_last_pass(redis_server: RedisService) -> None:
    """Nothing is left to sweep, but that does not mean that the drop is done."""
    async with open_projection(redis_server) as projection:
        record = await control.complete(projection.store)
        with pytest.raises(Refused, match="emptied or went back"):
            await sweep.sweep(projection.store, record, 1)


async def test_two_drops_of_one_generation(projection: Projection) -> None:
    """The slower one finds that the other has finished: Redis was not emptied."""
    await control.complete(projection.store)
    await projection.apply(crm.lead().record())
    record = await copies.change(
        projection.store,
        await copies.current(projection.store),
        lambda state: replace(
            state,
            live=2,
            written=(2,),
            last=2,
            dropping=(1,),
            generations={2: Generation(VERSION, "2026-01-01T00:00:00Z")},
        ),
    )
    assert await sweep.sweep(projection.store, record, 1) == 2
    assert await sweep.sweep(projection.store, record, 1) == 0
