"""No key reads another organization, and what is erased leaves no byte (promises 5 and 6)."""

import itertools
from typing import Any, cast

from schemas import api_keys, names, resources
from tests.harness import crm, stored
from tests.harness.api_server import CONTACTS, LEADS, ApiServer
from tests.harness.crm import CONTACT, LEAD, ORGANIZATION, OTHER_ORGANIZATION
from tests.harness.projection import Projection
from tests.service.conftest import everywhere

ORGANIZATIONS = (ORGANIZATION, OTHER_ORGANIZATION)
KEYS = {
    organization: api_keys.mint(organization, digit * 30)
    for organization, digit in zip(ORGANIZATIONS, "12", strict=True)
}
PATHS = (LEADS, CONTACTS)


def entity(path: str, organization: str, *, shared: bool) -> str:
    """Ids are unique within an organization only: one pair is the same in both, one is not."""
    if shared:
        return LEAD if path == LEADS else CONTACT
    return crm.uuid(ORGANIZATIONS.index(organization) * 16 + (1 if path == LEADS else 2) + 0x700)


async def project_both(projection: Projection) -> None:
    for organization in ORGANIZATIONS:
        key = KEYS[organization]
        mine: dict[str, Any] = {"organization_id": organization}
        await projection.apply(
            crm.organization(id=organization, **mine).record(),
            crm.api_key(hash=api_keys.key_hash(key), **mine).record(),
        )
        for shared in (True, False):
            lead, contact = (entity(path, organization, shared=shared) for path in PATHS)
            await projection.apply(
                crm.contact(id=contact, first_name=f"of {organization}", **mine).record(),
                crm.lead(id=lead, contact_id=contact, referrer=f"of {organization}", **mine).record(),
            )


@everywhere
async def test_each_key_reads_its_own_organization_alone(projection: Projection, served: ApiServer) -> None:
    """Every key with every id of every organization: an answer is of the key's own organization, or 404 as for a record
    that does not exist.
    """
    await project_both(projection)
    nobodys = served.get(LEADS + crm.uuid(0xDEAD), key=KEYS[ORGANIZATION])
    for caller, owner, path, shared in itertools.product(ORGANIZATIONS, ORGANIZATIONS, PATHS, (True, False)):
        answer = served.get(path + entity(path, owner, shared=shared), key=KEYS[caller])
        if caller != owner and not shared:
            assert answer.headers.keys() == nobodys.headers.keys()
            assert answer.json | {"request_id": ""} == nobodys.json | {"request_id": ""}
            assert (answer.status, answer.error) == (404, "not_found")
            continue
        assert answer.status == 200
        assert answer.json["organization_id"] == caller
        other = next(organization for organization in ORGANIZATIONS if organization != caller)
        assert other.encode() not in answer.body


@everywhere
async def test_key_and_a_record_of_different_organizations_open_nothing(
    projection: Projection, served: ApiServer
) -> None:
    """The core product made a mistake: the key names one organization, its event another. And where Redis itself holds
    the wrong record under a key's name.
    """
    await project_both(projection)
    misminted = api_keys.mint(OTHER_ORGANIZATION, "x" * 30)
    event = crm.api_key(id=crm.uuid(0xF2), hash=api_keys.key_hash(misminted), organization_id=ORGANIZATION)
    await projection.apply(event.record())
    for path, owner in itertools.product(PATHS, ORGANIZATIONS):
        assert served.get(path + entity(path, owner, shared=False), key=misminted).error == "invalid_api_key"
    own, others = (
        names.api_key(names.organization(organization), api_keys.key_hash(KEYS[organization]))
        for organization in ORGANIZATIONS
    )
    record = cast(bytes, projection.client.get(others))
    projection.client.set(own, record)
    assert served.get(LEADS + LEAD, key=KEYS[ORGANIZATION]).error == "invalid_api_key"


@everywhere
async def test_deleted_contact_leaves_no_byte(projection: Projection, served: ApiServer) -> None:
    secrets: dict[str, Any] = {
        "first_name": "Zaphodia",
        "last_name": "Beeblebrox",
        "email": "zb@example.com",
        "phone": "+1 555 0100",
    }
    await project_both(projection)
    await projection.apply(crm.contact(version=2, custom_fields={"diet": "nutriamatic"}, **secrets).record(offset=1))
    assert b"Zaphodia" in served.get(LEADS + LEAD, key=KEYS[ORGANIZATION]).body
    await projection.apply(crm.deleted(resources.CONTACT, 3).record(offset=2))
    kept = stored.everything(projection.client)
    for secret in (*secrets.values(), "nutriamatic", "diet"):
        assert secret.encode() not in kept
    assert served.get(LEADS + LEAD, key=KEYS[ORGANIZATION]).json["contact"] is None
    assert served.get(CONTACTS + CONTACT, key=KEYS[ORGANIZATION]).status == 404
