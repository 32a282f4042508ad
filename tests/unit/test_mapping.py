"""The mapping of every field, and what the scripts rely on in the bytes."""

from typing import Any

import orjson
import pytest
from msgspec import Struct

from projector.mapping import DeleteApiKey, DeleteDocument, PutApiKey, PutDocument, PutLead, PutOrganization
from schemas import documents, resources
from schemas.layouts import BODY_HASH, FIRST_LEAD, LEAD_CONTACT_ID, NO_CONTACT, SUMMARY_HASH, Head, read_head
from tests.harness import crm, projection
from tests.harness.crm import Json, Message

EVENT = crm.uuid(0xE1)


def intent_of(message: Message, offset: int = 0, partition: int = 0) -> Any:
    return projection.intent_of(message.record(offset, partition))


def lead_body(**fields: Any) -> bytes:
    """The bytes of a lead without contact."""
    put: PutLead = intent_of(crm.lead(**fields))
    return put.before + b"null" + put.after


WHOLE_EVENT = {
    "id": EVENT.upper(),
    "starts_at": "2026-06-01T18:00:00+02:00",
    "length_hours": 4.5,
    "guests": 80,
    "timezone": "Europe/Berlin",
    "type_key": "gala",
    "location": "Spree",
    "unknown": True,
}
SHOWN_EVENT = {
    "id": EVENT,
    "event_date": "2026-06-01T16:00:00Z",
    "event_length_hours": 4.5,
    "event_guests": 80,
    "event_timezone": "Europe/Berlin",
    "event_type_key": "gala",
    "event_location": "Spree",
}
LEAST_EVENT = dict.fromkeys(SHOWN_EVENT) | {"id": crm.uuid(0xE2)}
NOTHING: Json = {
    "id": crm.LEAD,
    "organization_id": crm.ORGANIZATION,
    "contact_id": crm.CONTACT,
    "stage": "NEW",
    "event_type_key": None,
    "event_location": None,
    "referrer": None,
    "assigned_to": None,
    "booking_id": None,
    "tags": [],
    "events": [],
    "contact": None,
    "quote_total": None,
    "notes_count": 0,
    "tasks_count": 0,
    "quotes_count": 0,
    "archived_at": None,
    "created_at": "2026-01-01T00:00:00Z",
    "updated_at": "2026-01-01T00:00:00Z",
}


LEAD_ROWS: list[tuple[str, Json, Json]] = [
    ("stage", {"stage": "QUOTE_SENT"}, {"stage": "QUOTE_SENT"}),
    ("contact in upper case", {"contact_id": crm.CONTACT.upper()}, {"contact_id": crm.CONTACT}),
    ("event type", {"event_type_key": "wedding"}, {"event_type_key": "wedding"}),
    ("location", {"event_location": "Halle 3, Köln"}, {"event_location": "Halle 3, Köln"}),
    ("referrer", {"referrer": "https://example.org/?a=b"}, {"referrer": "https://example.org/?a=b"}),
    ("attribution", {"attribution": {"utm": [1, {}, []]}}, {"source": {"utm": [1, {}, []]}}),
    ("assigned", {"assigned_to": crm.uuid(0xAB).upper()}, {"assigned_to": crm.uuid(0xAB)}),
    ("booking", {"booking_id": "B-7"}, {"booking_id": "B-7"}),
    ("tags", {"tags": ["vip", "", "née"]}, {"tags": ["vip", "", "née"]}),
    ("tags of null", {"tags": None}, {"tags": []}),
    (
        "counts",
        {"counts": {"notes": 3, "tasks": 2, "quotes": 1}},
        {"notes_count": 3, "tasks_count": 2, "quotes_count": 1},
    ),
    ("some counts", {"counts": {"tasks": 2, "quotes": None}}, {"tasks_count": 2}),
    ("archived", {"archived_at": "2026-01-01T02:00:00+02:00"}, {"archived_at": "2026-01-01T00:00:00Z"}),
    ("times with offset", {"created_at": "2026-03-01T00:15:00-05:30"}, {"created_at": "2026-03-01T05:45:00Z"}),
    ("fractions", {"updated_at": "2026-03-01T00:15:00.25Z"}, {"updated_at": "2026-03-01T00:15:00.250000Z"}),
    ("a quote without total", {"quote": {"currency": "EUR"}}, {"quote_total": None}),
    ("no events", {"events": None}, {"events": []}),
    ("unknown fields", {"colour": "red"}, {}),
    ("attribution of null", {"attribution": None}, {}),
    ("an empty attribution", {"attribution": {}}, {}),
    ("an event", {"events": [WHOLE_EVENT, {"id": crm.uuid(0xE2)}]}, {"events": [SHOWN_EVENT, LEAST_EVENT]}),
]


@pytest.mark.parametrize(
    ("fields", "expected"), [pytest.param(fields, expected, id=name) for name, fields, expected in LEAD_ROWS]
)
def test_lead_has_every_field_in_order(fields: Json, expected: Json) -> None:
    """Every field but `source` is always there, and all are in the order of the Struct."""
    found = orjson.loads(lead_body(**fields))
    assert found == NOTHING | expected
    assert list(found) == [name for name in documents.Lead.__struct_fields__ if name in found]


