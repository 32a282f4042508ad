"""The pure mapping from a change to documents and intents: no clock, no I/O, no logging.

`VERSION` goes up with every change that alters a document: generations built by another one are due for a rebuild.
"""

from datetime import UTC, datetime
from itertools import chain
from typing import Any, assert_never, cast

import msgspec

from projector.change import Change
from projector.errors import BadRecord
from projector.intent import (
    DeleteApiKey,
    DeleteContact,
    DeleteLead,
    Intent,
    PutApiKey,
    PutContact,
    PutLead,
    PutOrganization,
)
from projector.record import EntityKey, Kind, Record
from schemas import documents, events
from schemas.api_keys import organization_tag
from schemas.layouts import content_hash, milliseconds, write_head

VERSION = 1

MOST_LEVELS = 100
"""Of objects and arrays inside each other in `attribution`. A limit of ours: else what can be read would depend on the
stack, here and in the readers of the document."""

_CONTAINERS = frozenset((dict, list))
_encode = msgspec.json.Encoder().encode
# Stands for the contact while a lead is encoded: this byte never occurs in JSON, where it is always escaped.
_CONTACT = cast(Any, msgspec.Raw(b"\0"))


def intent(change: Change, record: Record) -> Intent:
    """What a change asks for. Raises BadRecord where it cannot be shown."""
    try:
        return _intent(change, record)
    except OverflowError:
        raise BadRecord("a time lies outside of the years 1 to 9999 in UTC") from None
    except RecursionError:
        raise BadRecord("the JSON is nested too deep") from None


def _intent(change: Change, record: Record) -> Intent:
    key = change.key
    match change.entity:
        case events.Lead() as lead:
            return _put_lead(key, _head(b"L", change, record), lead_document(lead))
        case events.Contact() as contact:
            return _put_contact(key, _head(b"L", change, record), contact_document(contact))
        case events.Organization() as organization:
            return PutOrganization(key.organization_id, _head(b"L", change, record), _access(organization))
        case events.ApiKey() as api_key:
            return _put_api_key(key, _head(b"L", change, record), api_key)
        case events.Deleted():
            return _delete(change.kind, key, _head(b"D", change, record))
        case None:
            return _delete(change.kind, key, _head(b"T", change, record))
        case _:
            assert_never(change.entity)


def lead_document(lead: events.Lead) -> documents.Lead:
    """The document of a lead (specification, "Lead"), its contact still to be put in."""
    counts = lead.counts or events.Counts()
    quote = lead.quote
    # By position: for more than 15 keywords CPython makes a dictionary, which took a third of the whole mapping.
    return documents.Lead(
        lead.id.lower(),
        lead.organization_id.lower(),
        lead.contact_id.lower(),
        lead.stage,
        lead.event_type_key,
        lead.event_location,
        lead.referrer,
        _source(lead.attribution),
        lead.assigned_to.lower() if lead.assigned_to else None,
        lead.booking_id,
        lead.tags or [],
        [_event(event) for event in lead.events] if lead.events else [],
        _CONTACT,
        # The total's digits as they were sent: a float would lose some.
        cast(Any, msgspec.Raw(quote.total.encode())) if quote and quote.total else None,
        counts.notes or 0,
        counts.tasks or 0,
        counts.quotes or 0,
        _utc(lead.archived_at) if lead.archived_at else None,
        _utc(lead.created_at),
        _utc(lead.updated_at),
    )


def _source(attribution: dict[str, Any] | None) -> dict[str, Any] | msgspec.UnsetType:
    """Left out where there is none. Raises BadRecord where it is nested too deep; most is flat, and costs one look."""
    if not attribution:
        return msgspec.UNSET
    if not _CONTAINERS.isdisjoint(map(type, attribution.values())) and _is_deeper(attribution, MOST_LEVELS):
        raise BadRecord(f"attribution is nested deeper than {MOST_LEVELS} levels")
    return attribution


