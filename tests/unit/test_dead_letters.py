"""Dead letters: what they hold, which are read together when they are redriven, and when nobody needs them. What an
operator has accepted in a partition, as sets of offsets.
"""

from itertools import chain

import msgspec
import pytest
from aiokafka.structs import OffsetAndMetadata
from hypothesis import given
from hypothesis import strategies as st

from operate.commands.dead_letters import _details
from projector.dead_letter import DeadLetter
from projector.kafka.accepted import Acceptance, Accepted, AcceptedRecords, OffsetTexts
from projector.line import line
from projector.offsets import Ranges
from projector.record import Partition
from projector.redis.store import Store
from projector.upkeep.dead_letters import _MAX_GAP, _neighbours, is_superseded
from schemas import resources
from schemas.faults import Fault
from schemas.layouts import Head
from schemas.settings import ProjectorSettings
from tests.harness import crm


def letters(*places: tuple[str, int, int]) -> list[DeadLetter]:
    return [DeadLetter(topic, partition, offset, "key", "reason", 0) for topic, partition, offset in places]


def of_leads(*offsets: int) -> list[DeadLetter]:
    return letters(*(("leads", 0, offset) for offset in offsets))


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        pytest.param([], [], id="none"),
        pytest.param(of_leads(7), [1], id="one"),
        pytest.param(of_leads(7, 8, 5000), [3], id="near"),
        pytest.param(of_leads(7, 8, 6000), [2, 1], id="far"),
        pytest.param(of_leads(7, 8 + _MAX_GAP), [2], id="as far as it may be"),
        pytest.param(of_leads(7, 9 + _MAX_GAP), [1, 1], id="too far by one"),
        pytest.param(of_leads(*range(2500)), [1000, 1000, 500], id="many"),
        pytest.param(
            letters(("contacts", 0, 1), ("contacts", 1, 2), ("leads", 1, 3)),
            [1, 1, 1],
            id="of several partitions, which are read one after the other",
        ),
    ],
)
def test_letters_that_are_near_are_read_together(given: list[DeadLetter], lengths: list[int]) -> None:
    found = [*_neighbours(given)]
    assert ([len(group) for group in found], [*chain(*found)]) == (lengths, given)


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
def test_organization_of_a_dead_letter_follows_from_its_key(key: str, organization: str | None, alone: bool) -> None:
    found = DeadLetter("leads", 0, 0, key, "reason", 0)
    assert (found.organization_id, found.is_of_organization) == (organization, alone)


def test_dead_letter_holds_no_payload() -> None:
    record = crm.contact(first_name="Zaphod").record(offset=5, partition=1)
    letter = DeadLetter.of(msgspec.structs.replace(record, offsets=3), Fault("other", found="it is bad"))
    key = f"{crm.ORGANIZATION}:{crm.CONTACT}"
    assert (letter.topic, letter.partition, letter.offset, letter.offsets) == ("crm.contacts", 1, 5, 3)
    assert (letter.key, letter.reason) == (key, "it is bad")
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
def test_dead_letter_is_superseded_by_a_newer_event(version: int | None, head: tuple[int, ...], expected: bool) -> None:
    letter = DeadLetter.of(crm.lead().record(offset=7), Fault("other"), version)
    shown = Head(True, head[0], head[1], head[2] if len(head) > 2 else 0, 0)
    assert is_superseded(letter, shown) is expected


@pytest.mark.parametrize("version", [0, -1, 2**53, 10**30])
def test_version_that_is_bad_is_not_known(version: int) -> None:
    assert DeadLetter.of(crm.lead().record(), Fault("other"), version).version is None


TIME = 1_767_225_600_000


def accepted(*texts: str, dropped: str = "") -> Accepted:
    """The note of each acceptance is its text."""
    return Accepted(tuple(Acceptance(Ranges.parse(text), TIME, text) for text in texts), Ranges.parse(dropped))


def offsets(found: Accepted) -> list[str]:
    return [str(acceptance.offsets) for acceptance in found.acceptances]


@pytest.mark.parametrize(
    ("before", "ranges", "after", "dropped"),
    [
        pytest.param(accepted(), "7", ["7"], "", id="the first"),
        pytest.param(accepted("1-5"), "7", ["1-5", "7"], "", id="another"),
        pytest.param(accepted("1-5"), "3-9", ["1-2", "3-9"], "", id="the newest note is that of what overlaps"),
        pytest.param(accepted("1-5", "7"), "1-9", ["1-9"], "", id="a range replaces what is inside it"),
        pytest.param(accepted(dropped="1-5"), "3", ["3"], "1-2,4-5", id="a dropped one is accepted again"),
    ],
)
def test_accepted_ranges_replace_what_they_contain(
    before: Accepted, ranges: str, after: list[str], dropped: str
) -> None:
    found = before.accept(Ranges.parse(ranges), TIME + 1, "new")
    assert (offsets(found), str(found.dropped)) == (after, dropped)
    assert found.acceptances[-1] == Acceptance(Ranges.parse(ranges), TIME + 1, "new")


