"""Whatever a record holds, reading it ends in an intent or in BadRecord: never in another error."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import resources
from tests.harness import crm
from tests.harness.crm import Message
from tests.harness.hostile_events import MORSELS, SECRET, VALID, check, tokens

pytestmark = pytest.mark.heavy

texts = st.text(max_size=8) | st.just(SECRET)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
valid = st.sampled_from(VALID)


@given(kind=st.sampled_from(resources.KINDS), key=st.none() | st.binary(max_size=80), value=st.none() | st.binary())
def test_any_bytes(kind: resources.Kind, key: bytes | None, value: bytes | None) -> None:
    check(Message(kind, key or b"", value))


@given(message=valid, value=json)
def test_any_json(message: Message, value: object) -> None:
    """Encoded by msgspec: orjson refuses integers of more than 64 bits."""
    assert check(msgspec.structs.replace(message, value=msgspec.json.encode(value))) == "bad"


@given(message=valid, data=st.data())
def test_events_with_some_bytes_replaced(message: Message, data: st.DataObject) -> None:
    value = message.value or b""
    start = data.draw(st.integers(0, len(value)))
    end = data.draw(st.integers(start, min(len(value), start + 8)))
    check(msgspec.structs.replace(message, value=value[:start] + data.draw(st.binary(max_size=8)) + value[end:]))


@given(message=valid, new=json, data=st.data())
def test_events_with_a_value_replaced(message: Message, new: object, data: st.DataObject) -> None:
    frame, brace, rest = (message.value or b"").partition(b"{")
    event: Any = msgspec.json.decode(brace + rest)
    place = event.get("data", event)
    field = data.draw(st.sampled_from(sorted(place)))
    check(msgspec.structs.replace(message, value=frame + msgspec.json.encode(event | _placed(event, field, new))))


names = st.sampled_from(["ce_specversion", "ce_type", "ce_time", "ce_id", "ce_source", "content-type"]) | st.text()


@given(message=valid, headers=st.lists(st.tuples(names, st.binary(max_size=30)), max_size=4))
def test_events_with_any_headers(message: Message, headers: list[tuple[str, bytes]]) -> None:
    check(msgspec.structs.replace(message, headers=(*message.headers, *headers)))


@given(message=valid, data=st.data())
@settings(max_examples=250)
def test_events_with_what_programs_choke_on(message: Message, data: st.DataObject) -> None:
    value = message.value or b""
    for _ in range(data.draw(st.integers(1, 2))):
        places = tokens(value)
        start, end = places[data.draw(st.integers(0, len(places) - 1))]
        value = value[:start] + data.draw(st.sampled_from(MORSELS)) + value[end:]
    check(msgspec.structs.replace(message, value=value))


@given(message=valid, data=st.data())
def test_events_cut_off_or_with_bits_flipped(message: Message, data: st.DataObject) -> None:
    value = bytearray(message.value or b"")
    for bit in data.draw(st.lists(st.integers(0, len(value) * 8 - 1), max_size=3)):
        value[bit // 8] ^= 1 << bit % 8
    check(msgspec.structs.replace(message, value=bytes(value[: data.draw(st.integers(0, len(value)))])))


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


def _placed(event: dict[str, Any], field: str, new: object) -> dict[str, object]:
    return {"data": event["data"] | {field: new}} if "data" in event else {field: new}