def _is_deeper(value: Any, levels: int) -> bool:
    """Level by level, as the stack must not matter."""
    level = [value]
    for _ in range(levels):
        inner = chain.from_iterable(each.values() if type(each) is dict else each for each in level)
        level = [each for each in inner if type(each) in _CONTAINERS]
        if not level:
            return False
    return True


def contact_document(contact: events.Contact) -> documents.Contact:
    """The document of a contact (contract section 1)."""
    return documents.Contact(
        id=contact.id.lower(),
        organization_id=contact.organization_id.lower(),
        first_name=contact.first_name,
        last_name=contact.last_name,
        email=contact.email,
        phone_number=contact.phone,
        custom_fields=contact.custom_fields or {},
        created_at=_utc(contact.created_at),
        updated_at=_utc(contact.updated_at),
    )


def contact_summary(contact: documents.Contact) -> documents.ContactSummary:
    """What a lead shows of its contact."""
    return documents.ContactSummary(
        id=contact.id,
        first_name=contact.first_name,
        last_name=contact.last_name,
        email=contact.email,
        phone_number=contact.phone_number,
    )


def _event(event: events.RequestedEvent) -> documents.Event:
    return documents.Event(
        id=event.id.lower(),
        event_date=_utc(event.starts_at) if event.starts_at else None,
        event_length_hours=event.length_hours,
        event_guests=event.guests,
        event_timezone=event.timezone,
        event_type_key=event.type_key,
        event_location=event.location,
    )


def _utc(time: datetime) -> datetime:
    return time if time.tzinfo is UTC else time.astimezone(UTC)


def _put_lead(key: EntityKey, head: bytes, document: documents.Lead) -> PutLead:
    body = _encode(document)
    before, _, after = body.partition(b"\0")
    return PutLead(key.organization_id, key.id, document.contact_id, head, content_hash(body), before, after)


def _put_contact(key: EntityKey, head: bytes, document: documents.Contact) -> PutContact:
    body = _encode(document)
    # What `contact_summary` shows: `{"id":…` in 44 bytes, and the fields behind `,"organization_id":…` in 57. No text
    # of a user holds this name of a field: a quote inside a text is always escaped.
    fields_end = body.index(b',"custom_fields":')
    summary = b"%b%b}" % (body[:44], body[101:fields_end])
    rest = content_hash(body) + content_hash(summary) + fields_end.to_bytes(3, "little")
    return PutContact(key.organization_id, key.id, head + rest + body)


def _put_api_key(key: EntityKey, head: bytes, api_key: events.ApiKey) -> PutApiKey:
    # 0 stands for "never": an expiry before 1970 has passed all the same.
    expiry = max(1, milliseconds(api_key.expires_at)) if api_key.expires_at else 0
    record = organization_tag(key.organization_id).encode() + expiry.to_bytes(6, "little")
    return PutApiKey(
        key.organization_id, key.id, api_key.hash.lower(), head, record if api_key.status == "active" else b""
    )


def _delete(kind: Kind, key: EntityKey, head: bytes) -> Intent:
    match kind:
        case Kind.LEAD:
            return DeleteLead(key.organization_id, key.id, head)
        case Kind.CONTACT:
            return DeleteContact(key.organization_id, key.id, head)
        case Kind.ORGANIZATION:
            return PutOrganization(key.organization_id, head, b"")
        case Kind.API_KEY:
            return DeleteApiKey(key.organization_id, key.id, head)
        case _:
            assert_never(kind)


def _access(organization: events.Organization) -> bytes:
    limits = organization.rate_limits or events.RateLimits()
    numbers = []
    for limit in (limits.key, limits.organization):
        numbers += [limit.quota, limit.window_seconds] if limit else [0, 0]
    access = b"1" if organization.api_access else b"0"
    return access + b"".join(number.to_bytes(4, "little") for number in numbers)


def _head(state: bytes, change: Change, record: Record) -> bytes:
    version = change.entity.version if change.entity else 0
    return write_head(state, version, record.offset, record.partition, change.time)
