"""Reading records and their keys: every form that an event may have, and everything that breaks the contract.
Records as producers wrap them that cannot choose: what is unwrapped, and what the reasons say about the rest.
"""

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import msgspec
import orjson
import pytest

from docs.generate.json_schema import event_schemas
from operate.explain.records import bad
from projector.change import read, version_of
from projector.errors import BadRecord
from projector.interpret import interpret
from projector.record import EntityKey, Record, entity_key
from schemas import events, resources
from schemas.limits import MAX_CONTAINERS
from tests.harness import crm
from tests.harness.crm import Json, Message, lead_data

SECRET = "Zaphod"
LEAD = crm.lead(7, seconds=5)
BINARY = crm.binary(LEAD)


def structured(data: object = None, kind: resources.Kind = resources.LEAD, **attributes: object) -> Message:
    """A structured event with some attributes replaced; one that is None is left out. Encoded by msgspec: a version may
    have more than 64 bits.
    """
    event = {**crm.envelope(kind, 5), "data": lead_data() if data is None else data} | attributes
    value = msgspec.json.encode({name: value for name, value in event.items() if value is not None})
    return Message(kind, crm.tombstone(kind).key, value)


def valued(value: bytes) -> Message:
    return msgspec.structs.replace(LEAD, value=value)


STRUCTURED_TYPE = (("content-type", b"application/cloudevents+json"),)


def typed(content_type: str, message: Message = LEAD) -> Message:
    """Returns the record with this header in addition to its own."""
    return msgspec.structs.replace(message, headers=(*message.headers, ("content-type", content_type.encode())))


def renamed(rename: Callable[[str], str]) -> tuple[tuple[str, bytes], ...]:
    """Returns the headers of binary mode with other names."""
    return tuple((rename(name), text) for name, text in BINARY.headers)


def base64(text: object) -> Message:
    """Returns a structured event with this in place of data in base64."""
    return valued(orjson.dumps({**crm.envelope(resources.LEAD, 5), "data_base64": text}))


def of_binary(*names: str) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, text) for name, text in BINARY.headers if name in names)


def in_base64(data: Json, version: bytes | None = None, *, nothing: bool = False) -> Message:
    """Returns a structured event whose data is in base64, with the version written like this. With `nothing`, the data
    itself is there as well, and null.
    """
    text = orjson.dumps(data)
    if version is not None:
        text = text.replace(b'"version":3', b'"version":' + version)
    beside: Json = {"data": None} if nothing else {}
    return valued(orjson.dumps({**crm.envelope(resources.LEAD, 5), "data_base64": b64encode(text).decode(), **beside}))


def without(data: Json, field: str) -> Json:
    return {name: value for name, value in data.items() if name != field}


