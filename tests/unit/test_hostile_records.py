"""Whatever a record holds, reading it ends in an intent or in BadRecord: never in another error."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import resources
from tests.harness import crm
from tests.harness.crm import Message
from tests.harness.hostile_events import HOSTILE, TREES, VALID, check

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("name", HOSTILE)
@given(data=st.data())
@settings(max_examples=200)
def test_any_record_is_good_or_bad(name: str, data: st.DataObject) -> None:
    check(data.draw(HOSTILE[name]))


@given(message=st.sampled_from(VALID), value=TREES)
def test_any_json(message: Message, value: object) -> None:
    """Encoded by msgspec: orjson refuses integers of more than 64 bits."""
    assert check(msgspec.structs.replace(message, value=msgspec.json.encode(value))) == "bad"


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
