"""The pure mapping from a change to documents and intents: no clock, no I/O, no logging.

An intent is the write to Redis that a change requires, as a plain value. A `head` is the first 22 bytes of a stored
value and identifies the event that it shows (`schemas.layouts`). The scripts compare it with the stored one, and write
only if it is newer.

Increase `VERSION` with every change that alters documents. A live generation of another version must be rebuilt.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain
from typing import Any, ClassVar, cast

import msgspec

from projector.change import Change
from projector.errors import BadRecord
from projector.record import EntityKey, Record
from schemas import documents, events
from schemas.bodies import SUMMARY
from schemas.faults import Fault, FaultKind
from schemas.fields import Integer, List
from schemas.layouts import (
    BODY_ID,
    BODY_ORGANIZATION_ID,
    HISTORY_BIT,
    NO_CONTACT,
    content_hash,
    key_validity,
    milliseconds,
    write_head,
)
from schemas.limits import MAX_DOCUMENT_BYTES, MAX_ENTRIES, MAX_INTEGER, MAX_SUMMARY_BYTES, MIN_INTEGER
from schemas.resources import API_KEY, CONTACT, LEAD, ORGANIZATION, RESOURCES, Kind, Resource

VERSION = 1

# What needs no further check as a value of `attribution`: the size of the record limits it.
_HARMLESS = frozenset((str, bool, float, type(None)))
_LIMITED = frozenset((int, list))
_CONTAINERS = frozenset((dict, list))
_ATTRIBUTION = "$.data.attribution"
_SAFE_DIGITS = 18
"""An integer with this number of digits fits into 64 bits."""
_encode = msgspec.json.Encoder().encode
# A placeholder for the contact while a lead is encoded.
_CONTACT = cast(Any, msgspec.Raw(SUMMARY))


class PutLead(msgspec.Struct, frozen=True, gc=False):
    """Write a lead. The script puts the summary of its contact between `before` and `after`."""

    resource: ClassVar[Resource] = LEAD
    organization_id: str
    id: str
    contact_id: str
    head: bytes
    body_hash: bytes
    before: bytes
    after: bytes


class PutDocument(msgspec.Struct, frozen=True, gc=False):
    """Write a document of any other resource. `value` is stored as it is; into that of a contact the script inserts the
    first lead of its index.
    """

    resource: Resource
    organization_id: str
    id: str
    value: bytes


class DeleteDocument(msgspec.Struct, frozen=True, gc=False):
    """Leave a marker in place of a document. `value` is the marker: the head alone."""

    resource: Resource
    organization_id: str
    id: str
    value: bytes


class PutOrganization(msgspec.Struct, frozen=True, gc=False):
    """`access` is API access and limits in 17 bytes; empty for a delete."""

    organization_id: str
    head: bytes
    access: bytes


class PutApiKey(msgspec.Struct, frozen=True, gc=False):
    """`validity` is the state and the expiry in 7 bytes, for the record that the API looks up by the hash."""

    organization_id: str
    id: str
    hash: str
    head: bytes
    validity: bytes


class DeleteApiKey(msgspec.Struct, frozen=True, gc=False):
    """Leave a marker in place of an API key. The marker is the head alone."""

    organization_id: str
    id: str
    head: bytes


PutOrDelete = PutLead | PutDocument | DeleteDocument
"""An intent that writes or deletes a document."""
Intent = PutOrDelete | PutOrganization | PutApiKey | DeleteApiKey


_FIRST_TIME, _LAST_TIME = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


# A Struct, because msgspec keeps what it has found out about it. About any other type it finds that out in each call,
# which takes forty times as long as the check of a few values.
class _Values(msgspec.Struct):
    values: list[str | bool | float | Integer | List[Any] | dict[Any, Any] | None]


def intent(change: Change, record: Record) -> Intent:
    """Returns the write that a change requires. Raises BadRecord if it cannot be represented in a document."""
    key = change.key
    kind = change.kind
    # Documents first, because nearly all records are theirs.
    if isinstance(kind, Resource) and isinstance(change.entity, kind.event):
        return _put(kind, key, _head(b"L", change, record), change.entity)
    match change.entity:
        case None:
            return _delete(kind, key, _head(b"T", change, record))
        case events.Organization() as organization:
            return PutOrganization(key.organization_id, _head(b"L", change, record), access(organization))
        case events.ApiKey() as api_key:
            validity = key_validity(revoked=api_key.status == "revoked", expiry=key_expiry(api_key))
            return PutApiKey(key.organization_id, key.id, api_key.hash.lower(), _head(b"L", change, record), validity)
        case _:
            return _delete(kind, key, _head(b"D", change, record))


def document(resource: Resource, entity: events.Entity) -> Any:
    """Returns the document of an event; that of a lead is without its contact. Raises BadRecord and OverflowError."""
    return _DOCUMENTS[resource](entity)


def lead_document(lead: events.Lead) -> documents.Lead:
    """Returns the document of a lead (`schemas/documents.py`), with a placeholder instead of its contact."""
    counts = lead.counts or events.Counts()
    quote = lead.quote
    # By position: for more than 15 keywords CPython builds a dictionary, which took a third of the time of the mapping.
    return documents.Lead(
        lead.id,
        lead.organization_id,
        lead.contact_id,
        lead.stage,
        lead.event_type_key,
        lead.event_location,
        lead.referrer,
        _source(lead.attribution),
        lead.assigned_to,
        lead.booking_id,
        lead.tags or [],
        [_event(event) for event in lead.events] if lead.events else [],
        _CONTACT,
        _total(quote.total) if quote and quote.total else None,
        counts.notes or 0,
        counts.tasks or 0,
        counts.quotes or 0,
        _utc(lead.archived_at) if lead.archived_at else None,
        _utc(lead.created_at),
        _utc(lead.updated_at),
    )


def _total(text: str) -> Any:
    """Returns the total with its digits exactly as they were sent. A float would lose some. Raises BadRecord."""
    if len(text) > _SAFE_DIGITS and text.lstrip("-").isdecimal() and not MIN_INTEGER <= int(text) <= MAX_INTEGER:
        raise BadRecord(Fault("more_than_64_bits", "$.data.quote.total"))
    return msgspec.Raw(text.encode())


def _source(attribution: dict[str, Any] | None) -> dict[str, Any] | msgspec.UnsetType:
    """Returns UNSET if it is empty. Raises BadRecord if it exceeds a limit. Most objects need only the first check."""
    if not attribution:
        return msgspec.UNSET
    if not _HARMLESS.issuperset(map(type, attribution.values())):
        _check_limits(attribution)
    return attribution


def _check_limits(attribution: dict[str, Any]) -> None:
    """Raises BadRecord. It works without recursion, so the size of the stack does not matter.

    It looks at a whole level at once, in C as far as possible: there may be half a million values. msgspec checks them
    without a look at what is inside of an object or a list.
    """
    containers: list[Any] = [attribution]
    while containers:
        inner = [*chain.from_iterable([each.values() if type(each) is dict else each for each in containers])]
        types = set(map(type, inner))
        if not types.isdisjoint(_LIMITED):
            try:
                msgspec.convert({"values": inner}, _Values)
            except msgspec.ValidationError as error:
                kind: FaultKind = "inner_list" if "length" in str(error) else "inner_more_than_64_bits"
                raise BadRecord(Fault(kind, _ATTRIBUTION, most=MAX_ENTRIES)) from None
        containers = [] if types.isdisjoint(_CONTAINERS) else [each for each in inner if type(each) in _CONTAINERS]


def contact_document(contact: events.Contact) -> documents.Contact:
    """Returns the document of a contact (`schemas/documents.py`)."""
    return documents.Contact(
        contact.id,
        contact.organization_id,
        contact.first_name,
        contact.last_name,
        contact.email,
        contact.phone,
        contact.custom_fields or {},
        _utc(contact.created_at),
        _utc(contact.updated_at),
    )


def contact_summary(contact: documents.Contact) -> documents.ContactSummary:
    """Returns the summary of a contact inside its leads: the fields with the same names."""
    return documents.ContactSummary(**{name: getattr(contact, name) for name in _SUMMARY})


def _field_after_summary(contact: tuple[str, ...], summary: tuple[str, ...]) -> str:
    """Returns the field after the summary. The scripts cut the summary out of a contact's JSON up to this field."""
    expected = ("id", "organization_id", *summary[1:])
    if summary[0] != "id" or contact[: len(expected)] != expected or len(contact) == len(expected):
        raise TypeError(
            f"documents.Contact must begin with the fields {', '.join(expected)} and have other fields after them, "
            f"because the summary inside a lead is cut out of its JSON. Its fields are: {', '.join(contact)}"
        )
    return contact[len(expected)]