@pytest.mark.parametrize(
    ("message", "version", "seconds"),
    [
        pytest.param(LEAD, 7, 5, id="structured"),
        pytest.param(crm.binary(LEAD), 7, 5, id="binary"),
        pytest.param(structured(lead_data(version=2**53 - 1)), 2**53 - 1, 5, id="the highest version"),
        pytest.param(structured(time="2026-01-01T03:00:05.000+03:00"), 1, 5, id="a time with an offset"),
        pytest.param(structured(time=None), 1, 0, id="no time: the record's own"),
        pytest.param(crm.with_headers(BINARY, ce_time=None), 7, 5, id="no time header: the record's own"),
        pytest.param(structured(time="1969-01-01T00:00:00Z"), 1, None, id="a time before 1970"),
        pytest.param(structured(datacontenttype="application/json"), 1, 5, id="data is JSON"),
        pytest.param(structured(datacontenttype="Application/JSON; charset=utf-8"), 1, 5, id="with a character set"),
        pytest.param(crm.with_headers(BINARY, content__type=None), 7, 5, id="binary, no content type"),
        pytest.param(crm.with_headers(BINARY, content__type=b""), 7, 5, id="binary, an empty content type"),
        pytest.param(crm.with_headers(BINARY, ce_time=b""), 7, 5, id="an empty time header: the record's own"),
        pytest.param(
            crm.with_headers(BINARY, content__type=b"application/vnd.crm+json"), 7, 5, id="binary, JSON by its suffix"
        ),
        pytest.param(structured(traceparent="00-1", crm_shard=4, subject="x"), 1, 5, id="unknown attributes"),
        pytest.param(crm.with_headers(BINARY, ce_traceparent=b"00", other=b"\xff"), 7, 5, id="unknown headers"),
        pytest.param(structured(lead_data(colour={"deep": [1, {}]})), 1, 5, id="unknown fields"),
        pytest.param(
            structured(lead_data(id=crm.LEAD.upper(), organization_id=crm.ORGANIZATION.upper())),
            1,
            5,
            id="ids of the data in upper case",
        ),
        *(
            pytest.param(typed(type_), 7, 5, id=f"structured by {type_}")
            for type_ in (
                "application/cloudevents+json",
                "application/cloudevents+json; charset=UTF-8",
                "Application/CloudEvents+JSON ;charset=utf-8",
                "application/json",
            )
        ),
        pytest.param(
            msgspec.structs.replace(LEAD, headers=(*STRUCTURED_TYPE, *of_binary("ce_id", "ce_specversion", "ce_type"))),
            7,
            5,
            id="structured by its content type, with headers of binary mode",
        ),
        pytest.param(
            crm.with_headers(BINARY, content__type=b"application/vnd.acme_crm.lead+json"), 7, 5, id="a vendor's JSON"
        ),
        pytest.param(in_base64(lead_data(version=3)), 3, 5, id="data in base64"),
        pytest.param(in_base64(lead_data(version=3), nothing=True), 3, 5, id="data in base64 beside data of null"),
        pytest.param(in_base64(lead_data(version=3), b"3.0"), 3, 5, id="data in base64 with an unusual number"),
        *(
            pytest.param(valued((LEAD.value or b"").replace(b'"version":7', b'"version":' + text)), number, 5, id=name)
            for name, text, number in (
                ("an integer with a fraction of zero", b"7.0", 7),
                ("an integer with zeros", b"7.000", 7),
                ("an integer with an exponent", b"12e1", 120),
                ("the highest version with a fraction of zero", b"9007199254740991.0", 2**53 - 1),
            )
        ),
        pytest.param(
            msgspec.structs.replace(BINARY, value=(BINARY.value or b"").replace(b'"version":7', b'"version":7.0')),
            7,
            5,
            id="binary, an integer with a fraction of zero",
        ),
        pytest.param(structured(time="1969-12-31T23:59:60Z"), 1, None, id="a leap second before 1970"),
    ],
)
def test_lead_is_read(message: Message, version: int, seconds: int | None) -> None:
    change = read(message.record())
    assert isinstance(change.entity, events.Lead)
    time = 0 if seconds is None else crm.at_ms(seconds)
    assert (change.key, change.entity.version, change.time) == (EntityKey(crm.ORGANIZATION, crm.LEAD), version, time)


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(name, id=name)
        for name in (
            *("event_type_key", "event_location", "referrer", "attribution", "assigned_to", "booking_id"),
            *("tags", "events", "quote", "counts", "archived_at"),
        )
    ],
)
def test_optional_fields_may_be_null_or_absent(field: str) -> None:
    nothing: Json = {field: None}
    null, absent = (read(message.record()).entity for message in (crm.lead(**nothing), crm.lead()))
    assert null == absent
    assert getattr(null, field) is None