@pytest.mark.parametrize(
    "total",
    [
        pytest.param("1234.50", id="a zero at the end"),
        pytest.param("0", id="zero"),
        pytest.param("-0.10", id="negative"),
        pytest.param("12345678901234567890.123456789", id="more digits than a double has"),
        pytest.param("9" * 40 + ".25", id="more digits than 64 bits"),
    ],
)
def test_every_digit_of_a_total_stays(total: str) -> None:
    assert b'"quote_total":%b,' % total.encode() in lead_body(quote={"total": total, "currency": "EUR"})


FIELDS = {"text": "ü\0", "whole": 3, "part": 0.5, "yes": True, "cleared": None, "list": ["a"], "none": []}


CONTACT_ROWS: list[tuple[str, Json, Json]] = [
    ("email", {"email": "a@b.c"}, {"email": "a@b.c"}),
    ("phone", {"phone": "+49 30 1"}, {"phone_number": "+49 30 1"}),
    ("custom fields of every type", {"custom_fields": FIELDS}, {"custom_fields": FIELDS}),
    ("custom fields of null", {"custom_fields": None}, {"custom_fields": {}}),
    ("names", {"first_name": "", "last_name": "Ng"}, {"first_name": "", "last_name": "Ng"}),
    (
        "times",
        {"created_at": crm.at(60), "updated_at": crm.at(90)},
        {"created_at": crm.at(60), "updated_at": crm.at(90)},
    ),
]


@pytest.mark.parametrize(
    ("fields", "expected"), [pytest.param(fields, expected, id=name) for name, fields, expected in CONTACT_ROWS]
)
def test_contact_has_every_field_in_order(fields: Json, expected: Json) -> None:
    nothing: Json = {
        "id": crm.CONTACT,
        "organization_id": crm.ORGANIZATION,
        "first_name": "Ada",
        "last_name": "Lovelace",
        "email": None,
        "phone_number": None,
        "custom_fields": {},
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
    }
    put = intent_of(crm.contact(**fields))
    assert isinstance(put, PutDocument)
    found = orjson.loads(put.value[FIRST_LEAD.start :])
    assert found == nothing | expected
    assert list(found) == list(documents.Contact.__struct_fields__)


@pytest.mark.parametrize(
    ("document", "rows"), [(documents.Lead, LEAD_ROWS), (documents.Contact, CONTACT_ROWS)], ids=["lead", "contact"]
)
def test_every_field_has_a_row(document: type[Struct], rows: list[tuple[str, Json, Json]]) -> None:
    """Ids and the summary of the contact have tests of their own."""
    shown = {name for _, _, expected in rows for name in expected} | {"id", "organization_id", "contact"}
    missing = set(document.__struct_fields__) - shown
    assert missing == set(), "tests/unit/test_mapping.py: add a row for it"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="the least"),
        pytest.param({"email": 'a"\\}{@b', "phone": "\0\x1f", "first_name": "Zoë 🜁"}, id="characters that are escaped"),
        pytest.param({"first_name": "x" * 65_380}, id="longer than two bytes can say"),
        pytest.param({"custom_fields": {"summary": '"}'}}, id="custom fields"),
    ],
)
def test_the_scripts_cut_the_summary_out_of_a_contact(fields: dict[str, Any]) -> None:
    """`read_contact` in contact_index.lua counts from 1, both ends inside: 38 to 81, then 139 to where fields end."""
    value = intent_of(crm.contact(**fields)).value
    fields_end = int.from_bytes(value[34:37], "little")
    assert (fields_end > 65_535) == (len(fields.get("first_name", "")) > 60_000)
    cut = value[37:81] + value[138 : 37 + fields_end] + b"}"
    assert cut == orjson.dumps(
        {
            "id": crm.CONTACT,
            "first_name": fields.get("first_name", "Ada"),
            "last_name": "Lovelace",
            "email": fields.get("email"),
            "phone_number": fields.get("phone"),
        }
    )


def test_the_scripts_find_the_contact_of_a_lead_by_position() -> None:
    put = intent_of(crm.lead(contact_id=crm.OTHER_CONTACT.upper()))
    assert put.before[LEAD_CONTACT_ID].decode() == crm.OTHER_CONTACT
    assert put.before.endswith(b'"contact":')


def test_both_hashes_follow_the_content() -> None:
    """Together they are the ETag: the same content gives the same, from any event."""
    first, again = intent_of(crm.lead(1)), intent_of(crm.lead(9, seconds=5), offset=7)
    other = intent_of(crm.lead(1, stage="STALE"))
    assert first.body_hash == again.body_hash != other.body_hash
    changes: list[Json] = [{}, {"custom_fields": {"company": "Kite"}}, {"first_name": "Grace"}]
    ada, company, grace = (intent_of(crm.contact(**fields)).value for fields in changes)
    assert company[BODY_HASH] != ada[BODY_HASH] != grace[BODY_HASH]
    assert company[SUMMARY_HASH] == ada[SUMMARY_HASH] != grace[SUMMARY_HASH]
    assert NO_CONTACT not in (ada[SUMMARY_HASH], grace[SUMMARY_HASH])