def _event(event: events.RequestedEvent) -> documents.RequestedEvent:
    return documents.RequestedEvent(
        event.id,
        _utc(event.starts_at) if event.starts_at else None,
        event.length_hours,
        event.guests,
        event.timezone,
        event.type_key,
        event.location,
    )


def _utc(time: datetime) -> datetime:
    """Returns the time in UTC. One that is outside of the years 1 to 9999 there becomes their first or last moment."""
    try:
        return time if time.tzinfo is UTC else time.astimezone(UTC)
    except OverflowError:
        return _FIRST_TIME if time.year == 1 else _LAST_TIME


def _put(resource: Resource, key: EntityKey, head: bytes, entity: events.Entity) -> PutOrDelete:
    found = document(resource, entity)
    body = _encode(found)
    if resource is LEAD:
        _check_size(body, MAX_DOCUMENT_BYTES - MAX_SUMMARY_BYTES, "lead_bytes")
        before, _, after = body.partition(SUMMARY)
        return PutLead(key.organization_id, key.id, found.contact_id, head, content_hash(body), before, after)
    _check_size(body, MAX_DOCUMENT_BYTES, "document_bytes")
    # In place of the hash of a contact summary, other resources have zeros.
    summary = _hash_and_end_of_summary(body) if resource is CONTACT else NO_CONTACT
    return PutDocument(resource, key.organization_id, key.id, head + content_hash(body) + summary + body)


