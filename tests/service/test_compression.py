"""Documents in Redis as JSON and compressed, side by side: readers see the same bytes and ETags."""

import itertools
from typing import Any

import orjson
import pytest

from schemas import api_keys, names, resources
from schemas.control import number_of
from tests.harness import control, crm, generations, stored
from tests.harness.api_server import CONTACTS, LEADS, ApiServer, patient, running_api
from tests.harness.leadview import Leadview
from tests.harness.projection import Projection, open_projection
from tests.harness.services import RedisService
from tests.harness.waiting import wait_until

FULL: dict[str, Any] = {"email": "ada@example.org", "custom_fields": {"note": "\u0000 “quoted” \\ \n", "n": 1}}
LEAD_AND_CONTACT = (crm.lead(tags=["vip"], contact_id=crm.CONTACT), crm.contact(**FULL))

PATHS: dict[resources.Resource, str] = {resources.LEAD: LEADS + crm.LEAD, resources.CONTACT: CONTACTS + crm.CONTACT}


async def test_documents_are_the_same_however_they_are_stored(projection: Projection) -> None:
    """Lead and contact in either order, then another summary, a delete, and the contact again; each JSON or packed."""
    for lead_first, lead, contact, later in itertools.product([False, True], repeat=4):
        projection.client.flushdb()
        writes = [(LEAD_AND_CONTACT[0], lead), (LEAD_AND_CONTACT[1], contact)]
        writes = writes if lead_first else writes[::-1]
        writes += [(crm.contact(2, first_name="Augusta", **FULL), later), (crm.contact(3, last_name="King"), not later)]
        writes += [(crm.deleted(resources.CONTACT, 4), later), (crm.contact(5), contact), (crm.lead(2), later)]
        for offset, (message, compresses) in enumerate(writes):
            projection.store.compresses = False
            await projection.apply(message.record(offset), generations=(2,))
            projection.store.compresses = compresses
            await projection.apply(message.record(offset), generations=(1,))
            assert projection.documents(1) == projection.documents(2)
            stored.assert_consistent(projection.client)
        kinds = {entity[0]: _is_packed(value) for entity, value in stored.values(projection.client).items()}
        assert kinds == {resources.LEAD: later, resources.CONTACT: contact}


async def test_the_api_serves_compressed_documents(redis_server: RedisService) -> None:
    key = api_keys.mint(crm.ORGANIZATION)
    access = [crm.organization(), crm.api_key(hash=api_keys.key_hash(key))]
    async with open_projection(redis_server) as projection:
        projection.store.compresses = True
        await projection.apply(*(message.record() for message in (*access, *LEAD_AND_CONTACT)))
        documents = projection.documents()
        control.write(projection.client)
        with running_api(patient(redis_server.url)) as api:
            for resource, path in PATHS.items():
                found = api.get(path, key=key)
                assert (found.status, found.body) == (200, documents[resource, crm.ORGANIZATION, found.json["id"]])
                assert api.get(path, key=key, headers={"If-None-Match": found.headers["etag"]}).status == 304
                assert api.get(path, key=key, method="HEAD").headers["content-length"] == str(len(found.body))
                _spoil(projection.client, resource, 1)
                answer = api.get(path, key=key)
                assert (answer.status, answer.error) == (500, "internal_error")


@pytest.fixture
def api_key(leadview: Leadview) -> str:
    key = api_keys.mint(crm.ORGANIZATION)
    leadview.publish(crm.organization(), crm.api_key(hash=api_keys.key_hash(key)))
    return key


@pytest.mark.apache
@pytest.mark.long
def test_a_rebuild_converts_everything_and_readers_notice_nothing(leadview: Leadview, api_key: str) -> None:
    leadview.publish(*LEAD_AND_CONTACT)
    projector = leadview.start("run")
    leadview.wait_until_served()
    with leadview.api() as api:
        before = _read(api, api_key)
        assert not _packed(leadview, 1)
        projector.stop()
        leadview.start("run", compression="zstd")
        assert _read(api, api_key) == before
        _rebuild(leadview, 2, compression="zstd")
        assert _packed(leadview, 2)
        assert _read(api, api_key) == before
        _spoiled_and_repaired(leadview, api, api_key)
        assert _read(api, api_key) == before
        _rebuild(leadview, 3, compression="none")
        assert not _packed(leadview, 3)
        assert _read(api, api_key) == before


def _read(api: ApiServer, key: str) -> list[tuple[int, bytes, str]]:
    answers = [api.get(path, key=key) for path in PATHS.values()]
    return [(answer.status, answer.body, answer.headers.get("etag", "")) for answer in answers]


def _packed(leadview: Leadview, generation: int) -> bool:
    """Whether all documents are packed. Asserts that not only some are."""
    [answer] = {_is_packed(value) for value in stored.values(leadview.redis, generation).values()}
    return answer


def _is_packed(value: bytes) -> bool:
    return b'"organization_id"' not in value


def _rebuild(leadview: Leadview, generation: int, compression: str) -> None:
    if generation > 2:
        done = leadview.run("drop")
        assert done.status == 0, done.output
    done = leadview.run("rebuild", "--promote", "--max-latency", "0", compression=compression)
    assert done.status == 0, done.output
    wait_until(lambda: number_of(leadview.state().live) == generation, f"generation {generation} is live")
    done = leadview.run("verify")
    assert done.status == 0, done.output


def _spoiled_and_repaired(leadview: Leadview, api: ApiServer, key: str) -> None:
    _spoil(leadview.redis, resources.LEAD, 2)
    assert api.get(LEADS + crm.LEAD, key=key).status == 500
    done = leadview.run("verify", "--json")
    [example] = orjson.loads(done.stdout)["examples"]
    assert (example["id"], example["fields"]) == (crm.LEAD, ["unreadable"])
    repair = ("rebuild", "--organization", crm.ORGANIZATION, "--lead", crm.LEAD)
    done = leadview.run("show", "lead", crm.ORGANIZATION, crm.LEAD)
    assert (done.status, " ".join(repair) in " ".join(done.output.split())) == (1, True), done.output
    done = leadview.run(*repair, compression="zstd")
    assert done.status == 0, done.output


def _spoil(client: Any, resource: resources.Resource, number: int) -> None:
    id_ = PATHS[resource].rpartition("/")[2]
    name = names.document(resource, names.organization(crm.ORGANIZATION), generations.stored(client, number), id_)
    client.setrange(name, client.strlen(name) - 9, b"\xff" * 9)
