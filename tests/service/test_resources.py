"""Every resource does everything, from its first event to the last key: one conformance test over all rows.

It uses what a row says, and nothing that only one resource has.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import msgspec
import orjson
import pytest

from schemas import api_keys, names
from schemas.control import number_of
from schemas.resources import ORGANIZATION, RESOURCES, ROOT, Resource
from tests.harness import crm
from tests.harness.api_server import ApiServer, Response
from tests.harness.generations import pattern
from tests.harness.leadview import Leadview
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.apache

OWN, OTHER, LIMITED = crm.ORGANIZATION, crm.OTHER_ORGANIZATION, crm.uuid(0xA3)
OWNER = names.organization(OWN)


class Client(NamedTuple):
    """An external tool, with a key for each organization, and for each purpose."""

    leadview: Leadview
    api: ApiServer
    keys: dict[str, str]

    def is_served(self, resource: Resource) -> bool:
        return self.get(resource).status == 200

    def get(
        self, resource: Resource, organization: str = OWN, method: str = "GET", purpose: str = "", **headers: str
    ) -> Response:
        path = f"{ROOT}/{resource.topic}/{resource.event_example.id}"
        return self.api.get(path, key=self.keys[organization + purpose], method=method, headers=headers)


@pytest.fixture(params=["none", pytest.param("zstd", marks=pytest.mark.long)])
def client(leadview: Leadview, request: pytest.FixtureRequest) -> Iterator[Client]:
    """With documents as JSON, and compressed."""
    leadview.settings["compression"] = request.param
    leadview.publish_all(crm.organization(organization_id=each) for each in (OWN, OTHER))
    limits = {"key": {"quota": 1, "window_seconds": 3600}}
    leadview.publish(crm.organization(organization_id=LIMITED, rate_limits=limits))
    leadview.publish_all(event(resource, organization=each) for each in (OWN, LIMITED) for resource in RESOURCES)
    owners = {OWN: OWN, OTHER: OTHER} | {LIMITED + resource.noun: LIMITED for resource in RESOURCES}
    keys = {name: api_keys.mint(owner) for name, owner in owners.items()}
    leadview.publish_all(
        crm.api_key(id=crm.uuid(0xF00 + number), organization_id=owners[name], hash=api_keys.key_hash(key))
        for number, (name, key) in enumerate(keys.items())
    )
    leadview.serve()
    with leadview.api() as api:
        yield Client(leadview, api, keys)


def event(resource: Resource, version: int = 1, organization: str = OWN) -> crm.Message:
    data = msgspec.to_builtins(resource.event_example) | {"version": version, "organization_id": organization}
    return crm.changed(resource, data)


def document(resource: Resource, organization: str = OWN) -> object:
    return orjson.loads(msgspec.json.encode(resource.example)) | {"organization_id": organization}


def stored_name(client: Client, resource: Resource, number: int) -> bytes:
    return names.document(resource, OWNER, client.leadview.generation(number), resource.event_example.id)


def test_every_resource_does_everything(client: Client) -> None:
    for resource in RESOURCES:
        served(client, resource)
        limited_and_isolated(client, resource)
    rebuilt_and_promoted(client)
    for resource in RESOURCES:
        verified_repaired_and_shown(client, resource)
    client.leadview.run("drop").ends(0, "generation 1 dropped")
    assert list(client.leadview.redis.scan_iter(pattern(1))) == []
    erased_and_created_again(client)
    for resource in RESOURCES:
        deleted(client, resource)


def served(client: Client, resource: Resource) -> None:
    found = client.get(resource)
    assert (found.status, found.json) == (200, document(resource))
    assert client.get(resource, **{"If-None-Match": found.headers["etag"]}).status == 304
    assert client.get(resource, method="HEAD").headers["etag"] == found.headers["etag"]
    assert client.get(resource, method="DELETE").status == 405


def limited_and_isolated(client: Client, resource: Resource) -> None:
    assert [client.get(resource, LIMITED, purpose=resource.noun).status for _ in range(2)] == [200, 429]
    assert client.get(resource, OTHER).status == 404


def rebuilt_and_promoted(client: Client) -> None:
    before = [client.get(resource).headers["etag"] for resource in RESOURCES]
    client.leadview.run("rebuild", "--promote", "--max-latency", "0").ends(0)
    wait_until(lambda: number_of(client.leadview.state().live) == 2, "generation 2 is live")
    assert [client.get(resource).headers["etag"] for resource in RESOURCES] == before
    assert all(client.leadview.redis.exists(stored_name(client, resource, 2)) for resource in RESOURCES)


def verified_repaired_and_shown(client: Client, resource: Resource) -> None:
    run, id_ = client.leadview.run, resource.event_example.id
    run("verify").ends(0)
    client.leadview.redis.setrange(stored_name(client, resource, 2), resource.body_offset + 3, b"~")
    [example] = run("verify", "--json").ends(1).json["examples"]
    assert (example["kind"], example["id"]) == (resource.topic, id_)
    run("rebuild", "--organization", OWN, f"--{resource.noun}", id_).ends(0, "1 records replayed in place")
    run("verify").ends(0)
    run("show", resource.noun, OWN, id_).ends(0, f"version 1 at {client.leadview.prefix}{resource.topic}:")


def erased_and_created_again(client: Client) -> None:
    leadview = client.leadview
    etags = [client.get(resource).headers["etag"] for resource in RESOURCES]
    leadview.publish(crm.deleted(ORGANIZATION, 2, OWN, OWN))
    wait_until(lambda: not list(leadview.redis.scan_iter(names.of_organization(OWNER))), "no key of it is left")
    assert {client.get(resource).status for resource in RESOURCES} == {401}
    leadview.publish(crm.organization(3, organization_id=OWN))
    for resource, etag in zip(RESOURCES, etags, strict=True):
        wait_until(partial(client.is_served, resource), f"{resource.noun} is reapplied")
        assert client.get(resource).headers["etag"] == etag


def deleted(client: Client, resource: Resource) -> None:
    client.leadview.publish(crm.deleted(resource, 2, resource.event_example.id))
    wait_until(lambda: client.get(resource).status == 404, f"{resource.noun} is deleted")
    name = stored_name(client, resource, 2)
    marker = client.leadview.redis.get(name)
    client.leadview.publish(event(resource))
    client.leadview.wait_until_current()
    assert client.leadview.redis.get(name) == marker, "an older event does not bring it back"
    client.leadview.publish(event(resource, 3))
    wait_until(partial(client.is_served, resource), f"{resource.noun} is created again")
