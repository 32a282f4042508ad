"""The control record without Redis: which generation is next, promoted or dropped, what has changed, and positions;
topics that have lost their history: what is noted, what is served, and what the brokers' answers mean.
"""

import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import msgspec
import pytest

from operate.commands.status import _generations
from operate.rebuild import generations
from projector.errors import Refused
from projector.health.judge import of_servers
from projector.health.observe import KafkaPart, Observation, RedisPart
from projector.kafka.batches import Unpacker
from projector.kafka.topics import Topic
from projector.ledger import breaks
from projector.ledger.control import (
    ACCESS,
    Break,
    ControlChanged,
    ControlRecord,
    Copy,
    Covered,
    Position,
    State,
    WentBack,
    checkpointed,
    first_state,
    revision,
)
from projector.record import Partition
from schemas import resources
from schemas.control import (
    GenerationId,
    Stamp,
    format_generations,
    format_slots,
    in_order,
    new_generation,
    number_of,
    parse_generation,
    parse_generations,
    parse_slots,
)
from tests.harness import control
from tests.harness.generations import generation, ids

STAMP = Stamp.first()


def record(live: int, previous: int, *written: int, filling: tuple[int, ...] = (), **other: Any) -> ControlRecord:
    """A record with one copy, in which everything that is written is complete, except the generations in `filling`."""
    filled = tuple(number for number in written if number not in filling)
    return control.record_of(control.state_of(live, *written, previous=previous, **other), filled=filled)


@pytest.mark.parametrize(
    ("found", "following"),
    [
        pytest.param(record(1, 0, 1), 0, id="one generation"),
        pytest.param(record(1, 0, 1, 2), 2, id="the next is there"),
        pytest.param(record(2, 1, 1, 2), 0, id="promoted"),
        pytest.param(record(1, 2, 1, 2), 0, id="rolled back"),
        pytest.param(record(1, 2, 1, 2, 3), 3, id="built again after a rollback"),
        pytest.param(record(3, 1, 1, 2, 3), 0, id="a former one that was kept is not the next"),
        pytest.param(record(3, 2, 1, 2, 3), 0, id="promoted twice, nothing dropped"),
        pytest.param(record(1, 0, 1, dropping=(2,)), 0, id="it is being dropped"),
    ],
)
def test_next_generation_is_newer_than_the_live_and_the_former_one(found: ControlRecord, following: int) -> None:
    assert found.state.next == (generation(following) if following else None)


PROMOTE, RETURN = generations.complete_next, generations.complete_former


def test_complete_generation_is_promoted_or_returned_to() -> None:
    assert (PROMOTE(record(1, 0, 1, 2)), RETURN(record(2, 1, 1, 2))) == (generation(2), generation(1))


@pytest.mark.parametrize(
    ("choose", "found", "reason"),
    [
        pytest.param(PROMOTE, record(1, 0, 1, 2, filling=(2,)), "not complete", id="the next is being filled"),
        pytest.param(PROMOTE, record(2, 1, 1, 2), r"`rebuild` creates one\.$", id="there is no next one"),
        pytest.param(PROMOTE, record(1, 2, 1, 2), "`rollback` serves generation 2 again", id="rolled back"),
        pytest.param(RETURN, record(1, 0, 1, 2), "no former generation", id="nothing was promoted"),
        pytest.param(RETURN, record(2, 1, 2), "no former generation", id="the former is not written any more"),
        pytest.param(RETURN, record(2, 1, 1, 2, filling=(1,)), "projectors are filling it", id="a shard was emptied"),
    ],
)
def test_only_a_complete_generation_is_promoted_or_returned_to(
    choose: Callable[[ControlRecord], GenerationId], found: ControlRecord, reason: str
) -> None:
    """No `rebuild` fills a generation that was served: the projectors do."""
    with pytest.raises(Refused, match=reason):
        choose(found)


@pytest.mark.parametrize(
    ("found", "wanted", "chosen"),
    [
        pytest.param(record(2, 1, 1, 2), None, 1, id="the former one"),
        pytest.param(record(1, 0, 1, 2), None, 2, id="the one that is being filled"),
        pytest.param(record(2, 0, 2, dropping=(1,)), None, 1, id="the one whose drop was interrupted"),
        pytest.param(record(2, 1, 1, 2, 3), 3, 3, id="the one that was named"),
        pytest.param(record(3, 0, 3), 1, None, id="one that was dropped before"),
    ],
)
def test_drop_chooses_a_generation(found: ControlRecord, wanted: int | None, chosen: int | None) -> None:
    assert generations._choose(found, wanted) == (generation(chosen) if chosen else None)


