"""Documents in Redis as JSON and compressed, side by side: readers see the same bytes and ETags."""

from typing import Any

import orjson
import pytest

from schemas import api_keys, names, resources
from schemas.control import number_of
from tests.harness import control, crm, generations, stored
from tests.harness.api_server import CONTACTS, LEADS, ApiServer, patient, running_api
from tests.harness.leadview import Leadview
from tests.harness.projection import open_projection
from tests.harness.services import RedisService
from tests.harness.waiting import wait_until

FULL: dict[str, Any] = {"email": "ada@example.org", "custom_fields": {"note": "\u0000 “quoted” \\ \n", "n": 1}}
LEAD_AND_CONTACT = (crm.lead(tags=["vip"], contact_id=crm.CONTACT), crm.contact(**FULL))

ONE_LEAD = ("--organization", crm.ORGANIZATION, "--lead", crm.LEAD)
PATHS: dict[resources.Resource, str] = {resources.LEAD: LEADS + crm.LEAD, resources.CONTACT: CONTACTS + crm.CONTACT}


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


@pytest.mark.apache
@pytest.mark.long
def test_a_rebuild_converts_everything_and_readers_notice_nothing(leadview: Leadview) -> None:
    """Into both forms, as the setting of its program says. What is spoiled is found and repaired in both."""
    key = api_keys.mint(crm.ORGANIZATION)
    leadview.serve(crm.organization(), crm.api_key(hash=api_keys.key_hash(key)), *LEAD_AND_CONTACT)
    with leadview.api() as api:
        before = [_read(api, path, key) for path in PATHS.values()]
        for generation, compression in ((2, "zstd"), (3, "none")):
            done = leadview.run("rebuild", "--promote", "--max-latency", "0", compression=compression)
            assert done.status == 0, done.output
            wait_until(lambda: number_of(leadview.state().live) == generation, f"generation {generation} is live")  # noqa: B023
            found = stored.values(leadview.redis, generation).values()
            assert {b'"organization_id"' not in value for value in found} == {compression == "zstd"}
            _spoil(leadview.redis, resources.LEAD, generation)
            [example] = orjson.loads(leadview.run("verify", "--json").stdout)["examples"]
            assert (example["id"], example["fields"]) == (crm.LEAD, ["unreadable"])
            done = leadview.run("rebuild", *ONE_LEAD, compression=compression)
            assert done.status == 0, done.output
            assert [_read(api, path, key) for path in PATHS.values()] == before
            assert leadview.run("drop").status == 0


def _read(api: ApiServer, path: str, key: str) -> tuple[int, bytes, str]:
    answer = api.get(path, key=key)
    return answer.status, answer.body, answer.headers.get("etag", "")


def _spoil(client: Any, resource: resources.Resource, number: int) -> None:
    id_ = PATHS[resource].rpartition("/")[2]
    name = names.document(resource, names.organization(crm.ORGANIZATION), generations.stored(client, number), id_)
    client.setrange(name, client.strlen(name) - 9, b"\xff" * 9)
