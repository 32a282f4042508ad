"""The documents that the HTTP API serves. Order and meaning of the fields are those of the specification, in "Resources
and their fields"; most descriptions quote it (docs/decisions.md says what it is).

Documents and events are separate types, so that an internal change of the core product does not change a response.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct, UnsetType

from schemas.events import Stage
from schemas.fields import CustomFieldValue, Integer, List, Timestamp, Uuid

STAGES = (
    "`NEW`: just arrived, not yet worked. `IN_PROGRESS`: being actively worked. `QUOTE_SENT`: a quote has gone out. "
    "`ACCEPTED`: the customer accepted. `REJECTED`: the customer declined. `STALE`: no movement for a while"
)


class RequestedEvent(Struct, frozen=True):
    """An event that the customer requested."""

    id: Annotated[Uuid, Meta(description="Event identifier")]
    event_date: Annotated[Timestamp | None, Meta(description="Start date and time in UTC")]
    event_length_hours: Annotated[float | Integer | None, Meta(description="Requested duration in hours")]
    event_guests: Annotated[Integer | None, Meta(description="Expected guest count")]
    event_timezone: Annotated[str | None, Meta(description="IANA timezone name")]
    event_type_key: Annotated[str | None, Meta(description="Event type of this particular event")]
    event_location: Annotated[str | None, Meta(description="Where this event takes place")]


class ContactSummary(Struct, frozen=True, kw_only=True):
    """The contact as a lead shows it. The full record, with custom fields, is a resource of its own."""

    id: Annotated[Uuid, Meta(description="Contact identifier")]
    first_name: Annotated[str, Meta(description="First name")]
    last_name: Annotated[str, Meta(description="Last name")]
    email: Annotated[str | None, Meta(description="Email address")]
    phone_number: Annotated[str | None, Meta(description="Phone number")]


class Lead(Struct, frozen=True):
    """One lead with its contact summary and its events."""

    id: Annotated[Uuid, Meta(description="Lead identifier")]
    organization_id: Annotated[Uuid, Meta(description="Owning organization")]
    contact_id: Annotated[Uuid, Meta(description="Contact who submitted the inquiry")]
    stage: Annotated[Stage, Meta(description=STAGES)]
    event_type_key: Annotated[str | None, Meta(description="Event type chosen by the customer")]
    event_location: Annotated[str | None, Meta(description="Location recorded on the lead itself")]
    referrer: Annotated[str | None, Meta(description="Where the customer came from, when known")]
    source: Annotated[dict[str, Any] | UnsetType, Meta(description="Raw attribution data. Absent if there is none")]
    assigned_to: Annotated[Uuid | None, Meta(description="Assigned staff member")]
    booking_id: Annotated[str | None, Meta(description="Set once the lead is converted to a booking")]
    tags: Annotated[List[str], Meta(description="Tags on the lead")]
    events: Annotated[List[RequestedEvent], Meta(description="Events the customer requested")]
    contact: Annotated[ContactSummary | None, Meta(description="Summary of the attached contact")]
    quote_total: Annotated[float | Integer | None, Meta(description="Total of the lead's quote, in major units")]
    notes_count: Annotated[Integer, Meta(description="Number of notes on the lead")]
    tasks_count: Annotated[Integer, Meta(description="Number of tasks on the lead")]
    quotes_count: Annotated[Integer, Meta(description="Number of quotes on the lead")]
    archived_at: Annotated[Timestamp | None, Meta(description="When the lead was archived")]
    created_at: Annotated[Timestamp, Meta(description="Creation time")]
    updated_at: Annotated[Timestamp, Meta(description="Time of last change")]


class Contact(Struct, frozen=True):
    """One contact, with its custom fields."""

    id: Annotated[Uuid, Meta(description="Contact identifier")]
    organization_id: Annotated[Uuid, Meta(description="Owning organization")]
    first_name: Annotated[str, Meta(description="First name")]
    last_name: Annotated[str, Meta(description="Last name")]
    email: Annotated[str | None, Meta(description="Email address")]
    phone_number: Annotated[str | None, Meta(description="Phone number")]
    custom_fields: Annotated[
        dict[str, CustomFieldValue],
        Meta(description="Values by stable field key. A field that was never set is absent; a cleared one is null"),
    ]
    created_at: Annotated[Timestamp, Meta(description="Creation time")]
    updated_at: Annotated[Timestamp, Meta(description="Time of last change")]
