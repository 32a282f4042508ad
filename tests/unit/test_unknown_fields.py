"""Unknown fields of events: which names count, which known one was probably meant, and the sample of live records that
is searched for them: one of each topic in a second."""

from typing import Any
from unittest.mock import patch

import msgspec
import orjson
import pytest

from docs.generate.json_schema import examples
from projector.line.metrics import SAMPLED, UnknownFields
from projector.record import Partition, Record
from projector.unknown_fields import has_unknown_fields, unknown_fields, unknown_headers
from schemas import resources, words
from schemas.faults import Fault
from tests.harness import crm


def named(record: Record) -> list[tuple[str, str]]:
    return [(fault.path, fault.expected) for fault in unknown_fields(record)]


def enveloped(message: crm.Message, **attributes: Any) -> crm.Message:
    event = orjson.loads(message.value or b"") | attributes
    return msgspec.structs.replace(
        message, value=orjson.dumps({name: value for name, value in event.items() if value is not None})
    )


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
        pytest.param(enveloped(crm.lead(), time=None, tiem=crm.at(0)), [("$.tiem", "time")], id="an attribute"),
        pytest.param(
            enveloped(crm.lead(), traceparent="00", subject="x", tiem="x", dataschema="x", resource="x"),
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
    assert sorted(named(message.record())) == sorted(found)


@pytest.mark.parametrize("type_", examples())
def test_no_field_of_the_examples_is_unknown(type_: str) -> None:
    kind = next(kind for kind in resources.KINDS if type_.startswith(f"crm.{kind.noun}."))
    value = orjson.dumps(examples()[type_])
    assert unknown_fields(Record("t", 0, 0, 0, b"", value, (), kind)) == []


def test_headers() -> None:
    most = ["ce_specversion", "ce_id", "ce_source", "ce_type", "content-type"]
    assert [fault.path for fault in unknown_headers([*most, "ce_tiem", "tiem"])] == ["headers.ce_tiem"]
    assert unknown_headers([*most, "ce_time", "ce_tiem", "ce_traceparent"]) == []


def test_the_message_names_the_nearest_field() -> None:
    [fault] = unknown_fields(crm.lead(event_typ_key="x").record())
    assert words.fault(fault) == "`$.data.event_typ_key` is not a known field: did you mean `event_type_key`?"


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
    sample.look({LEADS: [known, unknown], CONTACTS: [crm.contact().record()]}, 100.0)
    sample.look({LEADS: [known], Partition("crm.leads", 1): [unknown]}, 100.9)
    assert (counted(LEADS.topic), counted(CONTACTS.topic)) == ((0, 1), (1, 0))
    sample.look({LEADS: [known]}, 101.0)
    assert counted(LEADS.topic) == (1, 1)


def test_what_takes_long_or_has_no_fields_is_left_out() -> None:
    SAMPLED.clear()
    sample = UnknownFields([LEADS.topic])
    large = crm.lead(colour="red", referrer="x" * 17_000).record()
    unread = Record("crm.leads", 0, 0, 0, b"", None, (), resources.LEAD, Fault("unreadable_batch"))
    for record in (large, unread, crm.tombstone(resources.LEAD).record()):
        sample.look({LEADS: [record]}, 100.0)
    assert counted(LEADS.topic) == (0, 0)
    sample.look({LEADS: [msgspec.structs.replace(large, value=b"no JSON")]}, 100.0)
    assert counted(LEADS.topic) == (1, 0), "a bad record has a dead letter, and counts once"


def test_many_unknown_fields_take_no_longer_than_one() -> None:
    """A search for the nearest name of each would let the event loop stand."""
    names = {f"contact_i{number}": 0 for number in range(800)}
    record = crm.lead(**names).record()
    with patch("projector.unknown_fields.get_close_matches") as search:
        assert has_unknown_fields(record)
    assert not search.called
    assert len(unknown_fields(record)) == 100, "whoever asks for the names gets the first hundred"