@pytest.mark.parametrize(
    ("found", "wanted", "reason"),
    [
        pytest.param(
            record(2, 1, 1, 2, 3),
            None,
            r"Name one: `drop 1` \(the former one, .*\) or `drop 3` \(the next one, complete\)",
            id="it is not clear which one is meant",
        ),
        pytest.param(record(3, 0, 3), 4, "no generation 4", id="a number that is not assigned yet"),
        pytest.param(record(3, 0, 3), None, "only generation 3", id="there is only the live one"),
        pytest.param(record(1, 0, 1, filling=(1,)), 1, "Nothing is served yet", id="nothing is served yet"),
    ],
)
def test_drop_without_a_clear_generation_is_refused(found: ControlRecord, wanted: int | None, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        generations._choose(found, wanted)


def test_generation_is_shown_in_its_state() -> None:
    found = record(3, 1, 1, 2, 3, 4, filling=(4,), dropping=(5,))
    assert [generation.state for generation in _generations(found)] == ["former", "kept", "live", "filling", "dropping"]
    assert _generations(record(1, 0, 1, 2))[1].state == "complete"
    [unfilled] = _generations(record(1, 0, 1, filling=(1,)), living=False)
    assert (unfilled.state, unfilled.unattended) == ("filling", "no projector is running that fills it: start one")


def test_stamp_of_a_later_state_is_greater() -> None:
    first = Stamp.first()
    stamps = [*accumulate(range(40), lambda stamp, _: stamp.next(), initial=first)]
    assert sorted(stamps) == stamps
    assert [(stamp.epoch, stamp.lineage, len(stamp.text)) for stamp in stamps] == [
        (epoch, first.lineage, 44) for epoch in range(1, 42)
    ]
    assert first.next() != first.next(), "two changes of the same state differ"


def test_new_lineage_is_later_although_the_clock_was_set_back() -> None:
    of_next_year = Stamp(f"{int(time.time() * 1000) + 31_536_000_000:012x}{Stamp.first().text[12:]}")
    after = Stamp.first(of_next_year)
    assert after > of_next_year.next()
    assert (len(after.text), after.epoch) == (44, 1)


def test_identity_is_never_used_again() -> None:
    made = [new_generation(1) for _ in range(1000)]
    assert (len({*made}), {number_of(each) for each in made}) == (1000, {1})
    assert all(parse_generation(each.encode()) == each for each in made)
    for some in (made, made[:1], []):
        assert parse_generations(format_generations(some)) == (*some,)


@pytest.mark.parametrize("text", b" 1 0.Ab3dE6 01.Ab3dE6 1.Ab3dE 1.Ab3dE67 1.Ab3d_6 x.Ab3dE6".split(b" "))
def test_text_that_is_no_generation_raises(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a generation"):
        parse_generation(text)


def test_generations_are_in_the_order_of_their_numbers() -> None:
    assert (in_order(ids(10, 2, 1)), record(9, 0, 9, 10).state.next) == (ids(1, 2, 10), generation(10))


def test_drop_of_a_number_used_twice_leaves_the_served_one() -> None:
    """After a failover to a late replica, or from a restored backup."""
    other = GenerationId("1.AAAAAA")
    found = record(1, 0, 1)
    twice = msgspec.structs.replace(found, state=msgspec.structs.replace(found.state, dropping=(other,)))
    assert generations._choose(twice, 1) == other


@pytest.mark.parametrize(
    ("slots", "text"),
    [
        pytest.param({}, "", id="none"),
        pytest.param({b"a": {0}}, "a:0", id="one"),
        pytest.param({b"a": {0, 1, 2, 4, 16_383}}, "a:0-2,4,16383", id="ranges"),
        pytest.param({b"b": {5}, b"a": {3, 4}, b"c": set()}, "a:3-4 b:5", id="several copies, one without slots"),
    ],
)
def test_slots_of_copies_are_read_as_they_were_written(slots: dict[bytes, set[int]], text: str) -> None:
    assert format_slots({tag: frozenset(of_tag) for tag, of_tag in slots.items()}) == text
    found = {tag: {slot for each in ranges for slot in each} for tag, ranges in parse_slots(text.encode()).items()}
    assert found == {tag: of_tag for tag, of_tag in slots.items() if of_tag}


@pytest.mark.parametrize(
    ("filled", "moved_to"),
    [
        pytest.param((1,), "b:7 ledger:5-6", id="a slot that has moved belongs to its new copy"),
        pytest.param((), "ledger:5-6", id="to nobody while a copy is being filled"),
    ],
)
def test_slot_that_has_moved_belongs_to_its_new_copy_once_it_is_filled(filled: tuple[int, ...], moved_to: str) -> None:
    before = record(1, 0, 1)
    copies = {
        tag: Copy(STAMP, before.state, "i", (), ids(1) if tag == b"ledger" else ids(*filled), (), {})
        for tag in (b"ledger", b"b")
    }
    state = msgspec.structs.replace(before.state, slots="ledger:5-7", copies=("b", "ledger"))
    served = {b"ledger": frozenset({5, 6}), b"b": frozenset({7})}
    assert msgspec.structs.replace(before, state=state, copies=copies, served=served).slots() == moved_to


CHANGED = "the control record has changed"


def of_two(stamp: Stamp, *incarnations: str, tag: bytes = b"1") -> ControlRecord:
    """A record with two copies, which have these incarnations. The first one has this tag."""
    state = State(generation(1), ids(1), {}, (tag.decode(), "ledger"))
    tags = zip((tag, b"ledger"), incarnations, strict=True)
    return ControlRecord(stamp, state, {tag: Copy(stamp, state, each, (), ids(1), (), {}) for tag, each in tags})


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(of_two(STAMP, "a", "b"), None, id="nothing"),
        pytest.param(of_two(STAMP.next(), "a", "b"), (CHANGED, False), id="a command"),
        pytest.param(of_two(STAMP.next(), "c", "b", tag=b"2"), (CHANGED, False), id="a copy that moved, not emptied"),
        pytest.param(of_two(Stamp.first(), "c", "d"), ("Redis was emptied", True), id="emptied"),
        pytest.param(
            of_two(Stamp.first(), "c", "d", tag=b"2"), ("Redis was emptied", True), id="emptied, with other shards"
        ),
        pytest.param(of_two(STAMP.next(), "c", "d"), ("Redis was emptied", True), id="every shard was emptied"),
        pytest.param(
            of_two(STAMP.next(), "a", "d"), ("1 of the 2 parts (shards) of Redis were emptied", True), id="a shard"
        ),
    ],
)
def test_revision_says_what_has_changed(after: ControlRecord, expected: tuple[str, bool] | None) -> None:
    """The log says that Redis was emptied only if it was."""
    assert revision(of_two(STAMP, "a", "b"), after) == expected


