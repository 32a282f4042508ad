"""The reasons of dead letters: what they say, and the kind that they are counted as. Unknown fields of events: which
names count, which known one was probably meant, and the sample of live records that is searched for them: one of each
topic in a second.
"""

from unittest.mock import patch

import msgspec
import orjson
import pytest

from docs.generate.json_schema import examples
from projector.errors import BadRecord
from projector.interpret import interpret
from projector.line.metrics import SAMPLED, UnknownFields
from projector.record import Partition, Record
from projector.unknown_fields import has_unknown_fields, unknown_fields, unknown_headers
from schemas import resources, words
from schemas.faults import KINDS, LABELS, Fault, FaultKind, Label, fault_of
from tests.harness import crm

SECRET = "Grace Hopper"
ORIGIN = " (event e1 of /crm)"
NO_JSON = crm.Message(resources.LEAD, crm.lead().key, b"no JSON")


UUID_WITHOUT_DIGITS = "x" * 36
TIME = "RFC 3339 time with an offset, such as 2026-03-02T09:15:00Z"
TYPES = "crm.lead.changed, crm.lead.deleted"


def fault_in(record: Record) -> Fault:
    with pytest.raises(BadRecord) as raised:
        interpret(record)
    assert raised.value.reason == words.fault(raised.value.fault)
    return raised.value.fault


BINARY, BAD_STAGE = crm.binary(crm.lead(1)), crm.lead(1, stage=SECRET)
STAGES = "ACCEPTED, IN_PROGRESS, NEW, QUOTE_SENT, REJECTED, STALE"


@pytest.mark.parametrize(
    ("message", "reason", "kind"),
    [
        pytest.param(
            crm.lead(1, stage=SECRET),
            f"`$.data.stage` is not valid: allowed are {STAGES}{ORIGIN}",
            "value",
            id="a value that is not allowed",
        ),
        pytest.param(
            crm.binary(crm.lead(1, stage=SECRET)),
            f"`$.stage` is not valid: allowed are {STAGES}{ORIGIN}",
            "value",
            id="in binary mode",
        ),
        pytest.param(
            crm.framed(crm.lead(1, stage=SECRET)),
            f"`$.data.stage` is not valid: allowed are {STAGES}{ORIGIN}",
            "value",
            id="in the frame of a schema registry",
        ),
        pytest.param(
            crm.api_key(1, status=SECRET),
            f"`$.data.status` is not valid: allowed are active, revoked{ORIGIN}",
            "value",
            id="of an API key",
        ),
        pytest.param(
            crm.with_attributes(BAD_STAGE, type=SECRET),
            f"`$.type` is not valid: allowed are crm.lead.changed, crm.lead.deleted{ORIGIN}",
            "envelope",
            id="another type of event",
        ),
        pytest.param(
            crm.with_attributes(BAD_STAGE, specversion="2.0"),
            f"`$.specversion` is not valid: allowed are 1.0{ORIGIN}",
            "envelope",
            id="another version of CloudEvents",
        ),
        pytest.param(
            crm.lead(1, events=[{"id": SECRET}]),
            f"`$.data.events[0].id` is not valid: expected a UUID{ORIGIN}",
            "value",
            id="inside a list",
        ),
        pytest.param(
            crm.contact(1, first_name=None),
            f"`$.data.first_name` is null: expected text{ORIGIN}",
            "value",
            id="another type",
        ),
        pytest.param(
            msgspec.structs.replace(crm.lead(1), key=b"x"),
            f"the message key is not <organization_id>:<entity_id> with ids in lower case{ORIGIN}",
            "message-key",
            id="the message key",
        ),
        pytest.param(
            NO_JSON, "the value is not JSON: invalid character (byte 4)", "json", id="no JSON: no event either"
        ),
        pytest.param(
            crm.lead(1, attribution={"source": [0] * 1001}),
            f"a list in `$.data.attribution` has more than 1,000 entries{ORIGIN}",
            "limit",
            id="a limit",
        ),
        pytest.param(
            crm.with_attributes(BAD_STAGE, id="\x1b[31m" + "x" * 200, source="a (event b of c)"),
            f"`$.data.stage` is not valid: allowed are {STAGES} (event ?[31m{'x' * 75} of a (event b of c))",
            "value",
            id="a hostile id",
        ),
        pytest.param(
            crm.with_attributes(BAD_STAGE, id=7, source=[SECRET]),
            "`$.id` is an integer: expected text that is not empty",
            "envelope",
            id="what is no text is not shown",
        ),
    ],
)
def test_reason_names_the_field_the_allowed_values_and_the_event(message: crm.Message, reason: str, kind: str) -> None:
    found = fault_in(message.record())
    assert (words.fault(found), found.label) == (reason, kind)
    assert SECRET not in str(found)