BAD_DATA: list[Any] = [
    pytest.param(structured(without(lead_data(), name)), f"`$.data.{name}` is missing", id=f"no {name}")
    for name in ("id", "organization_id", "version", "contact_id", "stage", "created_at", "updated_at")
]
BAD_DATA += [
    pytest.param(structured(lead_data(**{name: None})), f"`$.data.{name}`", id=f"{name} is null")
    for name in ("id", "organization_id", "version", "contact_id", "stage", "created_at", "updated_at")
]
BAD_DATA += [
    pytest.param(structured(lead_data(**fields)), reason, id=name)
    for name, fields, reason in (
        ("version 0", {"version": 0}, "`$.data.version` is out of range"),
        ("a negative version", {"version": -1}, "`$.data.version` is out of range"),
        ("version 2^53", {"version": 2**53}, "`$.data.version`"),
        ("a version beyond 64 bits", {"version": 10**30}, "`$.data.version`"),
        ("a version with a fraction", {"version": 1.5}, "`$.data.version`"),
        ("a version in quotes", {"version": "1"}, "`$.data.version`"),
        ("version true", {"version": True}, "`$.data.version`"),
        ("an unknown stage", {"stage": SECRET}, "`$.data.stage` is not valid"),
        ("a stage with a quote in it", {"stage": f"'{SECRET}"}, "`$.data.stage` is not valid"),
        ("a stage with both quotes in it", {"stage": f"'\"{SECRET}\n'\""}, "`$.data.stage` is not valid"),
        ("a stage in lower case", {"stage": "new"}, "`$.data.stage`"),
        ("a contact that is not a UUID", {"contact_id": SECRET}, "`$.data.contact_id`"),
        ("a contact with a line feed", {"contact_id": crm.CONTACT + "\n"}, "`$.data.contact_id`"),
        ("a time without a zone", {"created_at": "2026-01-01T00:00:00"}, "`$.data.created_at` has no offset"),
        ("a time of another form", {"created_at": SECRET}, "`$.data.created_at`"),
        ("a time as a number", {"created_at": 1767225600}, "`$.data.created_at`"),
        ("tags that are not text", {"tags": ["a", 1]}, "`$.data.tags[1]`"),
        ("an event without id", {"events": [{"guests": 3}]}, "`$.data.events[0].id` is missing"),
        ("guests with a fraction", {"events": [{"id": crm.uuid(1), "guests": 1.5}]}, "`$.data.events[0].guests`"),
        ("a total as a number", {"quote": {"total": 12.5}}, "`$.data.quote.total`"),
        ("a total with a comma", {"quote": {"total": "12,50"}}, "`$.data.quote.total`"),
        ("a total with a plus", {"quote": {"total": "+1"}}, "`$.data.quote.total`"),
        ("a total that is not a double", {"quote": {"total": "1e400"}}, "`$.data.quote.total`"),
        ("a total with an exponent", {"quote": {"total": "1e5"}}, "`$.data.quote.total`"),
        ("a total with a small exponent", {"quote": {"total": "1.5E-2"}}, "`$.data.quote.total`"),
        ("a total of a point", {"quote": {"total": "1."}}, "`$.data.quote.total`"),
        ("a total with a line feed", {"quote": {"total": "1\n"}}, "`$.data.quote.total`"),
        ("a total that is not a number", {"quote": {"total": "NaN"}}, "`$.data.quote.total`"),
        ("a total of 65 digits", {"quote": {"total": "1" * 65}}, "`$.data.quote.total`"),
        ("attribution that is not an object", {"attribution": [SECRET]}, "`$.data.attribution`"),
        (
            "ids of another organization",
            {"organization_id": crm.OTHER_ORGANIZATION},
            "`$.data.organization_id` is not that of the message key",
        ),
        ("the id of another lead", {"id": crm.OTHER_LEAD}, "`$.data.id` is not that of the message key"),
    )
]