@pytest.mark.parametrize(
    "position",
    [
        pytest.param(Position(7, 1_700_000_000_000, 9, 4, "5pRvAhs9SbKq2JXeS1oYxg"), id="all is known"),
        pytest.param(Position(7, 0, 9), id="the brokers say neither epoch nor id"),
        pytest.param(Position(2**46, 0, 9, 0, "a-_b"), id="the first epoch"),
    ],
)
def test_text_of_a_position_is_read_back(position: Position) -> None:
    text = position.format()
    assert Position.parse(text) == position
    assert int(text.split()[0]) == position.offset, "scripts compare the number with which it begins"


@pytest.mark.parametrize("text", [b"7 0 9", b"", b"7 0 9 4 id more", b"7 0 9 four id", b"7  9 4 id"])
def test_text_of_another_layout_is_no_position(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"layout|invalid literal"):
        Position.parse(text)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        pytest.param(1, Covered(), id="stored"),
        pytest.param([b"stamp"], ControlChanged(), id="the control record has changed"),
        pytest.param([b"crm.leads:3"], WentBack(["crm.leads:3"]), id="a position is lower than expected"),
    ],
)
def test_answer_of_the_checkpoint_script_becomes_an_outcome(reply: object, expected: object) -> None:
    assert checkpointed(reply) == expected


LEADS = Partition("crm.leads", 0)
FIRST, SECOND = ids(1, 2)


def lost(*unverified: GenerationId) -> Break:
    return Break("topic_truncated", "crm.leads", "old", "old", "2026-01-01T00:00:00Z", unverified)


def noting(*noted: Break, live: GenerationId = FIRST, topic_ids: tuple[str, ...] = ("old",)) -> ControlRecord:
    """A record with a copy for each of these topic ids, with which the position of a partition was stored."""
    state = State(live, (FIRST, SECOND), {}, tuple("abc"), breaks=noted)
    copies = {
        tag.encode(): Copy(STAMP, state, tag, (FIRST,), (FIRST,), (), {LEADS: Position(5, 0, 0, 0, id_)})
        for tag, id_ in zip("abc", topic_ids, strict=False)
    }
    return ControlRecord(STAMP, state, copies)