@pytest.mark.parametrize(
    ("before", "ranges", "after", "dropped"),
    [
        pytest.param(accepted(), "7", [], "", id="what is not accepted is ignored"),
        pytest.param(accepted("1-5"), "1-5", [], "1-5", id="all"),
        pytest.param(accepted("1-5", "9"), "3-20", ["1-2"], "3-5,9", id="some of both"),
        pytest.param(accepted("1-5", dropped="9"), "9", ["1-5"], "9", id="again"),
    ],
)
def test_accepted_records_are_dropped(before: Accepted, ranges: str, after: list[str], dropped: str) -> None:
    found = before.drop(Ranges.parse(ranges))
    assert (offsets(found), str(found.dropped)) == (after, dropped)


def test_acceptance_is_found() -> None:
    found = accepted("1-5", "9", dropped="7")
    assert [found.find(offset) for offset in (0, 5)] == [None, Acceptance(Ranges.parse("1-5"), TIME, "1-5")]
    assert getattr(found.find(7), "dropped", None) is True
    assert str(found.offsets) == "1-5,7,9"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (accepted(), "{}"),
        (accepted(dropped="7"), '{"dropped":"7"}'),
        (accepted("1-5,9"), '{"accepted":[["1-5,9",1767225600000,"1-5,9"]]}'),
        (accepted("1", dropped="7"), '{"accepted":[["1",1767225600000,"1"]],"dropped":"7"}'),
    ],
)
def test_the_text_of_what_is_accepted_is_compact_and_read_back(found: Accepted, text: str) -> None:
    assert (found.text, Accepted.parse(text), Accepted.parse("")) == (text, found, Accepted())


@pytest.mark.parametrize("text", ["x", '{"accepted":[["1-",1,""]]}', '{"dropped":7}', '{"accepted":[["1"]]}', "[]"])
def test_wrong_texts_of_what_is_accepted(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of msgspec, or of `Ranges`
        Accepted.parse(text)


sets = st.sets(st.integers(0, 40))


def ranges(numbers: set[int]) -> Ranges:
    return Ranges.of((number, number) for number in numbers)


def numbers(found: Ranges) -> set[int]:
    return {number for first, last in found.pairs for number in range(first, last + 1)}


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        pytest.param("", "", id="none"),
        pytest.param("7", "7", id="one offset"),
        pytest.param("120-420,500", "120-420,500", id="as in the documentation"),
        pytest.param("500,120-420", "120-420,500", id="in any order"),
        pytest.param("1-5,3-9", "1-9", id="overlapping"),
        pytest.param("1-5,6-9,10", "1-10", id="adjacent"),
        pytest.param("7-7", "7", id="a range of one offset"),
        pytest.param(f"{2**62}-{2**62 + 1}", f"{2**62}-{2**62 + 1}", id="large offsets"),
    ],
)
def test_the_text_is_as_short_as_possible(text: str, shortest: str) -> None:
    assert str(Ranges.parse(text)) == shortest


@pytest.mark.parametrize("text", ["x", "-7", "7-", "9-7", "1,,2", "1-2-3", " ", "+7"])
def test_wrong_range_raises(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an offset|ends before"):
        Ranges.parse(text)


@given(sets, sets)
def test_ranges_behave_like_sets_of_numbers(one: set[int], other: set[int]) -> None:
    a, b = ranges(one), ranges(other)
    assert numbers(Ranges.parse(str(a))) == one
    assert (numbers(a | b), numbers(a - b), numbers(a & b)) == (one | other, one - other, one & other)
    assert {number for number in range(42) if number in a} == one
    assert (bool(a), a | b) == (bool(one), ranges(one | other))
    if one:
        assert a.span == (min(one), max(one))


async def test_text_that_no_broker_can_store_is_not_sent() -> None:
    """The limit of Kafka's protocol, whatever the brokers allow. Nobody listens at this address."""
    nowhere = ProjectorSettings(kafka_bootstrap_servers="127.0.0.1:1")
    text = OffsetAndMetadata(0, "x" * 32_768)
    assert not await OffsetTexts(nowhere, "group").write({Partition("crm.leads", 0): text})


def test_nothing_is_accepted_in_a_partition_that_is_not_known() -> None:
    """It may have been revoked while a batch is under way."""
    settings = ProjectorSettings()
    assert AcceptedRecords(settings, Store(settings)).find(("crm.leads", 0, 7)) is None


@pytest.mark.parametrize("trace", ["", "0af7651916cd43dd8448eb211c80319c"])
def test_the_trace_of_the_event_is_logged_and_shown(caplog: pytest.LogCaptureFixture, trace: str) -> None:
    letter = DeadLetter("crm.leads", 0, 7, "key", "", 0, fault=Fault("missing", "$.id", trace_id=trace))
    line._report([letter])
    [logged] = map(vars, caplog.records)
    assert logged.get("trace_id", "") == trace
    assert [detail.split()[-1] for detail in _details(letter) if "trace" in detail] == ([trace] if trace else [])
    assert msgspec.json.decode(letter.stored, type=DeadLetter) == letter