CONTACT = crm.contact_data(first_name=SECRET)
IN_UPPER_CASE = "ABCDEFAB-CDEF-4ABC-9DEF-ABCDEFABCDEF"
DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        *BAD_DATA,
        pytest.param(valued(b""), "the value is empty", id="an empty value"),
        pytest.param(valued(b"{"), "truncated", id="half an object"),
        pytest.param(valued(SECRET.encode()), "is not JSON", id="not JSON"),
        pytest.param(valued(b"null"), "the text `null`", id="JSON null, which is not a null value"),
        pytest.param(
            Message(resources.LEAD, LEAD.key, b"null", STRUCTURED_TYPE), "the text `null`", id="JSON null, structured"
        ),
        pytest.param(msgspec.structs.replace(BINARY, value=b""), "the value is empty", id="binary, an empty value"),
        pytest.param(typed("application/cloudevents+avro"), "format of CloudEvents", id="an event in Avro"),
        pytest.param(typed("application/cloudevents-batch+json"), "is a batch of events", id="a batch of events"),
        pytest.param(
            Message(resources.LEAD, LEAD.key, BINARY.value, renamed(str.upper)),
            "header CE_ID is not read: its name has to be ce_id, in lower case",
            id="headers in capitals",
        ),
        pytest.param(
            Message(resources.LEAD, LEAD.key, BINARY.value, renamed(lambda name: name.replace("_", "-"))),
            "header ce-id is not read: its name has to be ce_id, in lower case",
            id="headers with a hyphen",
        ),
        pytest.param(base64("?"), "`$.data_base64` is not valid: expected base64", id="data that is not base64"),
        pytest.param(base64(b64encode(b"{").decode()), "base64 of a JSON object", id="base64 of half an object"),
        pytest.param(base64(7), "`$.data_base64`", id="base64 that is not text"),
        pytest.param(
            base64(b64encode(orjson.dumps(lead_data(stage=SECRET))).decode()),
            "`$.data.stage` is not valid",
            id="a bad field in base64",
        ),
        pytest.param(
            base64(b64encode(b"[" + b"[]," * 200_000 + b"[]]").decode()), "objects and arrays", id="too much in base64"
        ),
        pytest.param(valued(b"[]"), "`$` is an array", id="an array: batches are not CloudEvents of one entity"),
        pytest.param(valued((LEAD.value or b"") + b"{}"), "trailing characters", id="two events"),
        pytest.param(valued((LEAD.value or b"").replace(b"NEW", b"\xff\xfe")), "UTF-8", id="invalid UTF-8"),
        pytest.param(valued((LEAD.value or b"").replace(b"NEW", b"\\ud800x")), "", id="half a surrogate pair"),
        pytest.param(valued(orjson.dumps(crm.envelope(resources.LEAD))), "`$.data` is missing", id="no data"),
        pytest.param(Message(resources.LEAD, b"?", b"{"), "message key is not", id="half an object under a bad key"),
        pytest.param(Message(resources.LEAD, LEAD.key + b"\n", LEAD.value), "message key is not", id="a longer key"),
        pytest.param(
            Message(resources.LEAD, f"{crm.ORGANIZATION}:{IN_UPPER_CASE}".encode(), crm.lead(id=IN_UPPER_CASE).value),
            "message key is not",
            id="a key in upper case, like its event",
        ),
        pytest.param(structured([1]), "`$.data`", id="data is not an object"),
        pytest.param(structured(specversion="0.3"), "`$.specversion`", id="another version of CloudEvents"),
        pytest.param(structured(specversion=None), "`$.specversion` is missing", id="no version of CloudEvents"),
        pytest.param(structured(id=None), "`$.id` is missing", id="no event id"),
        pytest.param(structured(id=""), "`$.id`", id="an empty event id"),
        pytest.param(structured(source=""), "`$.source`", id="an empty source"),
        pytest.param(structured(type=None), "`$.type` is missing", id="no type"),
        pytest.param(structured(type=SECRET), "`$.type` is not valid", id="an unknown type"),
        pytest.param(structured(type="crm.contact.changed"), "`$.type`", id="a type of another topic"),
        pytest.param(structured(time="2026-01-01T00:00:00"), "`$.time`", id="an event time without a zone"),
        pytest.param(structured(datacontenttype="text/xml"), "is not JSON", id="data is not JSON"),
        pytest.param(valued(DEEP), "nested too deep", id="nested too deep"),
        pytest.param(
            valued((LEAD.value or b"").replace(b'"stage"', b'"attribution":' + DEEP + b',"stage"')),
            "nested too deep",
            id="attribution nested too deep",
        ),
        pytest.param(
            valued((LEAD.value or b"").replace(b'"stage"', b'"attribution":{"a":1e999},"stage"')),
            "out of range",
            id="a number that no double holds",
        ),
        pytest.param(
            crm.framed(crm.lead(attribution={"a": [[[]] * 999] * (MAX_CONTAINERS // 999 + 1)})),
            "objects and arrays",
            id="too many containers in the frame of a schema registry",
        ),
        pytest.param(structured(CONTACT), "`$.data.contact_id` is missing", id="a contact on the topic of leads"),
        pytest.param(crm.with_headers(BINARY, ce_specversion=b"0.3"), "ce_specversion", id="binary, another version"),
        pytest.param(crm.with_headers(BINARY, ce_id=None), "ce_id is missing", id="binary, no id"),
        pytest.param(crm.with_headers(BINARY, ce_source=b""), "ce_source is missing", id="binary, an empty source"),
        pytest.param(crm.with_headers(BINARY, ce_type=None), "ce_type is missing", id="binary, no type"),
        pytest.param(
            crm.with_headers(BINARY, ce_type=b"crm.contact.changed"), "ce_type", id="binary, a type of another topic"
        ),
        pytest.param(crm.with_headers(BINARY, ce_type=b"\xff"), "UTF-8", id="binary, a header that is not UTF-8"),
        pytest.param(crm.with_headers(BINARY, ce_time=SECRET.encode()), "ce_time", id="binary, a time of another form"),
        pytest.param(
            crm.with_headers(BINARY, ce_time=b"2026-01-01T00:00:00"), "ce_time", id="binary, a time without a zone"
        ),
        pytest.param(crm.with_headers(BINARY, content__type=b"text/plain"), "is not JSON", id="binary, not JSON"),
        pytest.param(
            structured(without(crm.contact_data(), "first_name"), resources.CONTACT),
            "`$.data.first_name` is missing",
            id="no first name",
        ),
        pytest.param(
            structured(crm.contact_data(last_name=None), resources.CONTACT),
            "`$.data.last_name`",
            id="a last name of null",
        ),
        pytest.param(
            structured(crm.contact_data(custom_fields={SECRET: {}}), resources.CONTACT),
            "custom_fields[...]`",
            id="a nested custom field",
        ),
        pytest.param(
            structured(crm.contact_data(custom_fields={SECRET: [1]}), resources.CONTACT),
            "custom_fields[...][0]`",
            id="array of numbers",
        ),
        pytest.param(
            structured(without(crm.organization_data(), "api_access"), resources.ORGANIZATION),
            "`$.data.api_access` is missing",
            id="access unknown",
        ),
        pytest.param(
            structured(crm.organization_data(api_access="yes"), resources.ORGANIZATION),
            "`$.data.api_access`",
            id="access yes",
        ),
        pytest.param(
            structured(
                crm.organization_data(rate_limits={"key": {"quota": 0, "window_seconds": 1}}), resources.ORGANIZATION
            ),
            "`$.data.rate_limits.key.quota`",
            id="a quota of 0",
        ),
        pytest.param(
            structured(crm.organization_data(rate_limits={"key": {"quota": 1}}), resources.ORGANIZATION),
            "`$.data.rate_limits.key.window_seconds` is missing",
            id="a quota without window",
        ),
        pytest.param(structured(crm.api_key_data(hash=SECRET), resources.API_KEY), "`$.data.hash`", id="not a hash"),
        pytest.param(
            structured(crm.api_key_data(hash=crm.key_hash(1) + "\n"), resources.API_KEY),
            "`$.data.hash`",
            id="a longer hash",
        ),
        pytest.param(
            structured(crm.api_key_data(status=SECRET), resources.API_KEY),
            "`$.data.status` is not valid",
            id="another status",
        ),
        pytest.param(
            structured(crm.api_key_data(expires_at="2026"), resources.API_KEY),
            "`$.data.expires_at`",
            id="a year as expiry",
        ),
    ],
)
def test_bad_record_says_its_fault_and_no_value(message: Message, reason: str) -> None:
    with pytest.raises(BadRecord) as caught:
        read(message.record())
    assert reason in caught.value.reason
    assert SECRET not in caught.value.reason


ORGANIZATION_ID, LEAD_ID = crm.ORGANIZATION.encode(), crm.LEAD.encode()
BOTH = ORGANIZATION_ID + b":" + LEAD_ID


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        pytest.param(resources.LEAD, None, id="no key"),
        pytest.param(resources.LEAD, b"", id="an empty key"),
        pytest.param(resources.LEAD, ORGANIZATION_ID, id="an organization where an entity is due"),
        pytest.param(resources.ORGANIZATION, BOTH, id="an entity where an organization is due"),
        pytest.param(resources.LEAD, BOTH.upper(), id="upper case"),
        pytest.param(resources.LEAD, BOTH + b"\n", id="a line feed after it"),
        pytest.param(resources.LEAD, b" " + BOTH, id="a space before it"),
        pytest.param(resources.LEAD, BOTH.replace(b":", b"/"), id="another separator"),
        pytest.param(resources.LEAD, BOTH + b":" + LEAD_ID, id="a third id"),
        pytest.param(resources.LEAD, b"{" + ORGANIZATION_ID + b"}:" + LEAD_ID, id="braces"),
        pytest.param(resources.LEAD, BOTH.replace(b"-", b""), id="no hyphens"),
        pytest.param(resources.LEAD, BOTH[:-1] + "\N{ARABIC-INDIC DIGIT ONE}".encode(), id="a digit of another script"),
        pytest.param(resources.LEAD, b"\xff" * 73, id="no UTF-8"),
    ],
)
def test_key_in_another_form_is_bad(kind: resources.Kind, key: bytes | None) -> None:
    said = "is not" if key else "is missing: expected"
    with pytest.raises(BadRecord, match=f"message key {said} <organization_id>"):
        entity_key(msgspec.structs.replace(crm.tombstone(kind).record(), key=key))


