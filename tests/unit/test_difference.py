"""What the log says when the control record has changed: that Redis was emptied only if it was."""

from typing import Any

import pytest
from msgspec.structs import replace

from projector.ledger.control import ControlRecord, Copy, State, difference
from schemas.control import Stamp
from tests.harness.generations import generation, ids

STAMP = Stamp.first()
CHANGED = "the control record has changed"
BEFORE = State(generation(1), ids(1), {}, ("1", "ledger"))


def record(stamp: Stamp = STAMP, incarnations: tuple[str, str] = ("a", "b"), **state: Any) -> ControlRecord:
    for name in ("written", "dropping"):
        if name in state:
            state[name] = ids(*state[name])
    for name in ("live", "previous"):
        if name in state:
            state[name] = generation(state[name])
    changed = replace(BEFORE, **state)
    copies = {
        tag: Copy(stamp, changed, incarnation, (), ids(1), (), {})
        for tag, incarnation in zip((b"1", b"ledger"), incarnations, strict=True)
    }
    return ControlRecord(stamp, changed, copies)


@pytest.mark.parametrize(
    ("after", "text", "emptied"),
    [
        pytest.param(record(Stamp.first(), ("c", "d")), "Redis was emptied", True, id="emptied"),
        pytest.param(record(STAMP.next(), ("c", "d")), "Redis was emptied", True, id="every shard was emptied"),
        pytest.param(
            record(STAMP.next(), ("a", "d")), "1 of the 2 parts (shards) of Redis were emptied", True, id="a shard"
        ),
        pytest.param(record(STAMP.next(), written=(1, 2)), CHANGED, False, id="rebuild"),
        pytest.param(
            record(STAMP.next(), live=2, written=(1, 2), previous=1),
            CHANGED,
            False,
            id="promoted",
        ),
        pytest.param(
            record(STAMP.next(), live=2, written=(2,), dropping=(1,)),
            CHANGED,
            False,
            id="promoted and dropped",
        ),
        pytest.param(
            record(STAMP.next(), live=2, written=(2,)),
            CHANGED,
            False,
            id="dropped",
        ),
        pytest.param(record(STAMP.next(), flipped_at=1), CHANGED, False, id="something else"),
    ],
)
def test_what_has_changed(after: ControlRecord, text: str, emptied: bool) -> None:
    assert difference(record(), after) == (text, emptied)


def test_nothing_has_changed() -> None:
    assert difference(record(), record()) is None


def test_a_copy_that_moved_was_not_emptied() -> None:
    before, stamp = record(), STAMP.next()
    state = replace(BEFORE, copies=("2", "ledger"))
    after = ControlRecord(
        stamp, state, {b"2": Copy(stamp, state, "c", (), ids(1), (), {}), b"ledger": before.present[1]}
    )
    assert difference(before, after) == (CHANGED, False)
