"""The core product, for benchmarks: any number of organizations, leads and contacts, as records of Kafka, and requests
for them.

They are copies of sample data (`devstack.sample`) with new ids, chosen so that documents have a given size.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import cycle
from random import Random
from string import ascii_lowercase
from typing import Any

import msgspec
import orjson
from confluent_kafka import Producer
from msgspec import Struct
from msgspec.structs import replace

from bench.prober import Event
from devstack.sample import SampleCrm, message
from projector import mapping
from projector.record import Record
from schemas import events, resources
from schemas.api_keys import RANDOM_LENGTH, key_hash, mint
from schemas.base62 import ALPHABET

PREFIX = "crm."
FIRST_VERSION = 1_000
"""Of a change. Higher than the versions of all sample data."""
_LATER = "2026-03-02T09:30:00Z"
_ORGANIZATIONS = 200
_LEADS_OF_A_CONTACT = (1, 2, 3, 1, 5, 2, 3, 2, 1, 4)  # 24 leads on 10 contacts: 70 %
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
        yield self._record(resources.ORGANIZATION, organization)
        yield self._record(resources.API_KEY, api_key)

    def lead_and_contact(self, tenant: Tenant) -> Iterator[Record]:
        """A new contact of this organization, and a lead of this contact."""
        organization_id = tenant.organization_id
        lead, contact = next(self._pairs)
        contact = replace(contact, id=self._uuid(), organization_id=organization_id)
        lead = replace(lead, id=self._uuid(), organization_id=organization_id, contact_id=contact.id)
        tenant.contacts.append(contact.id)
        tenant.leads.append(lead.id)
        yield self._record(resources.CONTACT, contact)
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

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))


class Traffic:
    """Organizations with an API key each, and any number of their leads and contacts. Records have about 900 bytes."""

    def __init__(self) -> None:
        self._crm = Crm()
        self._random = Random(1)  # noqa: S311 - it must be repeatable
        self.access = [record for _ in range(_ORGANIZATIONS) for record in self._crm.organization()]
        self._contacts = self._contacts_with_leads()

    @property
    def tenants(self) -> list[Tenant]:
        return self._crm.tenants

    def documents(self, count: int) -> list[Record]:
        """This number of new leads and contacts, in random order."""
        records: list[Record] = []
        while len(records) < count:
            records += next(self._contacts)
        return self.shuffled(records)[:count]

    def shuffled(self, records: list[Record]) -> list[Record]:
        """The same records in random order."""
        self._random.shuffle(records)
        return records

    def contacts_and_leads(self, leads: int) -> tuple[list[Record], list[Record]]:
        """New contacts, and this number (or a few more) of new leads of them; each list in random order."""
        contacts: list[Record] = []
        all_leads: list[Record] = []
        while len(all_leads) < leads:
            contact, *leads_of_contact = next(self._contacts)
            contacts.append(contact)
            all_leads += leads_of_contact
        return self.shuffled(contacts), self.shuffled(all_leads)

    def _contacts_with_leads(self) -> Iterator[list[Record]]:
        for tenant, fan_out in zip(cycle(self.tenants), cycle(_LEADS_OF_A_CONTACT)):
            contact, lead = self._crm.lead_and_contact(tenant)
            others = (self._crm.lead_and_contact(tenant) for _ in range(fan_out - 1))
            yield [contact, lead, *(of_contact(contact, *other) for other in others)]


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
        mark = f"v{self._version}@example.com"
        return Event(
            record.topic,
            record.key or b"",
            changed(record, self._version, mark),
            f'"{mark}"'.encode(),
            self._request(record) if probed else None,
        )

    def _request(self, record: Record) -> bytes:
        organization_id, _, entity_id = (record.key or b"").decode().partition(":")
        return request(record.kind.topic, entity_id, self._keys[organization_id])


def is_lead(record: Record) -> bool:
    return record.kind is resources.LEAD


def changed(record: Record, version: int, mark: str) -> bytes:
    """The event of a newer version of a lead or contact, whose document contains the mark."""
    event = orjson.loads(record.value or b"")
    return _encode(event, version, {"referrer" if record.kind is resources.LEAD else "email": mark})


def another_note(lead: Record) -> Record:
    """A newer record of the lead: it has one more note, and its contact stays."""
    event = orjson.loads(lead.value or b"")
    counts = event["data"].get("counts") or {}
    fields = {"updated_at": _LATER, "counts": counts | {"notes": (counts.get("notes") or 0) + 1}}
    return replace(lead, value=_encode(event, FIRST_VERSION, fields))


def another_custom_field(contact: Record) -> Record:
    """A newer record of the contact, with another custom field. Leads show none of these: the summary stays."""
    event = orjson.loads(contact.value or b"")
    custom_fields = (event["data"].get("custom_fields") or {}) | {"last_call": "2026-03-02"}
    return replace(contact, value=_encode(event, FIRST_VERSION, {"updated_at": _LATER, "custom_fields": custom_fields}))


def another_phone_number(contact: Record) -> Record:
    """A newer record of the contact, with another phone number. Each of its leads shows it: the summary changes."""
    event = orjson.loads(contact.value or b"")
    return replace(contact, value=_encode(event, FIRST_VERSION, {"updated_at": _LATER, "phone": "+49 30 55501234"}))


def _encode(event: dict[str, Any], version: int, fields: Mapping[str, Any]) -> bytes:
    event["id"] = f"change-{version}"
    event["data"] |= {"version": version, **fields}
    return orjson.dumps(event)


def of_contact(contact: Record, other: Record, lead: Record) -> Record:
    """The lead of the contact `other`, changed into a lead of `contact`."""
    return replace(lead, value=(lead.value or b"").replace(entity_id(other), entity_id(contact)))


def entity_id(record: Record) -> bytes:
    """The id of the lead or contact in the record's key."""
    return (record.key or b"").partition(b":")[2]


def publish(bootstrap_servers: str, records: Iterable[Record | Event], prefix: str = PREFIX) -> None:
    """Send these records to the topics with this prefix. Returns when Kafka has acknowledged all of them."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random", "linger.ms": 20})
    for record in records:
        topic = prefix + record.topic.removeprefix(PREFIX)
        while True:
            try:
                producer.produce(topic, record.value, record.key)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.flush(60)


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
