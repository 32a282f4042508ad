"""What a projector does besides its lines: when the first generation is served, and what a replay repairs."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from projector.ledger import copies
from projector.ledger.writers import Sessions, Writing
from projector.redis.apply import apply
from projector.redis.store import Store
from projector.upkeep import jobs
from projector.upkeep.keeper import Keeper
from schemas import names, resources
from schemas.settings import ProjectorSettings, load
from tests.harness import control, crm, stored
from tests.harness.generations import generation, ids
from tests.harness.leadview import Leadview
from tests.harness.projection import intent_of

pytestmark = pytest.mark.apache

OWNER = names.organization(crm.ORGANIZATION)


class World:
    """A keeper whose turns the test starts, on a Leadview without lines: the test stores the positions."""

    def __init__(self, leadview: Leadview, store: Store, settings: ProjectorSettings) -> None:
        self.leadview = leadview
        self.store = store
        self.settings = settings
        self.redis: Any = leadview.redis
        self.writing = Writing(store, Sessions(store), "test")
        self.turn = Keeper(settings, self.writing)._turn

    def apply_all(self) -> None:
        """Store the positions of lines that have applied everything that is published."""
        for partition, end in self.leadview.topics.end_offsets.items():
            self.redis.hset(names.CONTROL, names.position(*partition), f"{end} 0 0 -1 -")


@pytest.fixture
async def world(leadview: Leadview) -> AsyncIterator[World]:
    settings = load(ProjectorSettings, leadview.environment())
    store = Store(settings)
    try:
        yield World(leadview, store, settings)
    finally:
        await store.close()


async def test_the_first_generation_is_served_when_all_is_applied(world: World) -> None:
    world.leadview.publish(crm.lead(1))
    await world.turn()
    assert not world.leadview.is_served()
    world.apply_all()
    await world.turn()
    assert world.leadview.is_served()


async def test_end_offsets_are_read_again_if_another_projector_was_first(world: World) -> None:
    """Redis is emptied, and filled again up to the end offsets that this keeper read first."""
    world.leadview.publish(crm.lead(1))
    await world.turn()
    world.redis.flushall()
    await copies.current(world.store)
    world.apply_all()
    world.leadview.publish(crm.lead(1, id=crm.OTHER_LEAD), crm.contact(1))
    await world.turn()
    assert not world.leadview.is_served(), "the API would return 404 for a lead that exists"


async def test_a_drop_whose_command_died_is_finished(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("projector.upkeep.keeper._SWEEP_SECONDS", 0.0)
    control.write(world.redis, live=2, written=(2,), dropping=(1,))
    left = names.document(resources.LEAD, OWNER, generation(1), crm.LEAD)
    world.redis.set(left, b"")
    await world.turn()
    assert world.redis.exists(left), "its command may still be at work"
    await world.turn()
    assert not world.redis.exists(left)
    assert world.leadview.state().known == {*ids(2)}


async def test_a_shard_is_complete_while_an_organization_is_still_replayed(world: World) -> None:
    """Others do not wait for it. The organization itself is answered with 503 (`test_recreated.py`)."""
    world.leadview.publish(crm.deleted(resources.ORGANIZATION, 1), crm.lead(1), crm.organization(2))
    await copies.current(world.store)
    await apply(world.store, [intent_of(crm.deleted(resources.ORGANIZATION, 1).record(0))], ids(1))
    await apply(world.store, [intent_of(crm.organization(2).record(1))], ids(1))
    assert world.redis.smembers(names.JOBS)
    world.apply_all()
    await world.turn()
    assert world.leadview.is_served()
    assert (await jobs._head(world.store, OWNER))[1] == b"R", "it is due to be replayed"


@pytest.mark.parametrize(
    "dropped",
    [
        pytest.param(
            names.document(resources.CONTACT, OWNER, generation(1), crm.CONTACT),
            id="a contact, and with it the index of its first lead",
        ),
        pytest.param(names.contact_leads(OWNER, generation(1), crm.CONTACT), id="the index of its other leads"),
        pytest.param(names.document(resources.LEAD, OWNER, generation(1), crm.LEAD), id="a lead"),
        pytest.param(names.api_key(OWNER, crm.key_hash(1)), id="what an API key is looked up by"),
        pytest.param(names.api_key_entity(OWNER, crm.API_KEY), id="an API key"),
    ],
)
async def test_an_erasure_that_was_overtaken_leaves_nothing_wrong(world: World, dropped: bytes) -> None:
    """The organization is recreated when the first batch of its keys is gone: the keys that are left show the same
    events as the records that are read again."""
    messages = [crm.contact(1), crm.lead(1), crm.lead(1, id=crm.OTHER_LEAD), crm.api_key(1)]
    await control.complete(world.store)
    world.leadview.publish_all(messages)
    intents = [intent_of(message.record(offset)) for offset, message in enumerate(messages)]
    await apply(world.store, [intent_of(crm.organization(1).record(0)), *intents], ids(1))
    before = stored.values(world.redis)
    await apply(world.store, [intent_of(crm.deleted(resources.ORGANIZATION, 2).record(1))], ids(1))
    assert await jobs._drop(world.store, OWNER, [dropped]) > 0
    await apply(world.store, [intent_of(crm.organization(3).record(2))], ids(1))
    await jobs.run_all(world.writing, world.settings)
    stored.assert_consistent(world.redis)
    assert stored.documents(world.redis).keys() == before.keys()
    assert world.redis.exists(names.api_key(OWNER, crm.key_hash(1)))
    await apply(world.store, [intent_of(crm.contact(2, first_name="Grace").record(9))], ids(1))
    stored.assert_consistent(world.redis)


async def test_bad_records_of_a_recreated_organization_are_parked_again(world: World) -> None:
    """Its dead letters were erased with it."""
    bad = msgspec.structs.replace(crm.lead(1), value=b"{")
    others = msgspec.structs.replace(crm.lead(1, organization_id=crm.OTHER_ORGANIZATION), value=b"{")
    [record] = [record for record in world.leadview.publish(bad, others) if record.key == bad.key]
    await apply(world.store, [intent_of(crm.deleted(resources.ORGANIZATION, 1).record(0))], ids(1))
    await jobs.run_all(world.writing, world.settings)
    await apply(world.store, [intent_of(crm.organization(2).record(1))], ids(1))
    await jobs.run_all(world.writing, world.settings)
    field = names.dead_letter(record.topic, record.partition, record.offset)
    assert list(world.redis.hgetall(names.DEAD_LETTERS)) == [field.encode()]
    assert world.redis.getrange(OWNER, 0, 0) == b"L"
    assert world.redis.getrange(OWNER, 22, 22) == b"-"
