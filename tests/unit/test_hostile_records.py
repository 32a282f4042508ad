"""Whatever a record holds, reading it ends in an intent or in BadRecord: never in another error."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from projector import mapping
from projector.change import read
from projector.errors import BadRecord
from projector.record import Kind
from projector.reference import documents_of
from tests import crm
from tests.crm import Message

json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
VALID = [
    crm.lead(attribution={"a": [1]}, events=[{"id": crm.uuid(1)}], quote={"total": "1.50"}, tags=["x"]),
    crm.contact(custom_fields={"a": 1}, email="a@b.c"),
    crm.organization(rate_limits={"key": {"quota": 1, "window_seconds": 1}}),
    crm.api_key(expires_at=crm.at(1)),
    crm.deleted(Kind.LEAD, 2),
]
valid = st.sampled_from([*VALID, *(crm.binary(message) for message in VALID)])


def outcome(message: Message) -> str:
    """What became of it. Raises whatever is neither an intent nor BadRecord."""
    record = message.record()
    documents = documents_of([record])
    try:
        mapping.intent(read(record), record)
    except BadRecord:
        assert not documents
        return "bad"
    return "good"


@given(kind=st.sampled_from(list(Kind)), key=st.none() | st.binary(max_size=80), value=st.none() | st.binary())
def test_any_bytes(kind: Kind, key: bytes | None, value: bytes | None) -> None:
    outcome(Message(kind, key or b"", value))


@given(message=valid, value=json)
def test_any_json(message: Message, value: object) -> None:
    assert outcome(msgspec.structs.replace(message, value=msgspec.json.encode(value))) == "bad"


@given(message=valid, data=st.data())
def test_events_with_some_bytes_replaced(message: Message, data: st.DataObject) -> None:
    value = message.value or b""
    start = data.draw(st.integers(0, len(value)))
    end = data.draw(st.integers(start, min(len(value), start + 8)))
    outcome(msgspec.structs.replace(message, value=value[:start] + data.draw(st.binary(max_size=8)) + value[end:]))


@given(message=valid, new=json, data=st.data())
def test_events_with_a_value_replaced(message: Message, new: object, data: st.DataObject) -> None:
    event: Any = msgspec.json.decode(message.value or b"")
    place = event.get("data", event)
    field = data.draw(st.sampled_from(sorted(place)))
    outcome(msgspec.structs.replace(message, value=msgspec.json.encode(event | _placed(event, field, new))))


names = st.sampled_from(["ce_specversion", "ce_type", "ce_time", "ce_id", "ce_source", "content-type"]) | st.text()


@given(message=valid, headers=st.lists(st.tuples(names, st.binary(max_size=30)), max_size=4))
def test_events_with_any_headers(message: Message, headers: list[tuple[str, bytes]]) -> None:
    outcome(msgspec.structs.replace(message, headers=(*message.headers, *headers)))


@given(depth=st.integers(1, 1200))
@settings(max_examples=300)
def test_attribution_of_any_depth(depth: int) -> None:
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    value = (crm.lead().value or b"").replace(b'"stage"', b'"attribution":' + deep + b',"stage"')
    outcome(Message(Kind.LEAD, crm.lead().key, value))


def _placed(event: dict[str, Any], field: str, new: object) -> dict[str, object]:
    return {"data": event["data"] | {field: new}} if "data" in event else {field: new}