JSON = LEAD.value or b""
FRAME = b"\0\0\0\1\7"
IN_JSON = orjson.dumps(JSON.decode())
STRINGS = "org.apache.kafka.connect.storage.StringConverter"


def connect_envelope(payload: bytes) -> bytes:
    """Returns what Kafka Connect's JsonConverter writes by default."""
    return b'{"schema":{"type":"string","optional":false},"payload":' + payload + b"}"


def why(record: Record) -> BadRecord:
    """Returns why a record is bad."""
    with pytest.raises(BadRecord) as raised:
        interpret(record)
    return raised.value


def keyed(key: bytes) -> Message:
    return msgspec.structs.replace(LEAD, key=key)


def converted(wrap: bool) -> Message:
    """Returns the event in binary mode with headers from a JsonConverter, with or without schemas."""
    binary = crm.binary(LEAD)
    quoted = ((name, b'"%b"' % value) for name, value in binary.headers)
    headers = tuple((name, connect_envelope(value) if wrap else value) for name, value in quoted)
    return msgspec.structs.replace(binary, headers=headers)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(crm.framed(LEAD), id="structured"),
        pytest.param(crm.framed(crm.binary(LEAD)), id="binary"),
        pytest.param(valued(b"\0\xff\xff\xff\xff" + JSON), id="the highest id of a schema"),
        pytest.param(valued(FRAME + b" \n" + JSON), id="space after the frame"),
        pytest.param(
            msgspec.structs.replace(
                LEAD, headers=(("__value_schema_id", b"\1" + bytes(16)), ("__key_schema_id", b"\1" + bytes(16)))
            ),
            id="the id of the schema in a header",
        ),
    ],
)
def test_the_frame_changes_nothing(message: Message) -> None:
    assert read(message.record()) == read(LEAD.record())
    assert version_of(message.record()) == 7


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x061.0\x04e1\x08/crm", id="Avro"),
        pytest.param(b"\0\n\x031.0\x12\x02e1", id="Protobuf"),
        pytest.param(IN_JSON, id="a JSON string"),
        pytest.param(b"[" + JSON + b"]", id="an array"),
        pytest.param(FRAME + JSON, id="a second frame"),
    ],
)
def test_anything_else_in_the_frame_is_bad(content: bytes) -> None:
    record = valued(FRAME + content).record()
    fault = why(record)
    assert (fault.version, fault.fault.label, version_of(record)) == (None, "json", None)
    assert fault.reason.startswith(
        "the value has the frame of a schema registry, and what follows is not a JSON object: "
        "Avro and Protobuf are not read, so use the serializer for JSON Schema"
    )


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        pytest.param(
            valued(orjson.dumps(lead_data())),
            ". The value is data without an event: publish the whole event, or send its attributes in the headers "
            "ce_specversion, ce_id, ce_source and ce_type",
            id="data alone",
        ),
        pytest.param(
            keyed(FRAME + b'"%b"' % LEAD.key),
            ". It has the frame of a schema registry: use a serializer for plain text (StringSerializer)",
            id="a key in the frame of a registry",
        ),
        pytest.param(
            keyed(b'"%b"' % LEAD.key),
            f". It is JSON: use plain text, in Kafka Connect key.converter={STRINGS}",
            id="a key in quotes",
        ),
        pytest.param(
            keyed(connect_envelope(b'"%b"' % LEAD.key)),
            f". It is JSON: use plain text, in Kafka Connect key.converter={STRINGS}",
            id="a key with a schema",
        ),
        pytest.param(
            valued(IN_JSON), f". The event is inside a JSON string: set value.converter={STRINGS}", id="a JSON string"
        ),
        pytest.param(
            valued(connect_envelope(IN_JSON)),
            f". The event is inside a JSON string: set value.converter={STRINGS}",
            id="a JSON string with a schema",
        ),
        pytest.param(
            valued(connect_envelope(JSON)),
            ". The event is inside an envelope of Kafka Connect: set value.converter.schemas.enable=false",
            id="an event with a schema",
        ),
        pytest.param(
            converted(wrap=False), f". The headers are JSON: set header.converter={STRINGS}", id="headers in quotes"
        ),
        pytest.param(
            converted(wrap=True), f". The headers are JSON: set header.converter={STRINGS}", id="headers with a schema"
        ),
        pytest.param(keyed(b"1"), "", id="another key"),
        pytest.param(msgspec.structs.replace(LEAD, key=None), "", id="no key"),
        pytest.param(valued(b"x"), "", id="another value"),
        pytest.param(valued(b'{"payload":{}}'), "", id="another envelope"),
        pytest.param(crm.binary(crm.lead(version=0)), "", id="a bad value in binary mode"),
    ],
)
def test_the_reason_says_what_to_set(message: Message, hint: str) -> None:
    reason = why(message.record()).reason.partition(" (event ")[0]
    assert reason.endswith(hint) if hint else ". " not in reason, reason


