"""Creates and changes leads and contacts of the sample data. These are pure functions, except for `random`."""

from datetime import datetime
from random import Random
from typing import Any, TypeVar

from msgspec.structs import replace

from devstack import fiction
from devstack.fiction import Place, uuid
from schemas import events
from schemas.api_keys import RANDOM_LENGTH, key_hash, mint
from schemas.base62 import ALPHABET

E = TypeVar("E", events.Lead, events.Contact)

_NEXT: dict[events.Stage, tuple[events.Stage, ...]] = {
    "NEW": ("IN_PROGRESS", "IN_PROGRESS", "STALE", "REJECTED"),
    "IN_PROGRESS": ("QUOTE_SENT", "QUOTE_SENT", "STALE"),
    "QUOTE_SENT": ("ACCEPTED", "REJECTED", "STALE"),
    "STALE": ("IN_PROGRESS",),
    "ACCEPTED": (),
    "REJECTED": ("IN_PROGRESS",),
}


def new_contact(random: Random, organization_id: str, time: datetime) -> events.Contact:
    person = fiction.person(random)
    return events.Contact(
        id=uuid(random),
        organization_id=organization_id,
        version=1,
        first_name=person.first_name,
        last_name=person.last_name,
        email=person.email,
        phone=person.phone,
        custom_fields=fiction.custom_fields(random) or None,
        created_at=time,
        updated_at=time,
    )


def new_lead(random: Random, place: Place, contact: events.Contact, time: datetime) -> events.Lead:
    kind = fiction.kind(random)
    return events.Lead(
        id=uuid(random),
        organization_id=contact.organization_id,
        version=1,
        contact_id=contact.id,
        stage="NEW",
        created_at=time,
        updated_at=time,
        event_type_key=kind,
        event_location=random.choice((*place.rooms, None)),
        referrer=fiction.referrer(random),
        attribution=fiction.attribution(random),
        tags=random.sample(fiction.TAGS, random.choice((0, 0, 1, 1, 2))),
        events=fiction.requested_events(random, place, kind, time),
    )


def new_key(random: Random, organization_id: str) -> str:
    """Returns an API key in plain text."""
    return mint(organization_id, "".join(random.choices(ALPHABET, k=RANDOM_LENGTH)))


def new_api_key(
    random: Random, organization_id: str, name: str, key: str, time: datetime, *, revoked: bool = False
) -> events.ApiKey:
    """Returns the entity of `key`. It contains only the hash of the key."""
    return events.ApiKey(
        id=uuid(random),
        organization_id=organization_id,
        version=2 if revoked else 1,
        hash=key_hash(key),
        status="revoked" if revoked else "active",
        created_at=time,
        name=name,
    )


def worked_on(random: Random, place: Place, lead: events.Lead, time: datetime) -> events.Lead:
    """Returns a new lead as it may be at a later `time`: in any stage, with the fields that belong to that stage."""
    for _ in range(random.randrange(5)):
        lead = advanced(random, place, lead, time)
    return touched(random, lead, time, archived_at=time) if random.random() < 0.08 else lead


def touched(random: Random, entity: E, time: datetime, **changes: Any) -> E:
    """Returns `entity` with `changes` and a higher version, sometimes higher by more than one."""
    version = entity.version + random.choice((1, 1, 1, 4))
    return replace(entity, version=version, updated_at=max(time, entity.updated_at), **changes)


def advanced(random: Random, place: Place, lead: events.Lead, time: datetime) -> events.Lead:
    """Returns the lead in a stage that may follow its present one, or with another note or task."""
    if not _NEXT[lead.stage] or random.random() < 0.4:
        return noted(random, lead, time)
    stage = random.choice(_NEXT[lead.stage])
    changes: dict[str, Any] = {"stage": stage}
    match stage:
        case "IN_PROGRESS":
            changes["assigned_to"] = lead.assigned_to or uuid(random)
        case "QUOTE_SENT":
            changes["quote"] = fiction.quote(random, place, lead.event_type_key or "workshop")
            changes["counts"] = _more(lead, quotes=1)
        case "ACCEPTED":
            changes["booking_id"] = lead.booking_id or f"BK-{random.randrange(10**6):06}"
    return touched(random, lead, time, **changes)


def noted(random: Random, lead: events.Lead, time: datetime) -> events.Lead:
    """Returns the lead with one more note or task, and sometimes another tag."""
    counts = _more(lead, notes=1) if random.random() < 0.8 else _more(lead, tasks=1)
    tags = lead.tags or []
    if random.random() < 0.15:
        tags = [*dict.fromkeys((*tags, random.choice(fiction.TAGS)))]
    return touched(random, lead, time, counts=counts, tags=tags)


def edited(random: Random, contact: events.Contact, time: datetime) -> events.Contact:
    """Returns the contact with another phone number or family name (in its summary) or other custom fields."""
    changes: tuple[dict[str, Any], ...] = (
        {"phone": fiction.phone(random)},
        {"last_name": fiction.person(random).last_name},
        {"custom_fields": fiction.custom_fields(random)},
        {"custom_fields": fiction.custom_fields(random)},
    )
    return touched(random, contact, time, **random.choice(changes))


def gone(entity: events.Entity) -> events.Deleted:
    """Returns what the event of the deletion says."""
    return events.Deleted(id=entity.id, organization_id=entity.organization_id, version=entity.version + 1)


def _more(lead: events.Lead, notes: int = 0, tasks: int = 0, quotes: int = 0) -> events.Counts:
    now = lead.counts or events.Counts()
    return events.Counts(
        notes=(now.notes or 0) + notes, tasks=(now.tasks or 0) + tasks, quotes=(now.quotes or 0) + quotes
    )
