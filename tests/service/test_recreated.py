"""An organization that is created again after a delete: the API serves nothing of it before it has been replayed.

The replay is run step by step, so that the test can ask the API between two steps.
"""

from collections.abc import AsyncIterator

import pytest

from projector.record import Record
from projector.redis.scripts import finish_work
from projector.upkeep import jobs, reapply
from schemas import api_keys, names, resources
from tests.harness import control, crm, stored
from tests.harness.api_server import LEADS, ApiServer, Response, patient, running_api
from tests.harness.generations import generation, ids
from tests.harness.projection import Projection
from tests.harness.waiting import eventually

OWNER = names.organization(crm.ORGANIZATION)
LOCK = names.job_lock("replay", crm.ORGANIZATION)
KEY, OTHER_KEY = api_keys.mint(crm.ORGANIZATION), api_keys.mint(crm.OTHER_ORGANIZATION)


def key(version: int, status: str = "active") -> Record:
    return crm.api_key(version, hash=api_keys.key_hash(KEY), status=status).record(version)


CREATED, DELETED, CREATED_AGAIN = (
    crm.organization(1).record(1),
    crm.deleted(resources.ORGANIZATION, 2).record(2),
    crm.organization(3).record(3),
)


class World:
    def __init__(self, projection: Projection, api: ApiServer) -> None:
        self.projection = projection
        self.api = api

    def get(self, api_key: str = KEY, lead: str = crm.LEAD) -> Response:
        return self.api.get(LEADS + lead, key=api_key)

    async def replay(self, *records: Record) -> None:
        """Apply these records as the replay of a recreated organization does."""
        await reapply.write(self.projection.store, list(records), ids(1))

    async def finish(self) -> None:
        self.projection.client.set(LOCK, "ours", ex=3600)
        head = self.projection.client.getrange(OWNER, 0, 21)
        finish = finish_work(organization=OWNER, lock=LOCK, head=head, holder=b"ours")
        assert await self.projection.store.run([finish]) == [1]


@pytest.fixture
async def world(alone: Projection) -> AsyncIterator[World]:
    control.write(alone.client)
    await alone.apply(CREATED, key(1), crm.lead(1).record(1))
    with running_api(patient(alone.settings.redis_url)) as api:
        world = World(alone, api)
        assert world.get().status == 200
        yield world


async def test_revoked_key_does_not_pass_while_its_organization_is_replayed(world: World) -> None:
    """The events of the key are applied again from the oldest on, with many others between them."""
    await world.projection.apply(key(2, "revoked"), DELETED)
    await jobs.run_all(world.projection.writing, world.projection.settings)
    assert world.get().status == 401
    await world.projection.apply(CREATED_AGAIN)
    await eventually(lambda: world.get().status == 503, "the key is looked up again, half a second later")
    await world.replay(key(1))
    assert world.get().status == 503
    await world.replay(key(2, "revoked"))
    assert world.get().status == 503
    await world.finish()
    assert world.get().status == 401


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param(key(2, "revoked"), id="revoked"),
        pytest.param(crm.deleted(resources.API_KEY, 2).record(2), id="deleted"),
        pytest.param(crm.tombstone(resources.API_KEY).record(2), id="deleted by a tombstone"),
    ],
)
@pytest.mark.parametrize(
    "erased",
    [
        pytest.param([], id="nothing is erased yet"),
        pytest.param([names.api_key_entity(OWNER, crm.API_KEY)], id="the API key is erased, and not yet its record"),
    ],
)
async def test_key_that_is_taken_away_while_its_organization_is_deleted_never_passes_again(
    world: World, taken: Record, erased: list[bytes]
) -> None:
    """The replay does not meet its events any more: the topic was compacted."""
    await world.projection.apply(DELETED)
    if erased:
        await jobs._drop(world.projection.store, OWNER, erased)
    await world.projection.apply(taken)
    await world.projection.apply(CREATED_AGAIN)
    await world.replay(crm.lead(1).record(1))
    await world.finish()
    assert world.get().status == 401


async def test_lead_that_was_erased_is_in_no_index(world: World) -> None:
    """The erasure is cut off after the lead, which is in no topic any more when the organization is replayed."""
    remaining = [crm.contact(1).record(1), crm.lead(id=crm.OTHER_LEAD).record(2)]
    await world.projection.apply(*remaining)
    await world.projection.apply(DELETED)
    await jobs._drop(world.projection.store, OWNER, [names.document(resources.LEAD, OWNER, generation(1), crm.LEAD)])
    await world.projection.apply(CREATED_AGAIN)
    await world.replay(*remaining)
    await world.finish()
    stored.assert_consistent(world.projection.client)


async def test_organization_created_again_gets_503_until_its_replay_has_ended(world: World) -> None:
    """503, whatever would be found or not found, and nothing is charged; other organizations are served."""
    other = crm.organization(id=crm.OTHER_ORGANIZATION, organization_id=crm.OTHER_ORGANIZATION)
    other_key = crm.api_key(organization_id=crm.OTHER_ORGANIZATION, hash=api_keys.key_hash(OTHER_KEY))
    await world.projection.apply(other.record(9), other_key.record(9), DELETED, CREATED_AGAIN)
    before = _charges(world)
    for api_key in (KEY, api_keys.mint(crm.ORGANIZATION)):
        for lead in (crm.LEAD, crm.uuid(0xDEAD), "not-an-id"):
            response = world.get(api_key, lead)
            assert (response.status, response.error) == (503, "service_unavailable")
            assert int(response.headers["retry-after"]) == response.json["retry_after"] >= 1
    assert _charges(world).items() <= before.items()  # some may have expired meanwhile
    assert world.get(OTHER_KEY).status == 404
    assert world.api.get("/readyz").status == 200
    await world.finish()
    assert world.get().status == 200


async def test_access_that_is_off_is_no_answer_until_the_replay_has_ended(world: World) -> None:
    await world.projection.apply(DELETED, crm.organization(3, api_access=False).record(3))
    assert world.get().status == 503
    await world.projection.apply(crm.organization(4, api_access=False).record(4))
    assert world.get().status == 503, "a change of the organization does not end the replay"
    await world.finish()
    assert world.get().status == 403


def _charges(world: World) -> dict[bytes, bytes]:
    client = world.projection.client
    return {name: client.get(name) for name in client.scan_iter(OWNER + b"q*")}
