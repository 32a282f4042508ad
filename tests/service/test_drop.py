"""A drop while Redis loses its state, which must stop it, and while others change the control record."""

import asyncio
from math import inf

import pytest
from msgspec.structs import replace

from projector.errors import Refused
from projector.ledger import copies
from projector.ledger.control import ControlRecord, Generation
from projector.mapping import VERSION
from projector.rebuild import generations
from projector.redis.scripts import change_control
from projector.redis.store import Store
from schemas import names, resources
from tests.harness import control, crm
from tests.harness.faulty_proxy import Faults
from tests.harness.generations import generation, ids, numbers
from tests.harness.projection import Projection, behind_proxy, open_projection
from tests.harness.services import RedisService
from tests.harness.waiting import eventually

LEAD = names.document(resources.LEAD, names.organization(crm.ORGANIZATION), generation(1), crm.LEAD)


def _is_dropping(projection: Projection) -> bool:
    copy = control.read(projection.client)
    return copy is not None and copy.state.dropping == ids(1)


@pytest.mark.parametrize("back", [pytest.param(True, id="went back"), pytest.param(False, id="emptied")])
async def test_redis_forgets_a_drop(redis_server: RedisService, back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the drop continued, projectors would write no generation and cover no batch, or served keys would be lost."""
    monkeypatch.setattr(generations, "_ACKNOWLEDGE_SECONDS", inf)
    async with open_projection(redis_server) as projection:
        writer = Store(projection.settings, writer_id="slow")  # the drop waits for it before its sweep
        await writer.info("memory")
        client = projection.client
        control.write(client, live=2, written=(1, 2), previous=1)
        await projection.apply(crm.lead().record(), generations=(1, 2))
        dropping = asyncio.create_task(generations.drop(projection.writing, 1))
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
        assert numbers(copy.state.written) == [1]
        assert client.exists(LEAD)


async def test_one_generation_is_always_written(projection: Projection) -> None:
    record = await control.complete(projection.store)
    with pytest.raises(Refused, match="Generation 1 is live"):
        await generations.drop(projection.writing, 1)
    assert (await copies.current(projection.store)).stamp == record.stamp


async def test_redis_is_emptied_in_the_last_pass(redis_server: RedisService) -> None:
    """Nothing is left to sweep, but that does not mean that the drop is done."""
    async with open_projection(redis_server) as projection:
        record = await control.complete(projection.store)
        with pytest.raises(Refused, match="emptied or went back"):
            await generations.sweep(projection.writing, record, generation(1))


async def _begin_drop(projection: Projection) -> ControlRecord:
    """Two keys of generation 1 are left, which is being dropped."""
    await control.complete(projection.store)
    await projection.apply(crm.lead().record())
    return await copies.change(
        projection.store,
        await copies.current(projection.store),
        lambda state: replace(
            state,
            live=generation(2),
            written=ids(2),
            last=2,
            dropping=ids(1),
            generations={generation(2): Generation(VERSION, "2026-01-01T00:00:00Z")},
        ),
    )


async def test_two_drops_of_one_generation(projection: Projection) -> None:
    """The slower one finds that the other has finished: Redis was not emptied."""
    record = await _begin_drop(projection)
    assert await generations.sweep(projection.writing, record, generation(1)) == 2
    assert await generations.sweep(projection.writing, record, generation(1)) == 0


async def test_the_last_pass_of_a_drop_finds_nothing(redis_server: RedisService) -> None:
    """A key that comes to stand behind the cursor, as slots that move make it, is found by another pass."""
    async with open_projection(redis_server) as projection:
        record = await _begin_drop(projection)
        async with behind_proxy(redis_server, b"UNLINK") as (slow, proxy):
            dropping = asyncio.create_task(generations.sweep(slow, record, generation(1)))
            await eventually(lambda: proxy.holding, "the first keys are about to be deleted")
            owner = names.organization(crm.OTHER_ORGANIZATION)
            behind = names.document(resources.LEAD, owner, generation(1), crm.OTHER_LEAD)
            projection.client.set(behind, b"")
            proxy.faults = Faults()
            assert await dropping == 3
        assert not projection.client.exists(behind)


@pytest.mark.parametrize("finished", [pytest.param(True, id="finished"), pytest.param(False, id="changed")])
async def test_the_control_record_changes_at_the_end_of_a_drop(redis_server: RedisService, finished: bool) -> None:
    """A projector finishes the same drop at the same moment, or changes something else: the drop is not refused."""
    async with open_projection(redis_server) as projection:
        record = await _begin_drop(projection)
        async with behind_proxy(redis_server, change_control.sha) as (slow, proxy):
            dropping = asyncio.create_task(generations.sweep(slow, record, generation(1)))
            await eventually(lambda: proxy.holding, "the drop is about to end")
            if finished:
                assert await generations.sweep(projection.writing, record, generation(1)) == 0
            else:
                now = await copies.current(projection.store)
                await copies.change(projection.store, now, lambda state: replace(state, flipped_at=1))
            proxy.faults = Faults()
            assert await dropping == 2
        assert numbers((await copies.current(projection.store)).state.known) == [2]


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(change_control.sha, id="the first change: the comparison is noted"),
        pytest.param(b'"previous":"1', id="the second change: the generation is promoted"),
    ],
)
async def test_a_drop_ends_at_the_end_of_a_promotion(redis_server: RedisService, held: bytes) -> None:
    """The generations were compared, which may have taken an hour: the promotion is not refused."""
    async with open_projection(redis_server) as projection:
        control.write(projection.client, written=(1, 2), dropping=(3,))
        async with behind_proxy(redis_server, held) as (slow, proxy):
            promoting = asyncio.create_task(generations.verify_and_promote(slow.store, generations.Criteria()))
            await eventually(lambda: proxy.holding, "it is about to change the record")
            await generations.sweep(projection.writing, await copies.current(projection.store), generation(3))
            proxy.faults = Faults()
            promoted = await promoting
        assert promoted.flip == generations.Flip(1, 2)
        state = (await copies.current(projection.store)).state
        assert (state.live, bool(state.generations[generation(2)].verified_at), state.known) == (
            generation(2),
            True,
            {*ids(1, 2)},
        )
