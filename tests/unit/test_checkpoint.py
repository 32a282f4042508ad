"""Checkpoints: positions as text, the meaning of the replies of the script, and what a dead letter holds."""

import msgspec
import pytest

from projector.dead_letter import DeadLetter
from projector.ledger import control
from projector.ledger.control import ControlChanged, Position, Stored, WentBack
from schemas import resources
from schemas.faults import Fault
from tests.harness import crm

POSITION = Position(7, 1_700_000_000_000, 9, 4, "5pRvAhs9SbKq2JXeS1oYxg")


@pytest.mark.parametrize(
    "position",
    [
        pytest.param(POSITION, id="all is known"),
        pytest.param(Position(7, 0, 9), id="the brokers say neither epoch nor id"),
        pytest.param(Position(2**46, 0, 9, 0, "a-_b"), id="the first epoch"),
    ],
)
def test_the_text_of_a_position(position: Position) -> None:
    text = position.format()
    assert Position.parse(text) == position
    assert int(text.split()[0]) == position.offset, "scripts compare the number with which it begins"


@pytest.mark.parametrize("text", [b"7 0 9", b"", b"7 0 9 4 id more", b"7 0 9 four id", b"7  9 4 id"])
def test_a_text_of_another_layout_is_no_position(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"layout|invalid literal"):
        Position.parse(text)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        pytest.param(0, Stored(0), id="stored, no dead letter waits"),
        pytest.param(4, Stored(4), id="stored, four dead letters wait"),
        pytest.param([b"stamp"], ControlChanged(), id="the control record has changed"),
        pytest.param([b"crm.leads:3"], WentBack(["crm.leads:3"]), id="a position is lower than expected"),
    ],
)
def test_answers_of_the_script(reply: object, expected: object) -> None:
    assert control.outcome(reply) == expected


def test_a_dead_letter_holds_no_payload() -> None:
    record = crm.contact(first_name="Zaphod").record(offset=5, partition=1)
    letter = DeadLetter.of(record, Fault("other", found="it is bad"))
    assert (letter.topic, letter.partition, letter.offset) == ("crm.contacts", 1, 5)
    assert letter.key == f"{crm.ORGANIZATION}:{crm.CONTACT}"
    assert "Zaphod" not in str(letter)


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        pytest.param(None, "", id="no key"),
        pytest.param(b"\xff\x00", "\\xff\x00", id="a key that is not UTF-8"),
    ],
)
def test_any_key_can_be_shown(key: bytes | None, shown: str) -> None:
    record = msgspec.structs.replace(crm.tombstone(resources.LEAD).record(), key=key)
    letter = DeadLetter.of(record, Fault("other", found="it is bad"))
    assert letter.key == shown
    assert msgspec.json.decode(msgspec.json.encode(letter), type=DeadLetter) == letter
