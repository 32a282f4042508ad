"""Change events of the core product (contract section 3): CloudEvents 1.0 whose `data` is the whole state of an entity.

Unknown fields are ignored. Optional fields may be absent or null. `schemas.json_schema` derives the JSON Schemas.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from schemas.fields import CustomFieldValue, DecimalText, Integer, List, Sha256Hex, Timestamp, Uuid, Version

Stage = Literal["NEW", "IN_PROGRESS", "QUOTE_SENT", "ACCEPTED", "REJECTED", "STALE"]


class Entity(Struct, frozen=True, kw_only=True):
    """The fields that every `data` has. `id` is unique among the entities of one kind in one organization."""

    id: Uuid
    organization_id: Uuid
    version: Version


class Deleted(Entity, frozen=True, kw_only=True):
    """The `data` of every `*.deleted` event."""


class RequestedEvent(Struct, frozen=True, kw_only=True):
    """An event that the customer of a lead requested."""

    id: Uuid
    starts_at: Timestamp | None = None
    length_hours: float | Integer | None = None
    guests: Integer | None = None
    timezone: str | None = None
    type_key: str | None = None
    location: str | None = None


class Quote(Struct, frozen=True, kw_only=True):
    """`total` is a decimal number in major units. It is sent as text, so that no digit is lost."""

    total: DecimalText | None = None
    currency: str | None = None


class Counts(Struct, frozen=True, kw_only=True):
    """The numbers of notes, tasks and quotes of a lead. An absent number means 0."""

    notes: Integer | None = None
    tasks: Integer | None = None
    quotes: Integer | None = None


class Lead(Entity, frozen=True, kw_only=True):
    """The `data` of `crm.lead.changed`: one lead, which names its contact."""

    contact_id: Uuid
    stage: Stage
    created_at: Timestamp
    updated_at: Timestamp
    event_type_key: str | None = None
    event_location: str | None = None
    referrer: str | None = None
    attribution: dict[str, Any] | None = None
    assigned_to: Uuid | None = None
    booking_id: str | None = None
    tags: List[str] | None = None
    events: List[RequestedEvent] | None = None
    quote: Quote | None = None
    counts: Counts | None = None
    archived_at: Timestamp | None = None


class Contact(Entity, frozen=True, kw_only=True):
    """The `data` of `crm.contact.changed`: one contact with its custom fields."""

    first_name: str
    last_name: str
    created_at: Timestamp
    updated_at: Timestamp
    email: str | None = None
    phone: str | None = None
    custom_fields: dict[str, CustomFieldValue] | None = None


class RateLimit(Struct, frozen=True, kw_only=True):
    """`quota` requests per `window_seconds`."""

    quota: Annotated[int, Meta(ge=1, le=1_000_000_000)]
    window_seconds: Annotated[int, Meta(ge=1, le=31_536_000)]


class RateLimits(Struct, frozen=True, kw_only=True):
    """An organization's own limits. If one is absent, the limit from the settings applies."""

    key: RateLimit | None = None
    organization: RateLimit | None = None


class Organization(Entity, frozen=True, kw_only=True):
    """The `data` of `crm.organization.changed`. An organization without such an event has no API access."""

    api_access: bool
    rate_limits: RateLimits | None = None


class ApiKey(Entity, frozen=True, kw_only=True):
    """The `data` of `crm.api_key.changed`. `hash` is the SHA-256 of the key in hex. The key itself is never sent."""

    hash: Sha256Hex
    status: Literal["active", "revoked"]
    created_at: Timestamp
    name: str | None = None
    expires_at: Timestamp | None = None


class CloudEvent(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The envelope in structured mode. `time` is optional in CloudEvents; if absent, the record's timestamp is used."""

    specversion: Literal["1.0"]
    id: Annotated[str, Meta(min_length=1)]
    source: Annotated[str, Meta(min_length=1)]
    time: Timestamp | None = None
    datacontenttype: str | None = None