@pytest.mark.parametrize(
    ("fault", "label", "said"),
    [
        pytest.param(
            Fault("missing", "$.data.stage", allowed=("NEW",)),
            "missing-field",
            "`$.data.stage` is missing: allowed are NEW",
            id="missing",
        ),
        pytest.param(Fault("missing", "$.type"), "envelope", "`$.type` is missing", id="no type"),
        pytest.param(
            Fault("missing", "headers.ce_id", "text that is not empty"),
            "envelope",
            "header ce_id is missing: expected text that is not empty",
            id="binary",
        ),
        pytest.param(
            Fault("key_bytes", "key", count=15_000_000, most=200),
            "limit",
            "the message key has 15,000,000 bytes, more than 200",
            id="a long key",
        ),
        pytest.param(Fault("not_utf8"), "json", "the text is not UTF-8", id="no UTF-8"),
        pytest.param(
            Fault("registry_frame"),
            "json",
            "the value has the frame of a schema registry, and what follows is not a JSON object: Avro and Protobuf "
            "are not read, so use the serializer for JSON Schema",
            id="the frame of a schema registry",
        ),
        pytest.param(
            Fault("not_expected", "$.data.contact_id", "a UUID"),
            "value",
            "`$.data.contact_id` is not a UUID",
            id="no UUID",
        ),
        pytest.param(
            Fault("other_than_key", "$.data.id", "that of the message key"),
            "message-key",
            "`$.data.id` is not that of the message key",
            id="another id than in the key",
        ),
        pytest.param(
            Fault("defect", found="X"),
            "defect",
            "reading this record failed with X, which is a defect of Leadview: see its log",
            id="a defect",
        ),
        pytest.param(
            Fault("unreadable_record", expected="encoded as Kafka describes it"),
            "batch",
            "the record is not encoded as Kafka describes it",
            id="an unreadable record",
        ),
        pytest.param(
            Fault("unreadable_batch", found="it is corrupt, or it has more than 9 bytes", count=3, most=5),
            "batch",
            "the batch with the offsets 3 to 5 cannot be read: it is corrupt, or it has more than 9 bytes",
            id="an unreadable batch, whatever its codec says",
        ),
        pytest.param(Fault("other", found="something else"), "other", "something else", id="other"),
    ],
)
def test_fault_has_its_label_and_its_words(fault: Fault, label: Label, said: str) -> None:
    assert (fault.label, words.fault(fault)) == (label, said)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_words_and_a_label(kind: FaultKind) -> None:
    fault = Fault(kind, "$.data.x", "an integer", found="a thing", count=1, most=2)
    assert words.fault(fault)
    assert fault.label in LABELS
    assert msgspec.json.decode(msgspec.json.encode(fault), type=Fault) == fault


