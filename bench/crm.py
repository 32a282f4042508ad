"""The core product, for benchmarks: any number of organizations, leads and contacts, as records of Kafka, and requests
for them.

They are copies of sample data (`devstack.sample`) with new ids, chosen so that documents have a given size.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import cycle, islice
from random import Random
from typing import Any

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace

from bench.sender import Event
from devstack import entities
from devstack.fiction import uuid
from devstack.publish import Publisher
from devstack.sample import Message, SampleCrm, message
from projector import mapping
from projector.record import Record
from schemas import events, resources
from schemas.settings import ProjectorSettings

PREFIX = "crm."
NEW_LEADS, NEW_CONTACTS = "new leads", "new contacts"
LEADS_STAY = "leads whose contact stays"
SUMMARY_STAYS, SUMMARY_CHANGES = "contacts whose summary stays", "contacts whose summary changes"
FIRST_VERSION = 1_000
"""Of a change. Higher than the versions of all sample data."""
_LATER = "2026-03-02T09:30:00Z"
_ORGANIZATIONS = 200
_LEADS_OF_A_CONTACT = (1, 2, 3, 1, 5, 2, 3, 2, 1, 4)  # 24 leads on 10 contacts: 70 %
_SEED = 7
_SAMPLE = 2000
_TOLERANCE = 0.1
_BATCH = 100_000
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_NEVER_REACHED = events.RateLimit(quota=10_000_000, window_seconds=10_000)
"""A limit that no benchmark reaches. Its window is long, so its counter stays in Redis, like that of a busy caller."""


class Tenant(Struct):
    """An organization, its API key, and the ids of its leads and contacts."""

    organization_id: str
    key: str
    leads: list[str]
    contacts: list[str]


class Crm:
    """Creates records. `lead_bytes` is the size of a lead's document with its contact; None keeps all sizes."""

    def __init__(self, lead_bytes: int | None = None) -> None:
        self._random = Random(_SEED)  # noqa: S311 - it must be repeatable
        self._offset = 0
        self._pairs = cycle(_pairs(lead_bytes))
        self.tenants: list[Tenant] = []

    def organization(self) -> Iterator[Record]:
        """A new organization with an API key."""
        organization_id = uuid(self._random)
        key = entities.new_key(self._random, organization_id)
        self.tenants.append(Tenant(organization_id, key, [], []))
        limits = events.RateLimits(key=_NEVER_REACHED, organization=_NEVER_REACHED)
        organization = events.Organization(
            id=organization_id, organization_id=organization_id, version=1, api_access=True, rate_limits=limits
        )
        api_key = entities.new_api_key(self._random, organization_id, "bench", key, _NOW)
        yield self._record(resources.ORGANIZATION, organization)
        yield self._record(resources.API_KEY, api_key)

    def lead_and_contact(self, tenant: Tenant) -> Iterator[Record]:
        """A new contact of this organization, and a lead of this contact."""
        organization_id = tenant.organization_id
        lead, contact = next(self._pairs)
        contact = replace(contact, id=uuid(self._random), organization_id=organization_id)
        lead = replace(lead, id=uuid(self._random), organization_id=organization_id, contact_id=contact.id)
        tenant.contacts.append(contact.id)
        yield self._record(resources.CONTACT, contact)
        tenant.leads.append(lead.id)
        yield self._record(resources.LEAD, lead)

    def records(self, organizations: int, documents: int) -> Iterator[Record]:
        """This number of organizations, and this number of leads and contacts spread evenly over them."""
        for _ in range(organizations):
            yield from self.organization()
        for number in range(documents // 2):
            yield from self.lead_and_contact(self.tenants[number % organizations])

    def _record(self, kind: resources.Kind, entity: events.Entity) -> Record:
        self._offset += 1
        sent = message(kind, entity, event_id=str(self._offset), source="/crm/bench", time=_NOW)
        return Record(f"{PREFIX}{kind.topic}", 0, self._offset, 0, sent.key, sent.value, (), kind)


class Traffic(Crm):
    """Organizations with an API key each, and any number of their leads and contacts. Records have about 900 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._order = Random(1)  # noqa: S311 - it must be repeatable
        self.access = [record for _ in range(_ORGANIZATIONS) for record in self.organization()]
        self._records = self._contacts_and_leads()

    def documents(self, count: int) -> list[Record]:
        """This number of new leads and contacts, in random order."""
        return self.shuffled(list(islice(self._records, count)))

    def batches(self, count: int) -> Iterator[list[Record]]:
        """This number of new leads and contacts in batches, because all of them at once would need much memory."""
        for start in range(0, count, _BATCH):
            yield self.documents(min(_BATCH, count - start))

    def shuffled(self, records: list[Record]) -> list[Record]:
        """The same records in random order."""
        self._order.shuffle(records)
        return records

    def contacts_and_leads(self, leads: int) -> tuple[list[Record], list[Record]]:
        """This number of new leads, and their contacts; each list in random order."""
        contacts: list[Record] = []
        all_leads: list[Record] = []
        while len(all_leads) < leads:
            record = next(self._records)
            (all_leads if is_lead(record) else contacts).append(record)
        return self.shuffled(contacts), self.shuffled(all_leads)

    def _contacts_and_leads(self) -> Iterator[Record]:
        """Yields a contact before its leads."""
        for tenant, fan_out in zip(cycle(self.tenants), cycle(_LEADS_OF_A_CONTACT)):
            contact_and_lead = self.lead_and_contact(tenant)
            contact = next(contact_and_lead)
            yield contact
            yield from contact_and_lead
            for _ in range(fan_out - 1):
                yield of_contact(contact, *self.lead_and_contact(tenant))


class Changes:
    """Changes these records in turn, over and over. Each event has a higher version than the one before."""

    def __init__(self, tenants: Sequence[Tenant], records: Sequence[Record]) -> None:
        self._keys = {tenant.organization_id: tenant.key for tenant in tenants}
        self._records = cycle(records)
        self._version = FIRST_VERSION

    def take(self, count: int, probe_every: int | None = None) -> list[Event]:
        """The next changes. Every `probe_every`th is probed over HTTP; without it, none."""
        probed = set(range(0, count, probe_every)) if probe_every else set[int]()
        return [self._event(next(self._records), probed=number in probed) for number in range(count)]

    def _event(self, record: Record, *, probed: bool) -> Event:
        self._version += 1
        event = marked(record, self._version)
        organization_id, _, of_record = (record.key or b"").decode().partition(":")
        asked = request(record.kind.topic, of_record, self._keys[organization_id]) if probed else None
        return Event(record.topic, record.key or b"", event.value or b"", mark(self._version).encode(), asked)


def is_lead(record: Record) -> bool:
    return record.kind is resources.LEAD


def newer(record: Record, version: int = FIRST_VERSION, **fields: Any) -> Record:
    """A newer record of a lead or contact, with these fields."""
    event = orjson.loads(record.value or b"")
    event["id"] = f"change-{version}"
    event["data"] |= {"version": version, **fields}
    return replace(record, value=orjson.dumps(event))


def mark(version: int) -> str:
    """The text that the document of `marked` contains."""
    return f"v{version}@example.com"


def marked(record: Record, version: int) -> Record:
    """A newer record of a lead or contact. The documents that show it contain the mark of this version."""
    return newer(record, version, **{"referrer" if is_lead(record) else "email": mark(version)})


def updates(contacts: list[Record], leads: list[Record]) -> dict[str, Iterable[Record]]:
    """New contacts and leads, and newer records of them, by the names of cases."""
    return {
        NEW_CONTACTS: contacts,
        NEW_LEADS: leads,
        LEADS_STAY: map(_another_note, leads),
        SUMMARY_STAYS: map(_another_custom_field, contacts),
        SUMMARY_CHANGES: (newer(each, updated_at=_LATER, phone="+49 30 55501234") for each in contacts),
    }


def _another_note(lead: Record) -> Record:
    counts = orjson.loads(lead.value or b"")["data"].get("counts") or {}
    return newer(lead, updated_at=_LATER, counts=counts | {"notes": (counts.get("notes") or 0) + 1})


def _another_custom_field(contact: Record) -> Record:
    """Leads show none of these: the summary of the contact stays."""
    fields = orjson.loads(contact.value or b"")["data"].get("custom_fields") or {}
    return newer(contact, updated_at=_LATER, custom_fields=fields | {"last_call": "2026-03-02"})


def of_contact(contact: Record, other: Record, lead: Record) -> Record:
    """The lead of the contact `other`, changed into a lead of `contact`."""
    former, new = ((each.key or b"").partition(b":")[2] for each in (other, contact))
    return replace(lead, value=(lead.value or b"").replace(former, new))


def publish(bootstrap_servers: str, records: Iterable[Record | Event], prefix: str = PREFIX) -> None:
    """Send these records to the topics with this prefix. Returns when Kafka has acknowledged all of them."""
    publisher = Publisher(ProjectorSettings(kafka_bootstrap_servers=bootstrap_servers, topic_prefix=prefix))
    publisher.publish(Message(record.topic.removeprefix(PREFIX), record.key or b"", record.value) for record in records)


def lead_requests(tenants: Sequence[Tenant], count: int = 1000) -> list[bytes]:
    """Requests for randomly chosen leads of these tenants."""
    random = Random(len(tenants))  # noqa: S311 - it must be repeatable
    chosen = random.choices(tenants, k=count)
    return [lead_request(tenant, random.choice(tenant.leads)) for tenant in chosen]


def lead_request(tenant: Tenant, lead_id: str) -> bytes:
    return request("leads", lead_id, tenant.key)


def request(kind: str, record_id: str, key: str) -> bytes:
    """`kind` is the topic of a resource, such as `leads`."""
    return (
        f"GET /api/v1/ext/{kind}/{record_id} HTTP/1.1\r\n"
        "Host: api.example.com\r\n"
        f"Authorization: Bearer {key}\r\n"
        "Accept: application/json\r\n"
        "User-Agent: bench\r\n"
        "\r\n"
    ).encode()


def _pairs(lead_bytes: int | None) -> list[tuple[events.Lead, events.Contact]]:
    crm = SampleCrm(_SEED, organizations=3, contacts=_SAMPLE, leads=_SAMPLE, now=lambda: _NOW)
    pairs = [(lead, crm.contacts[lead.contact_id]) for lead in crm.leads.values()]
    if lead_bytes is None:
        return pairs
    # Leads without attribution are far smaller. Both kinds occur in practice.
    pairs += [(replace(lead, attribution=None, events=[]), contact) for lead, contact in pairs]
    return [pair for pair in pairs if abs(_size(*pair) / lead_bytes - 1) < _TOLERANCE]


def _size(lead: events.Lead, contact: events.Contact) -> int:
    document = mapping.lead_document(lead)
    summary = mapping.contact_summary(mapping.contact_document(contact))
    return len(msgspec.json.encode(replace(document, contact=summary)))
