"""The reasons of dead letters: what they say, and the kind that they are counted as."""

from typing import Any

import msgspec
import pytest

from projector.errors import BadRecord
from projector.interpret import interpret
from projector.reason import KINDS, explain, kind_of
from projector.record import Record
from schemas import resources
from tests.harness import crm

SECRET = "Grace Hopper"
ORIGIN = " (event e1 of /crm)"
NO_JSON = crm.Message(resources.LEAD, crm.lead().key, b"no JSON")


def reason_of(record: Record) -> str:
    with pytest.raises(BadRecord) as raised:
        interpret(record)
    return raised.value.reason


def enveloped(**attributes: Any) -> crm.Message:
    message = crm.lead(1, stage=SECRET)
    event = msgspec.json.decode(message.value or b"") | attributes
    return msgspec.structs.replace(message, value=msgspec.json.encode(event))


STAGES = "ACCEPTED, IN_PROGRESS, NEW, QUOTE_SENT, REJECTED, STALE"


@pytest.mark.parametrize(
    ("message", "reason", "kind"),
    [
        pytest.param(
            crm.lead(1, stage=SECRET),
            f"Invalid enum value '…' - at `$.data.stage`: allowed are {STAGES}{ORIGIN}",
            "value",
            id="a value that is not allowed",
        ),
        pytest.param(
            crm.binary(crm.lead(1, stage=SECRET)),
            f"Invalid enum value '…' - at `$.stage`: allowed are {STAGES}{ORIGIN}",
            "value",
            id="in binary mode",
        ),
        pytest.param(
            crm.api_key(1, status=SECRET),
            f"Invalid enum value '…' - at `$.data.status`: allowed are active, revoked{ORIGIN}",
            "value",
            id="of an API key",
        ),
        pytest.param(
            enveloped(type=SECRET),
            f"Invalid value '…' - at `$.type`: allowed are crm.lead.changed, crm.lead.deleted{ORIGIN}",
            "envelope",
            id="another type of event",
        ),
        pytest.param(
            enveloped(specversion="2.0"),
            f"Invalid enum value '…' - at `$.specversion`: allowed are 1.0{ORIGIN}",
            "envelope",
            id="another version of CloudEvents",
        ),
        pytest.param(
            crm.lead(1, events=[{"id": SECRET}]),
            f"Expected `str` of length >= 36 - at `$.data.events[0].id`{ORIGIN}",
            "value",
            id="inside a list",
        ),
        pytest.param(
            crm.contact(1, first_name=None),
            f"Expected `str`, got `null` - at `$.data.first_name`{ORIGIN}",
            "value",
            id="another type",
        ),
        pytest.param(
            msgspec.structs.replace(crm.lead(1), key=b"x"),
            f"the message key is not <organization_id>:<entity_id> with ids in lower case{ORIGIN}",
            "message-key",
            id="the message key",
        ),
        pytest.param(NO_JSON, "JSON is malformed: invalid character (byte 4)", "json", id="no JSON: no event either"),
        pytest.param(
            crm.lead(1, attribution={"source": [0] * 1001}),
            f"a list in `$.data.attribution` has more than 1,000 entries{ORIGIN}",
            "limit",
            id="a limit",
        ),
        pytest.param(
            enveloped(id="\x1b[31m" + "x" * 200, source="a (event b of c)"),
            f"Invalid enum value '…' - at `$.data.stage`: allowed are {STAGES} "
            f"(event ?[31m{'x' * 75} of a (event b of c))",
            "value",
            id="a hostile id",
        ),
        pytest.param(
            enveloped(id=7, source=[SECRET]),
            "Expected `str`, got `int` - at `$.id`",
            "envelope",
            id="what is no text is not shown",
        ),
    ],
)
def test_a_reason_names_the_field_the_allowed_values_and_the_event(
    message: crm.Message, reason: str, kind: str
) -> None:
    found = reason_of(message.record())
    assert found == reason
    assert SECRET not in found
    assert kind_of(found) == kind


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        pytest.param("Object missing required field `stage` - at `$.data`", "missing-field", id="missing"),
        pytest.param("Object missing required field `type`", "envelope", id="no type"),
        pytest.param("header ce_id or ce_source is missing", "envelope", id="binary"),
        pytest.param("the message key has 15,000,000 bytes, more than 200", "limit", id="a long key"),
        pytest.param("the text is not UTF-8", "json", id="no UTF-8"),
        pytest.param("`$.data.contact_id` is not a UUID", "value", id="no UUID"),
        pytest.param("reading this record failed with X, which is a defect of Leadview: see its log", "defect", id="d"),
        pytest.param("the record is not encoded as Kafka describes it", "batch", id="an unreadable record"),
        pytest.param("something else", "other", id="other"),
    ],
)
def test_the_kind_of_a_reason(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind
    assert kind in KINDS


def test_the_version_is_kept_as_far_as_it_can_be_read() -> None:
    no_version = crm.changed(resources.LEAD, crm.lead_data(version="x"))
    for message, version in (
        (crm.lead(7, stage="x"), 7),
        (NO_JSON, None),
        (no_version, None),
    ):
        with pytest.raises(BadRecord) as raised:
            interpret(message.record())
        assert raised.value.version == version


def test_an_explanation_needs_no_value() -> None:
    assert explain("bad", Record("crm.leads", 0, 0, 0, None, None, (), resources.LEAD)) == "bad"
