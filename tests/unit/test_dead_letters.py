"""Dead letters: what they hold, which are read together when they are redriven, and when nobody needs them."""

import msgspec
import pytest

from projector.dead_letter import DeadLetter
from projector.upkeep.dead_letters import _MAX_GAP, _neighbours, is_superseded
from schemas import resources
from schemas.faults import Fault
from schemas.layouts import Head
from tests.harness import crm


def letters(*places: tuple[str, int, int]) -> list[DeadLetter]:
    return [DeadLetter(topic, partition, offset, "key", "reason", 0) for topic, partition, offset in places]


@pytest.mark.parametrize(
    ("offsets", "lengths"),
    [
        pytest.param([], [], id="none"),
        pytest.param([7], [1], id="one"),
        pytest.param([7, 8, 5000], [3], id="near"),
        pytest.param([7, 8, 6000], [2, 1], id="far"),
        pytest.param([7, 8 + _MAX_GAP], [2], id="as far as it may be"),
        pytest.param([7, 9 + _MAX_GAP], [1, 1], id="too far by one"),
        pytest.param(list(range(2500)), [1000, 1000, 500], id="many"),
    ],
)
def test_letters_that_are_near_are_read_together(offsets: list[int], lengths: list[int]) -> None:
    found = list(_neighbours(letters(*(("leads", 0, offset) for offset in offsets))))
    assert [len(group) for group in found] == lengths
    assert [letter.offset for group in found for letter in group] == offsets


@pytest.mark.parametrize(
    ("key", "organization", "alone"),
    [
        pytest.param(f"{crm.ORGANIZATION}:{crm.LEAD}", crm.ORGANIZATION, False, id="of an entity"),
        pytest.param(crm.ORGANIZATION, crm.ORGANIZATION, True, id="of an organization"),
        pytest.param(f"{crm.ORGANIZATION}:{crm.LEAD}".upper(), crm.ORGANIZATION, False, id="in upper case"),
        pytest.param(f"{crm.ORGANIZATION}X", crm.ORGANIZATION, False, id="with something after it"),
        pytest.param(crm.ORGANIZATION[:-1], None, False, id="too short"),
        pytest.param(crm.ORGANIZATION[:-1] + "x", None, False, id="not hexadecimal"),
        pytest.param("\N{LATIN SMALL LETTER SHARP S}" * 36, None, False, id="not ASCII"),
        pytest.param("", None, False, id="empty"),
    ],
)
def test_the_organization_of_a_dead_letter(key: str, organization: str | None, alone: bool) -> None:
    found = DeadLetter("leads", 0, 0, key, "reason", 0)
    assert (found.organization_id, found.is_of_organization) == (organization, alone)


def test_partitions_are_read_one_after_the_other() -> None:
    found = _neighbours(letters(("contacts", 0, 1), ("contacts", 1, 2), ("leads", 1, 3)))
    assert [[letter.offset for letter in group] for group in found] == [[1], [2], [3]]


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


@pytest.mark.parametrize(
    ("version", "head", "expected"),
    [
        pytest.param(3, (4, 8), True, id="a newer version"),
        pytest.param(3, (3, 8), True, id="the same version, published again"),
        pytest.param(3, (3, 6), False, id="the same version, from before"),
        pytest.param(3, (2, 8), False, id="an older version that came later"),
        pytest.param(None, (1, 8), True, id="no version: what came later"),
        pytest.param(None, (9, 6), False, id="no version: what came before"),
        pytest.param(3, (4, 8, 1), True, id="a newer version in another partition"),
        pytest.param(None, (4, 8, 1), False, id="no version, in another partition"),
    ],
)
def test_what_supersedes(version: int | None, head: tuple[int, ...], expected: bool) -> None:
    letter = DeadLetter.of(crm.lead().record(offset=7), Fault("other"), version)
    shown = Head(True, head[0], head[1], head[2] if len(head) > 2 else 0, 0)
    assert is_superseded(letter, shown) is expected


@pytest.mark.parametrize("version", [0, -1, 2**53, 10**30])
def test_a_version_that_is_bad_is_not_known(version: int) -> None:
    assert DeadLetter.of(crm.lead().record(), Fault("other"), version).version is None
