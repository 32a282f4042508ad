"""What a record may hold. Each limit in docs/events.md: what reaches it is good, and what exceeds it is a dead letter
that says so. And whatever a record holds, reading it ends in an intent or in BadRecord: never in another error.
"""

import re
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.generate.json_schema import event_schemas
from projector import mapping
from projector.dead_letter import DeadLetter
from projector.errors import BadRecord
from projector.interpret import interpret
from projector.mapping import PutDocument, PutLead
from schemas import resources
from schemas.faults import Fault
from schemas.limits import (
    MAX_CONTAINERS,
    MAX_DOCUMENT_BYTES,
    MAX_ENTRIES,
    MAX_INTEGER,
    MAX_LEVELS,
    MAX_SUMMARY_BYTES,
    MIN_INTEGER,
)
from tests.harness import crm
from tests.harness.crm import Message
from tests.harness.hostile_events import HOSTILE, TREES, VALID, check


def nested(levels: int) -> Any:
    """Returns an object with so many levels, this one included."""
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def event(number: int) -> dict[str, Any]:
    return {"id": crm.uuid(number)}


EVENTS = [event(number) for number in range(MAX_ENTRIES)]
FITS_DOCUMENT = MAX_DOCUMENT_BYTES - MAX_SUMMARY_BYTES - 2000