@pytest.mark.parametrize(
    ("message", "path", "expected", "allowed"),
    [
        pytest.param(crm.lead(1, stage=SECRET), "$.data.stage", f"one of {STAGES}", STAGES.split(", "), id="values"),
        pytest.param(crm.binary(crm.contact(1, email=7)), "$.email", "text, or null", [], id="in binary mode"),
        pytest.param(crm.lead(1, contact_id=UUID_WITHOUT_DIGITS), "$.data.contact_id", "a UUID", [], id="an id"),
        pytest.param(
            crm.binary(crm.lead(1, contact_id=UUID_WITHOUT_DIGITS)), "$.contact_id", "a UUID", [], id="an id, binary"
        ),
        pytest.param(crm.lead(1, created_at=5), "$.data.created_at", f"an {TIME}", [], id="a time"),
        pytest.param(crm.api_key(1, hash="x"), "$.data.hash", "64 hexadecimal digits", [], id="a hash"),
        pytest.param(
            crm.lead(1, tags=["x"] * 1001),
            "$.data.tags",
            "an array of at most 1,000 entries, each text, or null",
            [],
            id="a list",
        ),
        pytest.param(crm.with_headers(BINARY, ce_id=b""), "headers.ce_id", "text that is not empty", [], id="a header"),
        pytest.param(
            crm.with_headers(BINARY, ce_type=b""), "headers.ce_type", f"one of {TYPES}", TYPES.split(", "), id="no type"
        ),
        pytest.param(
            crm.with_headers(BINARY, ce_time=b"now"), "headers.ce_time", f"an {TIME}", [], id="a time in a header"
        ),
        pytest.param(
            msgspec.structs.replace(crm.lead(1), key=b"x"),
            "key",
            "<organization_id>:<entity_id> with ids in lower case",
            [],
            id="the message key",
        ),
        pytest.param(NO_JSON, "$", "a JSON object", [], id="no JSON"),
        pytest.param(crm.lead(1, attribution={"a": [0] * 1001}), "$.data.attribution", "", [], id="a limit"),
    ],
)
def test_fault_has_path_expectation_and_allowed_values(
    message: crm.Message, path: str, expected: str, allowed: list[str]
) -> None:
    fault = fault_in(message.record())
    assert (fault.path, fault.expected, list(fault.allowed)) == (path, expected, allowed)


TRACE, OTHER = "0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736"


def parent(trace: str) -> str:
    return f"00-{trace}-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("message", "trace"),
    [
        pytest.param(BAD_STAGE, "", id="none"),
        pytest.param(crm.with_attributes(BAD_STAGE, traceparent=parent(TRACE)), TRACE, id="an attribute"),
        pytest.param(crm.framed(crm.with_attributes(BAD_STAGE, traceparent=parent(TRACE))), TRACE, id="in a frame"),
        pytest.param(crm.binary(crm.with_attributes(BAD_STAGE, traceparent=parent(TRACE))), TRACE, id="binary"),
        pytest.param(crm.with_headers(BAD_STAGE, traceparent=parent(TRACE).encode()), TRACE, id="a header of Kafka"),
        pytest.param(
            crm.with_headers(
                crm.with_attributes(BAD_STAGE, traceparent=parent(TRACE)), traceparent=parent(OTHER).encode()
            ),
            TRACE,
            id="the event's own first",
        ),
        pytest.param(
            crm.with_headers(crm.with_attributes(BAD_STAGE, traceparent="00"), traceparent=parent(OTHER).encode()),
            OTHER,
            id="the header, if the event's own is not valid",
        ),
        pytest.param(crm.with_attributes(BAD_STAGE, traceparent=SECRET), "", id="any text"),
        pytest.param(crm.with_attributes(BAD_STAGE, traceparent=7), "", id="a number"),
        pytest.param(crm.with_headers(BAD_STAGE, traceparent=b"\xff"), "", id="no text"),
        pytest.param(NO_JSON, "", id="no JSON"),
    ],
)
def test_the_trace_of_a_bad_event_is_kept(message: crm.Message, trace: str) -> None:
    fault = fault_in(message.record())
    assert fault.trace_id == trace
    assert fault.event_id == ("" if message is NO_JSON else "e1")


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (crm.lead(7, stage="x"), 7),
        (crm.framed(crm.lead(7, stage="x")), 7),
        (NO_JSON, None),
        (crm.changed(resources.LEAD, crm.lead_data(version="x")), None),
    ],
)
def test_the_version_is_kept_as_far_as_it_can_be_read(message: crm.Message, version: int | None) -> None:
    with pytest.raises(BadRecord) as raised:
        interpret(message.record())
    assert raised.value.version == version