@pytest.mark.parametrize(
    ("message", "kind", "state"),
    [
        pytest.param(crm.deleted(resources.LEAD, 4), DeleteDocument, b"D", id="a lead"),
        pytest.param(crm.tombstone(resources.LEAD), DeleteDocument, b"T", id="a lead, by a tombstone"),
        pytest.param(crm.deleted(resources.CONTACT, 4), DeleteDocument, b"D", id="a contact"),
        pytest.param(crm.tombstone(resources.CONTACT), DeleteDocument, b"T", id="a contact, by a tombstone"),
        pytest.param(crm.deleted(resources.ORGANIZATION, 4), PutOrganization, b"D", id="an organization"),
        pytest.param(
            crm.tombstone(resources.ORGANIZATION), PutOrganization, b"T", id="an organization, by a tombstone"
        ),
        pytest.param(crm.deleted(resources.API_KEY, 4), DeleteApiKey, b"D", id="an API key"),
        pytest.param(crm.tombstone(resources.API_KEY), DeleteApiKey, b"T", id="an API key, by a tombstone"),
    ],
)
def test_delete_of_a_kind_becomes_its_intent(message: Message, kind: type, state: bytes) -> None:
    intent = intent_of(message)
    assert isinstance(intent, kind)
    assert (intent.value if isinstance(intent, DeleteDocument) else getattr(intent, "head", b"")).startswith(state)
    assert getattr(intent, "access", b"") == b""


def test_the_head_says_which_event_it_was() -> None:
    head = read_head(intent_of(crm.lead(2**53 - 1, seconds=1.5), offset=2**40, partition=300).head)
    assert head == Head(live=True, version=2**53 - 1, offset=2**40, partition=300, time=crm.at_ms(1.5))


@pytest.mark.parametrize(
    ("fields", "access"),
    [
        pytest.param({}, [1, 0, 0, 0, 0], id="access, the limits of the settings"),
        pytest.param({"api_access": False}, [0, 0, 0, 0, 0], id="no access"),
        pytest.param(
            {"rate_limits": {"key": {"quota": 5, "window_seconds": 60}, "organization": None}},
            [1, 5, 60, 0, 0],
            id="a limit for keys",
        ),
        pytest.param(
            {"rate_limits": {"organization": {"quota": 10**9, "window_seconds": 31_536_000}}},
            [1, 0, 0, 10**9, 31_536_000],
            id="the largest limit for the organization",
        ),
    ],
)
def test_organization_has_its_access_and_limits(fields: dict[str, Any], access: list[int]) -> None:
    found = intent_of(crm.organization(**fields)).access
    assert [int(found[:1]), *(int.from_bytes(found[n : n + 4], "little") for n in (1, 5, 9, 13))] == access


@pytest.mark.parametrize(
    ("fields", "state", "expiry"),
    [
        pytest.param({}, b"A", 0, id="never expires"),
        pytest.param({"expires_at": None}, b"A", 0, id="an expiry of null"),
        pytest.param({"expires_at": crm.at(60)}, b"A", crm.at_ms(60), id="expires"),
        pytest.param({"expires_at": "1960-01-01T00:00:00Z"}, b"A", 1, id="expired before 1970"),
        pytest.param({"status": "revoked"}, b"R", 0, id="revoked"),
        pytest.param({"status": "revoked", "expires_at": crm.at(60)}, b"R", crm.at_ms(60), id="revoked, and expires"),
    ],
)
def test_api_key_has_its_status_and_expiry(fields: dict[str, Any], state: bytes, expiry: int) -> None:
    intent = intent_of(crm.api_key(hash=crm.key_hash(1).upper(), **fields))
    assert isinstance(intent, PutApiKey)
    assert (intent.hash, intent.validity) == (crm.key_hash(1), state + expiry.to_bytes(6, "little"))


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        pytest.param("0001-01-01T00:00:00+05:00", "0001-01-01T00:00:00Z", id="before year 1 in UTC"),
        pytest.param("9999-12-31T23:59:59-01:00", "9999-12-31T23:59:59.999999Z", id="after year 9999 in UTC"),
        pytest.param("9999-12-31T23:59:59.9999999Z", "9999-12-31T23:59:59.999999Z", id="rounded beyond year 9999"),
        pytest.param("9999-12-31T23:59:59.9999999+05:00", "9999-12-31T18:59:59.999999Z", id="with an offset"),
        pytest.param("2016-12-31T23:59:60Z", "2016-12-31T23:59:59.999999Z", id="a leap second"),
    ],
)
def test_time_at_a_border_is_shown_as_the_nearest_time_in_utc(time: str, shown: str) -> None:
    intent = intent_of(crm.lead(archived_at=time, events=[{"id": crm.uuid(1), "starts_at": time}]))
    assert isinstance(intent, PutLead)
    assert f'"archived_at":"{shown}"'.encode() in intent.after
    assert f'"event_date":"{shown}"'.encode() in intent.before