def test_nothing_is_said_of_a_key_that_is_not_there() -> None:
    assert "with ids in lower case (event" in why(msgspec.structs.replace(LEAD.record(), key=None)).reason


SCHEMA = event_schemas()["crm.lead.changed"]


@pytest.mark.parametrize(
    ("field", "text", "good"),
    [
        *(
            pytest.param("version", text, True, id=text)
            for text in ("7", "7.0", "7.00", "70e-1", "7E0", "1e3", "0.7e1")
        ),
        *(
            pytest.param("version", text, False, id=text)
            for text in ("7.5", "0.0", "-1.0", '"7"', "9007199254740992.0")
        ),
        *(
            pytest.param("created_at", f'"{text}"', True, id=text)
            for text in (
                "9999-12-31T23:59:59.9999999Z",
                "0001-01-01T00:00:00+14:00",
                "2026-01-01t00:00:00.123456789012z",
                "2016-12-31T23:59:60Z",
                "2026-01-01T00:00:00-00:00",
            )
        ),
        *(
            pytest.param("created_at", f'"{text}"', False, id=text)
            for text in ("2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:00:00.Z", "2026-01-01T00:00Z")
        ),
    ],
)
def test_program_and_schema_agree(field: str, text: str, good: bool) -> None:
    template = structured(lead_data() | {field: "*"}).value or b""
    value = template.replace(b'"*"', text.encode())
    validator = jsonschema_rs.validator_for(SCHEMA, validate_formats=True)
    assert validator.is_valid(msgspec.json.decode(value)) == good
    assert (bad(valued(value).record()) is None) == good