BEYOND = [
    pytest.param(
        crm.lead(tags=["t"] * (MAX_ENTRIES + 1)),
        "`$.data.tags` has too many entries: expected an array of at most 1,000 entries",
        id="tags",
    ),
    pytest.param(
        crm.lead(events=[*EVENTS, event(5000)]),
        "`$.data.events` has too many entries: expected an array of at most 1,000",
        id="events",
    ),
    pytest.param(
        crm.contact(custom_fields={"a": ["x"] * (MAX_ENTRIES + 1)}),
        "`$.data.custom_fields[...]` has too many entries",
        id="a custom field",
    ),
    pytest.param(
        crm.lead(attribution={"a": {"b": [[0] * (MAX_ENTRIES + 1)]}}),
        "a list in `$.data.attribution` has more than 1,000 entries",
        id="a list in attribution",
    ),
    pytest.param(
        crm.lead(attribution=nested(MAX_LEVELS + 1)), "nested too deeply: a field has more than 100 levels", id="levels"
    ),
    pytest.param(
        crm.lead(attribution={"a": [MAX_INTEGER + 1]}), "an integer in `$.data.attribution`", id="in attribution"
    ),
    pytest.param(
        crm.lead(attribution={"a": MIN_INTEGER - 1}), "an integer in `$.data.attribution`", id="a negative integer"
    ),
    pytest.param(
        crm.contact(custom_fields={"a": MAX_INTEGER + 1}),
        "`$.data.custom_fields[...]` is out of range: expected text, an integer of at most 64 bits",
        id="in custom fields",
    ),
    pytest.param(
        crm.lead(attribution={"a": [[[]] * 1000] * (MAX_CONTAINERS // 1000)}),
        "more than 10,000 objects and arrays",
        id="objects and arrays",
    ),
    pytest.param(crm.contact(custom_fields={"a": 10**4300 - 1}), "`$.data.custom_fields[...]`", id="4,300 digits"),
    pytest.param(
        crm.lead(counts={"notes": MIN_INTEGER - 1}),
        "`$.data.counts.notes` is out of range: expected an integer of at most 64",
        id="a count",
    ),
    pytest.param(crm.within(crm.lead(referrer="PLACE"), b"1e400"), "out of range", id="a number beyond a double"),
    pytest.param(crm.within(crm.lead(attribution={"a": "PLACE"}), b"1e400"), "out of range", id="such a number inside"),
    pytest.param(crm.within(crm.lead(attribution={"a": ["PLACE"]}), b"-1e999"), "out of range", id="in a list"),
    pytest.param(crm.lead(quote={"total": str(MAX_INTEGER + 1)}), "`$.data.quote.total` is an integer", id="a total"),
    pytest.param(
        crm.lead(referrer="x" * (FITS_DOCUMENT + 2000)), "the document without the contact has", id="a lead's document"
    ),
    pytest.param(
        crm.contact(custom_fields={"a": "\x01" * (MAX_DOCUMENT_BYTES // 6)}),
        "the document has 1,0",
        id="a contact's document",
    ),
    pytest.param(
        crm.contact(first_name="x" * MAX_SUMMARY_BYTES), "the summary of the contact (id, first_name", id="a summary"
    ),
]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(crm.lead(tags=["t"] * MAX_ENTRIES), id="tags"),
        pytest.param(crm.lead(events=EVENTS), id="events"),
        pytest.param(crm.contact(custom_fields={"a": ["x"] * MAX_ENTRIES}), id="a custom field"),
        pytest.param(crm.lead(attribution={"a": [0] * MAX_ENTRIES}), id="a list in attribution"),
        pytest.param(crm.lead(attribution=nested(MAX_LEVELS)), id="levels"),
        pytest.param(crm.lead(attribution={"a": [[[]] * 999] * (MAX_CONTAINERS // 1000 - 1)}), id="objects and arrays"),
        pytest.param(crm.lead(referrer='\\"[{' * (2 * MAX_CONTAINERS)), id="brackets in a text"),
        pytest.param(crm.lead(attribution={"a": MAX_INTEGER, "b": [MIN_INTEGER]}), id="integers in attribution"),
        pytest.param(crm.contact(custom_fields={"a": MAX_INTEGER, "b": MIN_INTEGER}), id="integers in custom fields"),
        pytest.param(crm.lead(counts={"notes": MAX_INTEGER}), id="a count"),
        pytest.param(crm.lead(attribution={"a": 1.7976931348623157e308}), id="a double"),
        pytest.param(crm.lead(quote={"total": str(MIN_INTEGER)}), id="an integer as a total"),
        pytest.param(crm.lead(quote={"total": "9" * 50 + ".25"}), id="a total with a fraction"),
        pytest.param(crm.lead(referrer="x" * FITS_DOCUMENT), id="a lead's document"),
        pytest.param(crm.contact(custom_fields={"a": "x" * (MAX_DOCUMENT_BYTES - 1000)}), id="a contact's document"),
        pytest.param(crm.contact(first_name="x" * (MAX_SUMMARY_BYTES - 500)), id="a summary"),
    ],
)
def test_what_reaches_a_limit_is_good(message: Message) -> None:
    intent, _ = interpret(message.record())
    assert isinstance(intent, PutDocument | PutLead)
    assert is_valid(message)


@pytest.mark.parametrize(("message", "reason"), BEYOND)
def test_what_exceeds_a_limit_is_bad(message: Message, reason: str) -> None:
    with pytest.raises(BadRecord, match=re.escape(reason)):
        interpret(message.record())


# JSON Schema takes an integer for a number, so it cannot limit those of custom fields.
IN_SCHEMA = [case for case in BEYOND if case.id in ("tags", "events", "a custom field", "a count")]


@pytest.mark.parametrize(("message", "_"), IN_SCHEMA)
def test_the_json_schema_says_the_same(message: Message, _: str) -> None:
    assert not is_valid(message)


def test_dead_letter_is_small() -> None:
    record = msgspec.structs.replace(crm.lead().record(), key=b"\xff" * 20_000_000)
    letter = DeadLetter.of(record, Fault("not_valid", "$.data.stage", found="x" * 500))
    assert len(msgspec.json.encode(letter)) < 4000


def test_defect_of_the_program_makes_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its value is not in the reason, and not in the log."""

    def defect(_: object) -> None:
        raise TypeError(crm.ORGANIZATION)

    monkeypatch.setitem(mapping._DOCUMENTS, resources.LEAD, defect)
    with pytest.raises(BadRecord, match="failed with TypeError, which is a defect"):
        interpret(crm.lead().record())
    [line] = caplog.records
    assert vars(line)["record"] == ["crm.leads", 0, 0]
    assert "in defect" in "".join(vars(line)["traceback"])
    assert crm.ORGANIZATION not in str(vars(line))


def is_valid(message: Message) -> bool:
    schema = event_schemas()[f"crm.{message.kind.noun}.changed"]
    # Not with orjson, which rounds integers of more than 64 bits.
    return bool(jsonschema_rs.is_valid(schema, msgspec.json.decode(message.value or b"")))


@pytest.mark.heavy
@pytest.mark.parametrize("name", HOSTILE)
@given(data=st.data())
@settings(max_examples=200)
def test_any_record_is_good_or_bad(name: str, data: st.DataObject) -> None:
    check(data.draw(HOSTILE[name]))


@pytest.mark.heavy
@given(message=st.sampled_from(VALID), value=TREES)
def test_any_json_that_exceeds_a_limit_is_bad(message: Message, value: object) -> None:
    """Encoded by msgspec: orjson refuses integers of more than 64 bits."""
    assert check(msgspec.structs.replace(message, value=msgspec.json.encode(value))) == "bad"


@pytest.mark.heavy
@pytest.mark.parametrize("frames", [pytest.param(0, id="a shallow stack"), pytest.param(400, id="a deep one")])
@pytest.mark.parametrize(
    ("depth", "outcome"), [(1, "good"), (99, "good"), (100, "good"), (101, "bad"), (1200, "bad"), (100_000, "bad")]
)
@pytest.mark.parametrize("brackets", [("{", "}"), ("[", "]")], ids=["objects", "arrays"])
def test_attribution_has_a_hundred_levels(brackets: tuple[str, str], depth: int, outcome: str, frames: int) -> None:
    """The limit is ours: it does not depend on how much of the stack is left."""
    opening, closing = brackets
    inner = f'{opening}"a":' * (depth - 1) if opening == "{" else opening * (depth - 1)
    deep = f'"attribution":{{"a":{inner}1{closing * (depth - 1)}}},"stage"'
    value = (crm.lead().value or b"").replace(b'"stage"', deep.encode())
    assert _below(frames, Message(resources.LEAD, crm.lead().key, value)) == outcome


def _below(frames: int, message: Message) -> str:
    return check(message) if frames == 0 else _below(frames - 1, message)
