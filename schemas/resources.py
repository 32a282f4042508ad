"""The kinds of entity, one row each. Topics, decoders, routes, names in Redis, commands and the OpenAPI document are
derived from these rows.

A resource is a kind that has documents, which external tools read. How to add one: `docs/changing.md`.
"""

from typing import Any

from msgspec import Struct

from schemas import documents, events, examples, layouts

ROOT = "/api/v1/ext"
"""The beginning of the API's paths. The version in it is that of the API itself."""


class Kind(Struct, frozen=True, eq=False):
    """A kind of entity: a topic of change events. Rows are compared by identity: `kind is LEAD`."""

    noun: str
    """The word in event types (`crm.<noun>.changed`), metrics and commands."""
    topic: str
    """The name of the topic without its prefix. For a resource it is also the segment of the API's path."""
    event: type[events.Entity]
    """The `data` of a `changed` event."""
    event_example: events.Entity
    """The `data` of a `changed` event with every field, for the documentation."""
    event_faults: tuple[dict[str, Any], ...]
    """Fields that make `event_example` bad, for the documentation: a wrong value, or None if the field is missing."""


class Resource(Kind, frozen=True, eq=False):
    """A kind with documents."""

    letter: bytes
    """The letter in the names of its documents in Redis (`schemas.names`)."""
    body_offset: int
    """Where the body begins in a stored value, in bytes (`schemas.layouts`)."""
    document: type[Struct]
    example: Struct
    """The document with every field that `event_example` becomes, except for the contact inside a lead."""
    summary: str
    """What the records are, in a few words, for the OpenAPI document."""
    about: str
    """What the endpoint returns, in CommonMark, for the OpenAPI document."""


ORGANIZATION = Kind(
    noun="organization",
    topic="organizations",
    event=events.Organization,
    event_example=examples.ORGANIZATION_EVENT,
    event_faults=({"api_access": None}, {"rate_limits": {"key": {"quota": "100", "window_seconds": 10}}}),
)
API_KEY = Kind(
    noun="api_key",
    topic="api-keys",
    event=events.ApiKey,
    event_example=examples.API_KEY_EVENT,
    event_faults=({"hash": None}, {"hash": "e3b0c442"}),
)

CONTACT = Resource(
    noun="contact",
    topic="contacts",
    event=events.Contact,
    letter=b"c",
    body_offset=layouts.CONTACT_BODY,
    document=documents.Contact,
    example=examples.CONTACT,
    event_example=examples.CONTACT_EVENT,
    event_faults=({"first_name": None}, {"updated_at": "2026-03-09"}),
    summary="The people who submitted the inquiries",
    about="""\
Returns one contact with its custom fields.

`custom_fields` is an object whose names are stable field keys. A field that was never set is absent; a field that
was cleared is null.""",
)
LEAD = Resource(
    noun="lead",
    topic="leads",
    event=events.Lead,
    letter=b"l",
    body_offset=layouts.LEAD_BODY,
    document=documents.Lead,
    example=examples.LEAD,
    event_example=examples.LEAD_EVENT,
    event_faults=({"contact_id": None}, {"created_at": "2026-03-02T09:15:00"}),
    summary="Inquiries of customers, with the events that they requested",
    about="""\
Returns one lead with a summary of its contact and the events that the customer requested.

`contact` is the current state of the contact. It is null if the contact was deleted or has not arrived yet; in the
latter case a later request returns it. Custom fields are only part of the contact's own record.""",
)

RESOURCES = (CONTACT, LEAD)
"""In the order of a replay: contacts first, so that a lead is written once, with the summary of its contact. The place
of a resource without links does not matter."""
AS_SPECIFIED = (LEAD, CONTACT, *(resource for resource in RESOURCES if resource not in (LEAD, CONTACT)))
"""For people to read: first leads and contacts, as in the specification, then the resources that were added later."""
ACCESS_KINDS = (ORGANIZATION, API_KEY)
KINDS: tuple[Kind, ...] = (*ACCESS_KINDS, *RESOURCES)
BY_TOPIC = {kind.topic: kind for kind in KINDS}
BY_NOUN = {resource.noun: resource for resource in AS_SPECIFIED}
BY_LETTER = {resource.letter: resource for resource in RESOURCES}

if _unlisted := [name for name, row in list(globals().items()) if isinstance(row, Kind) and row not in KINDS]:
    raise TypeError(f"schemas/resources.py has rows that are in no list; add to RESOURCES: {', '.join(_unlisted)}")
