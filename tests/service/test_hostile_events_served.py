"""Events with odd things in them, all the way: what is accepted is stored as the reference says, and served as JSON."""

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from schemas import api_keys, resources
from tests.harness import crm, stored
from tests.harness.api_server import CONTACTS, LEADS, ApiServer
from tests.harness.crm import CONTACT, LEAD, ORGANIZATION, Message
from tests.harness.expected import documents_of
from tests.harness.hostile_events import MORSELS, NAUGHTY, check
from tests.harness.projection import Projection

KEY = api_keys.mint(ORGANIZATION, "h" * 30)


ODD = (*MORSELS, *map(msgspec.json.encode, NAUGHTY))
PLACES: dict[resources.Kind, tuple[dict[str, Any], ...]] = {
    resources.LEAD: ({"attribution": {"a": "PLACE"}}, {"referrer": "PLACE"}),
    resources.CONTACT: ({"custom_fields": {"a": "PLACE"}}, {"first_name": "PLACE"}),
}


def accepted(kind: resources.Kind) -> Iterator[Message]:
    """Yields changes of one entity that are none too odd, each of a higher version."""
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
    await projection.apply(crm.organization().record(), crm.api_key(hash=api_keys.key_hash(KEY)).record())
    await projection.apply(other.record())
    messages = list(accepted(entity[0]))
    assert len(messages) > 100
    for message in messages:
        record = message.record()
        await projection.apply(record)
        expected = documents_of([other.record(), record])
        assert projection.documents() == expected
        answer = served.get(path, key=KEY)
        assert (answer.status, answer.body) == (200, expected[entity])
        assert answer.json["organization_id"] == ORGANIZATION
    stored.assert_consistent(projection.client)
