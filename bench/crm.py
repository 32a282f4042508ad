"""The core product, for benchmarks: as many organizations, leads and contacts as wanted, as records of Kafka.

They are copies of sample data (`devstack.sample`) under new ids, picked so that documents have the wanted size.
"""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import cycle
from random import Random

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from devstack.sample import SampleCrm
from projector import mapping
from projector.record import Kind, Record
from schemas import events
from schemas.api_keys import RANDOM_LENGTH, key_hash, mint
from schemas.base62 import ALPHABET

_SEED = 7
_SAMPLE = 2000
_TOLERANCE = 0.1
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_ENOUGH = events.RateLimit(quota=10_000_000, window_seconds=10_000)
"""Never refuses in a benchmark; and a bucket stays filled for a while, as that of a caller in a burst does."""


class Tenant(Struct):
    """An organization, its key, and what of it can be read."""

    organization_id: str
    key: str
    leads: list[str]
    contacts: list[str]


class Crm:
    """Makes records. `lead_bytes` is the size of a lead's document with its contact; None: as the sample has it."""

    def __init__(self, lead_bytes: int | None = None) -> None:
        self._random = Random(_SEED)  # noqa: S311 - it must repeat
        self._offset = 0
        self._pairs = cycle(_pairs(lead_bytes))
        self.tenants: list[Tenant] = []

    def organization(self) -> Iterator[Record]:
        """A new organization with a key."""
        own = self._uuid()
        key = mint(own, "".join(self._random.choices(ALPHABET, k=RANDOM_LENGTH)))
        self.tenants.append(Tenant(own, key, [], []))
        limits = events.RateLimits(key=_ENOUGH, organization=_ENOUGH)
        organization = events.Organization(id=own, organization_id=own, version=1, api_access=True, rate_limits=limits)
        api_key = events.ApiKey(
            id=self._uuid(), organization_id=own, version=1, hash=key_hash(key), status="active", created_at=_NOW
        )
        yield self._record(Kind.ORGANIZATION, own, "crm.organization.changed", organization)
        yield self._record(Kind.API_KEY, f"{own}:{api_key.id}", "crm.api_key.changed", api_key)

    def lead_and_contact(self, tenant: Tenant) -> Iterator[Record]:
        """A new contact of this organization, and a lead of it."""
        own = tenant.organization_id
        lead, contact = next(self._pairs)
        contact = replace(contact, id=self._uuid(), organization_id=own)
        lead = replace(lead, id=self._uuid(), organization_id=own, contact_id=contact.id)
        tenant.contacts.append(contact.id)
        tenant.leads.append(lead.id)
        yield self._record(Kind.CONTACT, f"{own}:{contact.id}", "crm.contact.changed", contact)
        yield self._record(Kind.LEAD, f"{own}:{lead.id}", "crm.lead.changed", lead)

    def records(self, organizations: int, documents: int) -> Iterator[Record]:
        """So many organizations, and so many leads and contacts spread over them."""
        for _ in range(organizations):
            yield from self.organization()
        for number in range(documents // 2):
            yield from self.lead_and_contact(self.tenants[number % organizations])

    def _record(self, kind: Kind, key: str, event_type: str, entity: events.Entity) -> Record:
        self._offset += 1
        event = {
            "specversion": "1.0",
            "id": str(self._offset),
            "source": "/crm/bench",
            "type": event_type,
            "time": _NOW,
            "data": entity,
        }
        return Record(f"crm.{kind}", 0, self._offset, 0, key.encode(), msgspec.json.encode(event), (), kind)

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))


def _pairs(lead_bytes: int | None) -> list[tuple[events.Lead, events.Contact]]:
    crm = SampleCrm(_SEED, organizations=3, contacts=_SAMPLE, leads=_SAMPLE, now=lambda: _NOW)
    pairs = [(lead, crm.contacts[lead.contact_id]) for lead in crm.leads.values()]
    if lead_bytes is None:
        return pairs
    # Without attribution they are far smaller; both kinds occur.
    pairs += [(replace(lead, attribution=None, events=[]), contact) for lead, contact in pairs]
    return [pair for pair in pairs if abs(_size(*pair) / lead_bytes - 1) < _TOLERANCE]


def _size(lead: events.Lead, contact: events.Contact) -> int:
    document = mapping.lead_document(lead)
    summary = mapping.contact_summary(mapping.contact_document(contact))
    return len(msgspec.json.encode(replace(document, contact=summary)))
