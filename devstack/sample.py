"""Realistic sample data: organizations that rent out rooms, with their leads and contacts.

Everything is derived from one seed, so the same seed gives the same data **and the same API keys**. If others know the
seed, let the API listen only on loopback. The module is pure except for the clock, which is an argument; the caller
sends the messages to Kafka.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from devstack import entities, fiction
from devstack.fiction import PLACES
from schemas import events
from schemas.envelopes import event_type
from schemas.resources import API_KEY, CONTACT, LEAD, ORGANIZATION, Kind

_OWN_LIMITS = events.RateLimits(
    key=events.RateLimit(quota=200, window_seconds=10), organization=events.RateLimit(quota=500, window_seconds=10)
)


class Message(NamedTuple):
    """The content of one Kafka record. `topic` is without the prefix. If `value` is None, it is a tombstone."""

    topic: str
    key: bytes
    value: bytes | None


class Tenant(NamedTuple):
    """An organization, an API key of it, and a lead with its contact that are never deleted. Users see these ids."""

    organization_id: str
    api_key: str
    lead_id: str
    contact_id: str


def message(
    kind: Kind, entity: events.Entity, *, event_id: str, source: str, time: datetime, verb: str = "changed"
) -> Message:
    """Returns the event that says what an entity is now, or with the verb `deleted` that it is gone."""
    own = entity.organization_id
    key = own if kind is ORGANIZATION else f"{own}:{entity.id}"
    attributes = {"specversion": "1.0", "id": event_id, "source": source, "type": event_type(kind, verb), "time": time}
    return Message(kind.topic, key.encode(), msgspec.json.encode(attributes | {"data": entity}))


class Crm(Protocol):
    """A core product that publishes: first its whole state, then changes without end."""

    tenants: list[Tenant]

    def initial(self) -> Iterator[Message]: ...

    def changes(self) -> Iterator[Message]: ...


class SampleCrm:
    """The core product as Leadview sees it: first the initial state (`initial`), then endless changes (`changes`).

    `contacts` and `leads` hold the state after the messages that were taken so far. `now` is called for each message.
    """

    def __init__(
        self,
        seed: int = 1,
        *,
        organizations: int = 3,
        contacts: int = 120,
        leads: int = 200,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`contacts` and `leads` are totals. Raises ValueError if an organization would have none of them."""
        if not 1 <= organizations <= min(contacts, leads):
            raise ValueError("every organization needs a lead and a contact")
        self._random = Random(seed)  # noqa: S311 - it must be repeatable, and the keys only give access to sample data
        self._now = now
        self._max_leads = leads + leads // 5
        self._places = {fiction.uuid(self._random): PLACES[index % len(PLACES)] for index in range(organizations)}
        self.contacts: dict[str, events.Contact] = {}
        self.leads: dict[str, events.Lead] = {}
        self._people: dict[str, list[str]] = {organization: [] for organization in self._places}
        self._inquiries: list[str] = []
        self.tenants: list[Tenant] = []
        self._api_keys: list[events.ApiKey] = []
        self._fill(contacts, leads)
        self._kept = {record for tenant in self.tenants for record in (tenant.lead_id, tenant.contact_id)}

    def initial(self) -> Iterator[Message]:
        """Yields the whole state, organizations and keys first. The time of each event is now, as in an export."""
        for index, tenant in enumerate(self.tenants):
            yield self._organization(tenant, _OWN_LIMITS if index == 1 else None)
        yield from (self._message(API_KEY, api_key) for api_key in self._api_keys)
        yield from map(self._contact, tuple(self.contacts.values()))
        yield from map(self._lead, tuple(self.leads.values()))

    def changes(self) -> Iterator[Message]:
        """Yields changes without end. The number of leads stays near the initial number."""
        kinds = (self._work, self._edit, self._inquire, self._archive, self._drop_lead, self._drop_contact)
        while True:
            crowded = len(self.leads) > self._max_leads
            change = self._drop_lead if crowded else self._random.choices(kinds, (68, 17, 9, 2, 3, 1))[0]
            yield from change()

    # The kinds of change.

    def _work(self) -> Iterator[Message]:
        lead = self._any_lead()
        time = self._time(lead.organization_id)
        yield self._lead(entities.advanced(self._random, self._places[lead.organization_id], lead, time))

    def _edit(self) -> Iterator[Message]:
        contact = self._any_contact(self._any_organization())
        yield self._contact(entities.edited(self._random, contact, self._time(contact.organization_id)))

    def _archive(self) -> Iterator[Message]:
        lead = self._any_lead()
        time = self._time(lead.organization_id)
        yield self._lead(entities.touched(self._random, lead, time, archived_at=None if lead.archived_at else time))

    def _inquire(self) -> Iterator[Message]:
        """Add a lead, usually of a new contact. The message of the lead may then come before that of the contact."""
        organization = self._any_organization()
        time = self._time(organization)
        is_new = self._random.random() < 0.7
        contact = self._add_contact(organization, time) if is_new else self._any_contact(organization)
        messages = [self._lead(self._add_lead(contact, time))]
        if is_new:
            messages.insert(self._random.choice((0, 0, 1)), self._contact(contact))
        yield from messages

    def _drop_lead(self) -> Iterator[Message]:
        lead = self._any_lead()
        if lead.id not in self._kept:
            del self.leads[lead.id]
            self._inquiries.remove(lead.id)
            yield self._deleted(LEAD, lead)

    def _drop_contact(self) -> Iterator[Message]:
        """Delete a contact. Its leads remain."""
        contact = self._any_contact(self._any_organization())
        if contact.id not in self._kept:
            del self.contacts[contact.id]
            self._people[contact.organization_id].remove(contact.id)
            yield self._deleted(CONTACT, contact)

    # The state.

    def _fill(self, contacts: int, leads: int) -> None:
        organizations = tuple(self._places)
        for index in range(contacts):
            organization = organizations[index % len(organizations)]
            self._add_contact(organization, self._past(organization))
        for index in range(leads):
            organization = organizations[index % len(organizations)]
            new = self._add_lead(self._any_contact(organization), self._past(organization))
            time = new.created_at + (self._time(organization) - new.created_at) * self._random.random()
            lead = entities.worked_on(self._random, self._places[organization], new, time)
            self.leads[lead.id] = lead
            if index < len(organizations):
                self._add_tenant(lead)

    def _add_tenant(self, lead: events.Lead) -> None:
        own, random = lead.organization_id, self._random
        key = entities.new_key(random, own)
        self.tenants.append(Tenant(own, key, lead.id, lead.contact_id))
        created_at = self._past(own)
        self._api_keys.append(entities.new_api_key(random, own, "Website", key, created_at))
        former = entities.new_key(random, own)
        self._api_keys.append(entities.new_api_key(random, own, "Former agency", former, created_at, revoked=True))

    def _add_contact(self, organization: str, time: datetime) -> events.Contact:
        contact = entities.new_contact(self._random, organization, time)
        self.contacts[contact.id] = contact
        self._people[organization].append(contact.id)
        return contact

    def _add_lead(self, contact: events.Contact, time: datetime) -> events.Lead:
        lead = entities.new_lead(self._random, self._places[contact.organization_id], contact, time)
        self.leads[lead.id] = lead
        self._inquiries.append(lead.id)
        return lead

    def _any_organization(self) -> str:
        return self._random.choice(tuple(self._places))

    def _any_lead(self) -> events.Lead:
        return self.leads[self._random.choice(self._inquiries)]

    def _any_contact(self, organization: str) -> events.Contact:
        """Returns a random contact. A third of the calls return one of the first tenth, who so have many leads."""
        ids = self._people[organization]
        regulars = len(ids) // 10 + 1
        return self.contacts[self._random.choice(ids[:regulars] if self._random.random() < 1 / 3 else ids)]

    # The messages.

    def _lead(self, lead: events.Lead) -> Message:
        self.leads[lead.id] = lead
        return self._message(LEAD, lead)

    def _contact(self, contact: events.Contact) -> Message:
        self.contacts[contact.id] = contact
        return self._message(CONTACT, contact)

    def _organization(self, tenant: Tenant, limits: events.RateLimits | None) -> Message:
        own = tenant.organization_id
        organization = events.Organization(id=own, organization_id=own, version=1, api_access=True, rate_limits=limits)
        return self._message(ORGANIZATION, organization)

    def _deleted(self, kind: Kind, entity: events.Entity) -> Message:
        """Returns a delete: usually an event, sometimes a tombstone."""
        message = self._message(kind, entities.gone(entity), "deleted")
        return message if self._random.random() < 0.7 else message._replace(value=None)

    def _message(self, kind: Kind, entity: events.Entity, verb: str = "changed") -> Message:
        event_id, time = fiction.uuid(self._random), self._time(entity.organization_id)
        return message(kind, entity, event_id=event_id, source="/crm/sample", time=time, verb=verb)

    def _time(self, organization: str) -> datetime:
        """Returns the present time in the time zone of the organization."""
        return self._now().astimezone(self._places[organization].zone)

    def _past(self, organization: str) -> datetime:
        return self._time(organization) - timedelta(seconds=self._random.randrange(3600, 120 * 86400))