def test_explanation_needs_no_value() -> None:
    problem = Fault("unreadable_batch")
    assert fault_in(Record("crm.leads", 0, 0, 0, None, None, (), resources.LEAD, problem)) == problem


@pytest.mark.parametrize("kind", resources.KINDS, ids=lambda kind: kind.noun)
def test_every_field_has_words_for_what_is_expected(kind: resources.Kind) -> None:
    for field in msgspec.structs.fields(kind.event):
        fault = fault_of(f"Object missing required field `{field.name}` - at `$.data`", kind, binary=False)
        assert fault.expected
        assert words.fault(fault).startswith(f"`$.data.{field.name}` is missing: ")


@pytest.mark.parametrize(
    ("called", "command"),
    [
        pytest.param("/opt/leadview/bin/leadview", "leadview run", id="installed"),
        pytest.param("/app/leadview/__main__.py", "python -m leadview run", id="in a checkout"),
        pytest.param("/app/projector/__main__.py", "python -m projector run", id="the projector"),
        pytest.param("/app/api/__main__.py", "python -m projector run", id="the API, which has no such commands"),
        pytest.param("", "python -m projector run", id="not known"),
    ],
)
def test_command_is_named_as_it_was_called(monkeypatch: pytest.MonkeyPatch, called: str, command: str) -> None:
    monkeypatch.setattr("sys.argv", [called, "status"])
    assert words.as_called("run") == command


@pytest.mark.parametrize(
    ("message", "found"),
    [
        pytest.param(crm.lead(event_typ_key="x"), [("$.data.event_typ_key", "event_type_key")], id="a typing error"),
        pytest.param(crm.lead(eventTypeKey="x"), [("$.data.eventTypeKey", "event_type_key")], id="in camel case"),
        pytest.param(crm.lead(colour="red"), [("$.data.colour", "")], id="near no known field"),
        pytest.param(
            crm.binary(crm.lead(event_typ_key="x")), [("$.event_typ_key", "event_type_key")], id="in binary mode"
        ),
        pytest.param(
            crm.lead(events=[{"id": crm.uuid(1)}, {"id": crm.uuid(2), "lenght_hours": 1}]),
            [("$.data.events[1].lenght_hours", "length_hours")],
            id="in a list",
        ),
        pytest.param(crm.lead(quote={"totel": "1"}), [("$.data.quote.totel", "total")], id="in an object"),
        pytest.param(crm.lead(attribution={"stag": {"stag": 1}}), [], id="what belongs to the user is not checked"),
        pytest.param(crm.contact(custom_fields={"emial": 1}), [], id="custom fields are not checked"),
        pytest.param(
            crm.changed(resources.LEAD, crm.lead_data(), verb="deleted"),
            [(f"$.data.{name}", "") for name in ("contact_id", "stage", "created_at", "updated_at")],
            id="a deletion has three fields alone",
        ),
        pytest.param(
            crm.with_attributes(crm.lead(), time=None, tiem=crm.at(0)), [("$.tiem", "time")], id="an attribute"
        ),
        pytest.param(
            crm.with_attributes(crm.lead(), traceparent="00", subject="x", tiem="x", dataschema="x", resource="x"),
            [],
            id="extension attributes are no mistakes, if none is missing that is like them",
        ),
        pytest.param(crm.lead(**{"a\x1b" + "b" * 200: 1}), [("$.data.a?" + "b" * 78, "")], id="a hostile name"),
        pytest.param(
            msgspec.structs.replace(crm.lead(), value=b"\0\0\0\0\x07" + (crm.lead(colour=1).value or b"")),
            [("$.data.colour", "")],
            id="in the frame of a schema registry",
        ),
        pytest.param(crm.tombstone(resources.LEAD), [], id="a tombstone"),
        pytest.param(msgspec.structs.replace(crm.lead(), value=b"[1]"), [], id="an array"),
        pytest.param(msgspec.structs.replace(crm.lead(), value=b"{"), [], id="not JSON"),
        pytest.param(msgspec.structs.replace(crm.lead(), value=b'{"data":7,"type":[]}'), [], id="of other types"),
    ],
)
def test_unknown_fields_are_found(message: crm.Message, found: list[tuple[str, str]]) -> None:
    assert sorted((fault.path, fault.expected) for fault in unknown_fields(message.record())) == sorted(found)


