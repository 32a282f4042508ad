"""Example documents for the OpenAPI document, the events that they are made from, and example ids.

All are Structs, so that no field can be missing.
"""

from datetime import UTC, datetime

from schemas import documents, events
from schemas.api_keys import RANDOM_LENGTH, key_hash, mint

LEAD_ID = "7d0c2f52-0b1e-4f63-9c1c-3c8f6f0d2a11"
CONTACT_ID = "c6a1f3b0-58de-4a7b-8a35-0f4b9e1d7722"
_ORGANIZATION_ID = "2b9f4d8e-6c3a-4e51-b7d0-9a8c1f2e3d4b"
_CREATED = datetime(2026, 3, 2, 9, 15, tzinfo=UTC)

CONTACT = documents.Contact(
    id=CONTACT_ID,
    organization_id=_ORGANIZATION_ID,
    first_name="Zoë",
    last_name="Nakamura",
    email="zoe.nakamura@example.com",
    phone_number="+44 20 7946 0123",
    custom_fields={
        "company": "Kite & Anchor",
        "budget": 18500,
        "newsletter": True,
        "dietary_needs": ["vegetarian", "no nuts"],
        "anniversary": None,
    },
    created_at=_CREATED,
    updated_at=datetime(2026, 3, 9, 16, 40, 5, tzinfo=UTC),
)

LEAD = documents.Lead(
    id=LEAD_ID,
    organization_id=_ORGANIZATION_ID,
    contact_id=CONTACT_ID,
    stage="ACCEPTED",
    event_type_key="wedding",
    event_location="Glasshouse",
    referrer="https://www.example.org/venues",
    source={"utm_source": "newsletter", "utm_campaign": "spring"},
    assigned_to="0e5b7a64-19c2-4d3f-a8e7-5b6c4d3e2f10",
    booking_id="BK-2041",
    tags=["HOT_LEAD"],
    events=[
        documents.RequestedEvent(
            id="f1e2d3c4-b5a6-4788-99aa-bbccddeeff00",
            event_date=datetime(2026, 9, 12, 13, 30, tzinfo=UTC),
            event_length_hours=9.5,
            event_guests=120,
            event_timezone="Europe/London",
            event_type_key="wedding",
            event_location="Glasshouse terrace",
        )
    ],
    contact=documents.ContactSummary(
        id=CONTACT_ID,
        first_name="Zoë",
        last_name="Nakamura",
        email="zoe.nakamura@example.com",
        phone_number="+44 20 7946 0123",
    ),
    quote_total=14250.5,
    notes_count=3,
    tasks_count=1,
    quotes_count=1,
    archived_at=datetime(2026, 9, 30, 7, 0, tzinfo=UTC),
    created_at=_CREATED,
    updated_at=datetime(2026, 3, 11, 8, 2, 47, tzinfo=UTC),
)

CONTACT_EVENT = events.Contact(
    id=CONTACT_ID,
    organization_id=_ORGANIZATION_ID,
    version=7,
    first_name=CONTACT.first_name,
    last_name=CONTACT.last_name,
    email=CONTACT.email,
    phone=CONTACT.phone_number,
    custom_fields=CONTACT.custom_fields,
    created_at=CONTACT.created_at,
    updated_at=CONTACT.updated_at,
)

LEAD_EVENT = events.Lead(
    id=LEAD_ID,
    organization_id=_ORGANIZATION_ID,
    version=12,
    contact_id=CONTACT_ID,
    stage=LEAD.stage,
    created_at=LEAD.created_at,
    updated_at=LEAD.updated_at,
    event_type_key=LEAD.event_type_key,
    event_location=LEAD.event_location,
    referrer=LEAD.referrer,
    attribution={"utm_source": "newsletter", "utm_campaign": "spring"},
    assigned_to=LEAD.assigned_to,
    booking_id=LEAD.booking_id,
    tags=LEAD.tags,
    events=[
        events.RequestedEvent(
            id=event.id,
            starts_at=event.event_date,
            length_hours=event.event_length_hours,
            guests=event.event_guests,
            timezone=event.event_timezone,
            type_key=event.event_type_key,
            location=event.event_location,
        )
        for event in LEAD.events
    ],
    quote=events.Quote(total="14250.5", currency="EUR"),
    counts=events.Counts(notes=LEAD.notes_count, tasks=LEAD.tasks_count, quotes=LEAD.quotes_count),
    archived_at=LEAD.archived_at,
)

ORGANIZATION_EVENT = events.Organization(
    id=_ORGANIZATION_ID,
    organization_id=_ORGANIZATION_ID,
    version=3,
    api_access=True,
    rate_limits=events.RateLimits(
        key=events.RateLimit(quota=100, window_seconds=10),
        organization=events.RateLimit(quota=300, window_seconds=10),
    ),
)

API_KEY_EVENT = events.ApiKey(
    id="91f6c8a2-3d5b-4e07-8c14-6a2b9d0e7f35",
    organization_id=_ORGANIZATION_ID,
    version=1,
    hash=key_hash(mint(_ORGANIZATION_ID, "0" * RANDOM_LENGTH)),
    status="active",
    created_at=_CREATED,
    name="Reporting",
    expires_at=datetime(2027, 3, 2, tzinfo=UTC),
)
