"""Change events of the core product (docs/events.md): CloudEvents 1.0 whose `data` is the whole state of an entity.

Unknown fields are ignored. Optional fields may be absent or null. `docs/generate/json_schema.py` derives the JSON
Schemas. The text below a field is its description there.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from schemas.fields import CustomFieldValue, DecimalText, Integer, List, Sha256Hex, Timestamp, Uuid, Version

Stage = Literal["NEW", "IN_PROGRESS", "QUOTE_SENT", "ACCEPTED", "REJECTED", "STALE"]


class Entity(Struct, frozen=True, kw_only=True):
    """The fields that every `data` has. `id` is unique among the entities of one kind in one organization."""

    id: Uuid
    """The id of the entity, as in the message key"""
    organization_id: Uuid
    """The organization that owns the entity, as in the message key"""
    version: Version
    """Grows with each change of this entity. Gaps are normal. An event is applied only if its version is higher than
    that of the stored entity"""


class Deleted(Entity, frozen=True, kw_only=True):
    """The `data` of every `*.deleted` event."""


class RequestedEvent(Struct, frozen=True, kw_only=True):
    """An event that the customer of a lead requested."""

    id: Uuid
    """The id of the requested event"""
    starts_at: Timestamp | None = None
    """When it begins. Served as `event_date`"""
    length_hours: float | Integer | None = None
    """How long it lasts, in hours. Served as `event_length_hours`"""
    guests: Integer | None = None
    """The number of guests. Served as `event_guests`"""
    timezone: str | None = None
    """The time zone of the place, such as `Europe/Berlin`. Served as `event_timezone`"""
    type_key: str | None = None
    """The kind of event, such as `wedding`. Served as `event_type_key`"""
    location: str | None = None
    """Where it takes place, in words. Served as `event_location`"""


class Quote(Struct, frozen=True, kw_only=True):
    """`total` is a decimal number in major units. It is sent as text, so that no digit is lost."""

    total: DecimalText | None = None
    """The amount in major units, as text: digits, with a fraction behind a point if there is one, such as `1234.50`. An
    exponent (`1e5`) is refused. It is served as a number with the same digits, as `quote_total`"""
    currency: str | None = None
    """The ISO 4217 code, such as `EUR`"""


class Counts(Struct, frozen=True, kw_only=True):
    """The numbers of notes, tasks and quotes of a lead. An absent number means 0."""

    notes: Integer | None = None
    """The number of notes"""
    tasks: Integer | None = None
    """The number of tasks"""
    quotes: Integer | None = None
    """The number of quotes"""


class Lead(Entity, frozen=True, kw_only=True):
    """The `data` of `crm.lead.changed`: one lead, which names its contact."""

    contact_id: Uuid
    """The contact who sent the inquiry. Its event may come later, or never: until then the lead shows no contact"""
    stage: Stage
    """How far the lead has come"""
    created_at: Timestamp
    """When the lead was created"""
    updated_at: Timestamp
    """When the lead was last changed"""
    event_type_key: str | None = None
    """The kind of event that the inquiry is about, such as `wedding`"""
    event_location: str | None = None
    """Where the event is to take place, in words"""
    referrer: str | None = None
    """What led the customer here, such as a web address"""
    attribution: dict[str, Any] | None = None
    """Any data about where the lead came from. Served as `source`"""
    assigned_to: Uuid | None = None
    """The user of the CRM who works on the lead"""
    booking_id: str | None = None
    """The booking that the lead became"""
    tags: List[str] | None = None
    """Words that users of the CRM gave the lead"""
    events: List[RequestedEvent] | None = None
    """The events that the customer requested"""
    quote: Quote | None = None
    """The last quote"""
    counts: Counts | None = None
    """How many notes, tasks and quotes the lead has"""
    archived_at: Timestamp | None = None
    """When the lead was archived"""


class Contact(Entity, frozen=True, kw_only=True):
    """The `data` of `crm.contact.changed`: one contact with its custom fields."""

    first_name: str
    """The given name"""
    last_name: str
    """The family name"""
    created_at: Timestamp
    """When the contact was created"""
    updated_at: Timestamp
    """When the contact was last changed"""
    email: str | None = None
    """The e-mail address"""
    phone: str | None = None
    """The phone number. Served as `phone_number`"""
    custom_fields: dict[str, CustomFieldValue] | None = None
    """The fields that the organization defined, by name: texts, numbers, booleans, or lists of texts"""


class RateLimit(Struct, frozen=True, kw_only=True):
    """`quota` requests per `window_seconds`."""

    quota: Annotated[int, Meta(ge=1, le=1_000_000_000)]
    """How many requests are allowed in a window"""
    window_seconds: Annotated[int, Meta(ge=1, le=31_536_000)]
    """The length of the window, in seconds"""


class RateLimits(Struct, frozen=True, kw_only=True):
    """An organization's own limits. If one is absent, the limit from the settings applies."""

    key: RateLimit | None = None
    """The limit of each API key"""
    organization: RateLimit | None = None
    """The limit of all keys of the organization together"""


class Organization(Entity, frozen=True, kw_only=True):
    """The `data` of `crm.organization.changed`. An organization without such an event has no API access."""

    api_access: bool
    """Whether external tools may read the records of the organization. If not, its keys get 403"""
    rate_limits: RateLimits | None = None
    """The organization's own rate limits"""


class ApiKey(Entity, frozen=True, kw_only=True):
    """The `data` of `crm.api_key.changed`. `hash` is the SHA-256 of the key in hex. The key itself is never sent."""

    hash: Sha256Hex
    """The SHA-256 of the whole key, in hexadecimal digits"""
    status: Literal["active", "revoked"]
    """Whether the key may be used. A revoked key is refused within a second"""
    created_at: Timestamp
    """When the key was created"""
    name: str | None = None
    """What users of the CRM call the key. It is never served"""
    expires_at: Timestamp | None = None
    """When the key ends. Without it, the key does not expire"""


class CloudEvent(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The envelope in structured mode. `time` is optional in CloudEvents; if absent, the record's timestamp is used."""

    specversion: Literal["1.0"]
    """The version of CloudEvents"""
    id: Annotated[str, Meta(min_length=1)]
    """The id of the event, which is unique for its source"""
    source: Annotated[str, Meta(min_length=1)]
    """The producer, as a URI reference"""
    time: Timestamp | None = None
    """When the entity changed. If it is absent, the timestamp of the record counts"""
    datacontenttype: str | None = None
    """The media type of `data`. If it is there, it has to be a JSON type"""