@pytest.mark.parametrize("type_", examples())
def test_no_field_of_the_examples_is_unknown(type_: str) -> None:
    kind = next(kind for kind in resources.KINDS if type_.startswith(f"crm.{kind.noun}."))
    assert unknown_fields(Record("t", 0, 0, 0, b"", orjson.dumps(examples()[type_]), (), kind)) == []


def test_unknown_header_close_to_a_known_one_is_named() -> None:
    most = ["ce_specversion", "ce_id", "ce_source", "ce_type", "content-type"]
    assert [fault.path for fault in unknown_headers([*most, "ce_tiem", "tiem"])] == ["headers.ce_tiem"]
    assert unknown_headers([*most, "ce_time", "ce_tiem", "ce_traceparent"]) == []


LEADS, CONTACTS = Partition("crm.leads", 0), Partition("crm.contacts", 0)


def counted(topic: str) -> tuple[float, float]:
    """Returns how many records of the sample had known fields only, and how many had others."""
    [family] = SAMPLED.collect()
    values = {sample.labels["fields"]: sample.value for sample in family.samples if sample.labels["topic"] == topic}
    return values["known"], values["unknown"]


def test_one_record_of_each_topic_in_a_second_is_counted() -> None:
    SAMPLED.clear()
    sample = UnknownFields([LEADS.topic, CONTACTS.topic])
    assert (counted(LEADS.topic), counted(CONTACTS.topic)) == ((0, 0), (0, 0)), "they begin with 0"
    known, unknown = crm.lead().record(), crm.lead(event_typ_key="x").record()
    sample.look({LEADS: unknown, CONTACTS: crm.contact().record()}, 100.0)
    sample.look({LEADS: known, Partition("crm.leads", 1): unknown}, 100.9)
    assert (counted(LEADS.topic), counted(CONTACTS.topic)) == ((0, 1), (1, 0))
    sample.look({LEADS: known}, 101.0)
    assert counted(LEADS.topic) == (1, 1)


def test_what_takes_long_or_has_no_fields_is_left_out() -> None:
    SAMPLED.clear()
    sample = UnknownFields([LEADS.topic])
    large = crm.lead(colour="red", referrer="x" * 17_000).record()
    unread = Record("crm.leads", 0, 0, 0, b"", None, (), resources.LEAD, Fault("unreadable_batch"))
    for record in (large, unread, crm.tombstone(resources.LEAD).record()):
        sample.look({LEADS: record}, 100.0)
    assert counted(LEADS.topic) == (0, 0)
    sample.look({LEADS: msgspec.structs.replace(large, value=b"no JSON")}, 100.0)
    assert counted(LEADS.topic) == (1, 0), "a bad record has a dead letter, and counts once"


def test_many_unknown_fields_take_no_longer_than_one() -> None:
    """A search for the nearest name of each would let the event loop stand."""
    record = crm.lead(**{f"contact_i{number}": 0 for number in range(800)}).record()
    with patch("projector.unknown_fields.get_close_matches", side_effect=AssertionError):
        assert has_unknown_fields(record)
    *first, last = unknown_fields(record)
    assert len(first) == 100, "whoever asks for the names gets the first hundred"
    assert words.fault(last) == "700 more fields are not known"
    hundred = crm.lead(**{f"contact_i{number}": 0 for number in range(100)}).record()
    assert {fault.kind for fault in unknown_fields(hundred)} == {"unknown_field"}
