"""What is projected is served as the OpenAPI document of the API says: schemathesis finds no failure, and the examples
are true. And what is accepted with odd things in it is stored as the reference says, and served as JSON.
"""

import asyncio
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from docs.generate.answers import etag
from schemas import api_keys, resources
from schemas.resources import RESOURCES, ROOT
from tests.harness import crm, stored
from tests.harness.api_server import CONTACTS, LEADS, ApiServer
from tests.harness.crm import CONTACT, LEAD, ORGANIZATION, Message
from tests.harness.expected import documents_of
from tests.harness.hostile_events import MORSELS, NAUGHTY, check
from tests.harness.programs import printed_by
from tests.harness.projection import Projection


@pytest.mark.parametrize("projection", ["redis_server"], indirect=True)
async def test_schemathesis_finds_no_failure(projection: Projection, served: ApiServer) -> None:
    """With a key. That it is needed is one of the checks. It meets 200 and 304 as well: the examples are served."""
    organization = resources.LEAD.event_example.organization_id
    key = api_keys.mint(organization)
    own: dict[str, Any] = {"organization_id": organization}
    events = [crm.organization(id=organization, **own), crm.api_key(hash=api_keys.key_hash(key), **own)]
    events += [crm.changed(resource, msgspec.to_builtins(resource.event_example)) for resource in RESOURCES]
    await projection.apply(*(event.record(offset) for offset, event in enumerate(events)))
    for resource in RESOURCES:
        path = f"{ROOT}/{resource.topic}/{resource.event_example.id}"
        found = served.get(path, key=key)
        assert (found.status, found.body) == (200, msgspec.json.encode(resource.example))
        assert found.headers["etag"] == etag(resource), "which the document and the pages show"
        assert served.get(path, key=key, headers={"If-None-Match": found.headers["etag"]}).status == 304
    url = f"http://127.0.0.1:{served.port}/api/v1/ext/openapi.json"
    command = [sys.executable, "-m", "schemathesis.cli", "run", url, "--checks", "all", "--max-examples", "15"]
    command += ["--seed", "1", "--continue-on-failure", "--no-color"]
    command += ["--header", f"Authorization: Bearer {key}"]
    await asyncio.to_thread(printed_by, command)


ODD = (*MORSELS, *map(msgspec.json.encode, NAUGHTY))
PLACES: dict[resources.Kind, tuple[dict[str, Any], ...]] = {
    resources.LEAD: ({"attribution": {"a": "PLACE"}}, {"referrer": "PLACE"}),
    resources.CONTACT: ({"custom_fields": {"a": "PLACE"}}, {"first_name": "PLACE"}),
}


def accepted(kind: resources.Kind) -> Iterator[Message]:
    changed = crm.lead if kind is resources.LEAD else crm.contact
    for version, (odd, place) in enumerate(itertools.product(ODD, PLACES[kind]), start=2):
        message = crm.within(changed(version, **place), odd)
        if check(message) == "good":
            yield message


@pytest.mark.parametrize(
    ("entity", "path", "other"),
    [
        pytest.param((resources.LEAD, ORGANIZATION, LEAD), LEADS + LEAD, crm.contact(), id="a lead"),
        pytest.param((resources.CONTACT, ORGANIZATION, CONTACT), CONTACTS + CONTACT, crm.lead(), id="a contact"),
    ],
)
async def test_what_is_accepted_is_served(
    projection: Projection,
    served: ApiServer,
    entity: tuple[resources.Resource, str, str],
    path: str,
    other: Message,
) -> None:
    await projection.apply(crm.organization().record(), crm.api_key().record())
    await projection.apply(other.record())
    messages = list(accepted(entity[0]))
    assert len(messages) > 100
    for message in messages:
        record = message.record()
        await projection.apply(record)
        expected = documents_of([other.record(), record])
        assert projection.documents() == expected
        answer = served.get(path, key=crm.KEY)
        assert (answer.status, answer.body) == (200, expected[entity])
        assert answer.json["organization_id"] == ORGANIZATION
    stored.assert_consistent(projection.client)
