"""The core product, for benchmarks: any number of organizations, leads and contacts, as records of Kafka.

They are copies of sample data (`devstack.sample`) with new ids, chosen so that documents have a given size.
"""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import cycle
from random import Random
from string import ascii_lowercase
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from devstack.sample import SampleCrm
from projector import mapping
from projector.record import Record
from schemas import events, resources
from schemas.api_keys import RANDOM_LENGTH, key_hash, mint
from schemas.base62 import ALPHABET

_SEED = 7
_SAMPLE = 2000
_TOLERANCE = 0.1
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_WRITTEN = {
    *("first_name", "last_name", "email", "phone", "custom_fields", "referrer", "attribution", "tags", "events"),
    *("event_location", "booking_id"),
}
"""The fields of leads and contacts that people write, or that come from outside."""
_NEVER_REACHED = events.RateLimit(quota=10_000_000, window_seconds=10_000)
"""A limit that no benchmark reaches. Its window is long, so its counter stays in Redis, like that of a busy caller."""


class Tenant(Struct):
    """An organization, its API key, and the ids of its leads and contacts."""

    organization_id: str
    key: str
    leads: list[str]
    contacts: list[str]

    def ids(self, resource: resources.Resource) -> list[str]:
        """The ids of its records of a resource: none of a resource that is not measured."""
        return {resources.LEAD: self.leads, resources.CONTACT: self.contacts}.get(resource, [])


class Crm:
    """Creates records. `lead_bytes` is the size of a lead's document with its contact; None keeps all sizes.

    With `random_text`, all that people write, such as names and notes, is random letters of the same length.
    """

    def __init__(self, lead_bytes: int | None = None, *, random_text: bool = False) -> None:
        self._random = Random(_SEED)  # noqa: S311 - it must be repeatable
        self._offset = 0
        pairs = _pairs(lead_bytes)
        self._pairs = cycle([_random_text(pair, self._random) for pair in pairs] if random_text else pairs)
        self.tenants: list[Tenant] = []

    def organization(self) -> Iterator[Record]:
        """A new organization with an API key."""
        organization_id = self._uuid()
        key = mint(organization_id, "".join(self._random.choices(ALPHABET, k=RANDOM_LENGTH)))
        self.tenants.append(Tenant(organization_id, key, [], []))
        limits = events.RateLimits(key=_NEVER_REACHED, organization=_NEVER_REACHED)
        organization = events.Organization(
            id=organization_id, organization_id=organization_id, version=1, api_access=True, rate_limits=limits
        )
        api_key = events.ApiKey(
            id=self._uuid(),
            organization_id=organization_id,
            version=1,
            hash=key_hash(key),
            status="active",
            created_at=_NOW,
        )
        yield self._record(resources.ORGANIZATION, organization_id, "crm.organization.changed", organization)
        yield self._record(resources.API_KEY, f"{organization_id}:{api_key.id}", "crm.api_key.changed", api_key)

    def lead_and_contact(self, tenant: Tenant) -> Iterator[Record]:
        """A new contact of this organization, and a lead of this contact."""
        organization_id = tenant.organization_id
        lead, contact = next(self._pairs)
        contact = replace(contact, id=self._uuid(), organization_id=organization_id)
        lead = replace(lead, id=self._uuid(), organization_id=organization_id, contact_id=contact.id)
        tenant.contacts.append(contact.id)
        tenant.leads.append(lead.id)
        yield self._record(resources.CONTACT, f"{organization_id}:{contact.id}", "crm.contact.changed", contact)
        yield self._record(resources.LEAD, f"{organization_id}:{lead.id}", "crm.lead.changed", lead)

    def records(self, organizations: int, documents: int) -> Iterator[Record]:
        """This number of organizations, and this number of leads and contacts spread evenly over them."""
        for _ in range(organizations):
            yield from self.organization()
        for number in range(documents // 2):
            yield from self.lead_and_contact(self.tenants[number % organizations])

    def _record(self, kind: resources.Kind, key: str, event_type: str, entity: events.Entity) -> Record:
        self._offset += 1
        event = {
            "specversion": "1.0",
            "id": str(self._offset),
            "source": "/crm/bench",
            "type": event_type,
            "time": _NOW,
            "data": entity,
        }
        return Record(f"crm.{kind.topic}", 0, self._offset, 0, key.encode(), msgspec.json.encode(event), (), kind)

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))


def _pairs(lead_bytes: int | None) -> list[tuple[events.Lead, events.Contact]]:
    crm = SampleCrm(_SEED, organizations=3, contacts=_SAMPLE, leads=_SAMPLE, now=lambda: _NOW)
    pairs = [(lead, crm.contacts[lead.contact_id]) for lead in crm.leads.values()]
    if lead_bytes is None:
        return pairs
    # Leads without attribution are far smaller. Both kinds occur in practice.
    pairs += [(replace(lead, attribution=None, events=[]), contact) for lead, contact in pairs]
    return [pair for pair in pairs if abs(_size(*pair) / lead_bytes - 1) < _TOLERANCE]


def _random_text(pair: tuple[events.Lead, events.Contact], random: Random) -> tuple[events.Lead, events.Contact]:
    lead, contact = pair
    return replace(lead, **_texts(lead, random)), replace(contact, **_texts(contact, random))


def _texts(entity: Struct, random: Random) -> dict[str, Any]:
    """Returns the fields of an entity that people write, with random letters in place of all text in them."""
    return {name: _randomly(getattr(entity, name), random) for name in _WRITTEN & {*entity.__struct_fields__}}


def _randomly(value: Any, random: Random) -> Any:
    match value:
        case str():
            return "".join(random.choices(ascii_lowercase, k=len(value.encode())))
        case dict():
            return {name: _randomly(each, random) for name, each in value.items()}
        case list():
            return [_randomly(each, random) for each in value]
        case events.RequestedEvent():
            return replace(value, location=_randomly(value.location, random))
        case _:
            return value


def _size(lead: events.Lead, contact: events.Contact) -> int:
    document = mapping.lead_document(lead)
    summary = mapping.contact_summary(mapping.contact_document(contact))
    return len(msgspec.json.encode(replace(document, contact=summary)))