def _hash_and_end_of_summary(body: bytes) -> bytes:
    """Returns the hash of the contact summary, and the offset at which its fields end in the body."""
    # No text of a user can contain this field name, because quotes inside a text are escaped.
    fields_end = body.index(_AFTER_SUMMARY)
    summary = body[BODY_ID] + body[BODY_ORGANIZATION_ID.stop : fields_end] + b"}"
    _check_size(summary, MAX_SUMMARY_BYTES, "summary_bytes", _SUMMARY_FIELDS)
    return content_hash(summary) + fields_end.to_bytes(3, "little")


def _check_size(json: bytes, most: int, kind: FaultKind, fields: str = "") -> None:
    """Raises BadRecord."""
    if len(json) > most:
        raise BadRecord(Fault(kind, found=fields, count=len(json), most=most))


def key_expiry(api_key: events.ApiKey) -> int:
    """Returns when an API key expires, in milliseconds since 1970; 0 for never."""
    # An expiry before 1970 becomes 1, which is in the past as well.
    return max(1, milliseconds(api_key.expires_at)) if api_key.expires_at else 0


def _delete(kind: Kind, key: EntityKey, head: bytes) -> Intent:
    if kind is ORGANIZATION:
        return PutOrganization(key.organization_id, head, b"")
    if kind is API_KEY:
        return DeleteApiKey(key.organization_id, key.id, head)
    return DeleteDocument(cast(Resource, kind), key.organization_id, key.id, head)


def access(organization: events.Organization) -> bytes:
    """Returns API access and limits as the record of an organization holds them: 17 bytes (`schemas.layouts`)."""
    limits = organization.rate_limits or events.RateLimits()
    numbers = []
    for limit in (limits.key, limits.organization):
        numbers += [limit.quota, limit.window_seconds] if limit else [0, 0]
    switch = b"1" if organization.api_access else b"0"
    return switch + b"".join(number.to_bytes(4, "little") for number in numbers)


def _head(state: bytes, change: Change, record: Record) -> bytes:
    version = change.entity.version if change.entity else 0
    return write_head(state, version, record.offset, record.partition | record.history << HISTORY_BIT, record.timestamp)


_DOCUMENTS: dict[Resource, Callable[[Any], msgspec.Struct]] = {CONTACT: contact_document, LEAD: lead_document}
if _missing := [resource.noun for resource in RESOURCES if resource not in _DOCUMENTS]:
    raise TypeError(f"projector/mapping.py has no function in _DOCUMENTS for: {', '.join(_missing)}")

_SUMMARY = documents.ContactSummary.__struct_fields__
_SUMMARY_FIELDS = ", ".join(_SUMMARY)
_AFTER_SUMMARY = b',"%b":' % _field_after_summary(documents.Contact.__struct_fields__, _SUMMARY).encode()