@pytest.mark.parametrize(
    ("found", "id_", "kinds"),
    [
        pytest.param(noting(), "old", [], id="the same topic"),
        pytest.param(noting(), "new", ["topic_recreated"], id="another topic, and nobody has noted it"),
        pytest.param(noting(), "", [], id="the brokers do not say it"),
        pytest.param(noting(topic_ids=("",)), "new", [], id="they did not say it then"),
        pytest.param(
            noting(topic_ids=("new", "old")), "new", ["topic_recreated"], id="one copy is of the former topic"
        ),
        pytest.param(noting(lost(FIRST)), "old", ["topic_truncated"], id="noted"),
        pytest.param(noting(lost(FIRST)), "new", ["topic_truncated"], id="noted, and more has happened"),
        pytest.param(noting(lost(FIRST), live=SECOND), "old", [], id="another, later generation is served"),
        pytest.param(noting(lost(ACCESS), live=SECOND), "old", ["topic_truncated"], id="access is of no generation"),
    ],
)
def test_what_is_served_may_be_more_than_kafka_has(found: ControlRecord, id_: str, kinds: list[str]) -> None:
    assert [it.kind for it in breaks.served(found, {"crm.leads": id_})] == kinds
    kafka = KafkaPart([Topic("crm.leads", True, True, (LEADS,), (), None, id_)], {LEADS: (0, 5)})
    observed = Observation(at=1_000_000, redis=RedisPart(found, 0, [], []), kafka=kafka)
    assert [problem.kind for problem in of_servers(observed)] == kinds


def test_dropped_generation_is_not_written_any_more_and_no_break_concerns_it() -> None:
    left = msgspec.structs.replace(record(2, 1, 1, 2).state, breaks=(lost(FIRST, SECOND),)).without(FIRST)
    kept = record(2, 1, 1, 2, 3).state.without(generation(3)).previous
    assert (left.written, left.dropping, left.previous, kept) == ((SECOND,), (FIRST,), None, FIRST)
    assert ({*left.generations}, left.known) == ({SECOND}, {FIRST, SECOND})
    assert (left.breaks, left.without(SECOND).breaks) == ((lost(SECOND),), ())


@pytest.mark.parametrize(
    ("kind", "is_access"),
    [
        pytest.param(resources.LEAD, False, id="documents"),
        pytest.param(resources.API_KEY, True, id="API keys"),
        pytest.param(resources.ORGANIZATION, True, id="organizations"),
    ],
)
def test_break_of_access_leaves_documents_verified(kind: resources.Kind, is_access: bool) -> None:
    found = ControlRecord(STAMP, first_state(("ledger",)), {})
    unverified = breaks.new_break(found, "topic_recreated", f"crm.{kind.topic}", "a", "b").unverified
    assert unverified == ((ACCESS,) if is_access else found.state.written)


@pytest.mark.parametrize(
    ("batches", "known", "new_leaders", "left"),
    [
        pytest.param([(0, 3), (5, 3)], None, {}, 0, id="one leader, and none is known"),
        pytest.param([(5, 3)], 3, {}, 0, id="the leader that is known"),
        pytest.param([(5, 4), (9, 4)], 3, {LEADS: (5, 3)}, 0, id="another one"),
        pytest.param([(5, 3), (9, 4)], None, {LEADS: (9, 3)}, 0, id="another one in the middle"),
        pytest.param([(5, 4), (9, 5)], 3, {LEADS: (5, 3)}, 1, id="the second one is left for the next poll"),
        pytest.param([(5, 1)], 3, {LEADS: (5, 3)}, 0, id="a former one: that is strange as well"),
    ],
)
def test_each_new_leader_is_asked_what_it_has(
    batches: list[tuple[int, int]], known: int | None, new_leaders: dict[Any, Any], left: int
) -> None:
    unpacker = Unpacker({"crm.leads": resources.LEAD}, 1000)
    if known is not None:
        unpacker.leader_epochs[LEADS] = known
    noted = [unpacker.note_leader(LEADS, offset, epoch) for offset, epoch in batches]
    assert (unpacker.new_leaders, noted.count(False)) == (new_leaders, left)
    unpacker.begin()
    assert unpacker.new_leaders == {}
