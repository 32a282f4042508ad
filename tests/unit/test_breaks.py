"""Topics that have lost their history: what is noted, what is served, and what the brokers' answers mean."""

from typing import Any

import pytest

from projector.kafka.fetching import Unpacker
from projector.kafka.topics import Topic
from projector.ledger import breaks
from projector.ledger.control import ACCESS, Break, ControlRecord, Copy, Position, State, first_state
from projector.operate.observe import KafkaPart, Observation, RedisPart
from projector.operate.problems import of_servers
from projector.record import Partition
from schemas import resources
from schemas.control import GenerationId, Stamp
from tests.harness.generations import ids

LEADS = Partition("crm.leads", 0)
FIRST, SECOND = ids(1, 2)
STAMP = Stamp.first()


def lost(*unverified: GenerationId) -> Break:
    return Break("topic_truncated", "crm.leads", "old", "old", "2026-01-01T00:00:00Z", unverified)


def record(*noted: Break, live: GenerationId = FIRST, topic_ids: tuple[str, ...] = ("old",)) -> ControlRecord:
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
        pytest.param(record(), "old", [], id="the same topic"),
        pytest.param(record(), "new", ["topic_recreated"], id="another topic, and nobody has noted it"),
        pytest.param(record(), "", [], id="the brokers do not say it"),
        pytest.param(record(topic_ids=("",)), "new", [], id="they did not say it then"),
        pytest.param(
            record(topic_ids=("new", "old")), "new", ["topic_recreated"], id="one copy is of the former topic"
        ),
        pytest.param(record(lost(FIRST)), "old", ["topic_truncated"], id="noted"),
        pytest.param(record(lost(FIRST)), "new", ["topic_truncated"], id="noted, and more has happened"),
        pytest.param(record(lost(FIRST), live=SECOND), "old", [], id="another, later generation is served"),
        pytest.param(record(lost(ACCESS), live=SECOND), "old", ["topic_truncated"], id="access is of no generation"),
    ],
)
def test_what_is_served_may_be_more_than_kafka_has(found: ControlRecord, id_: str, kinds: list[str]) -> None:
    assert [it.kind for it in breaks.served(found, {"crm.leads": id_})] == kinds
    kafka = KafkaPart([Topic("crm.leads", True, True, (LEADS,), (), None, id_)], {LEADS: (0, 5)})
    observed = Observation(at=1_000_000, redis=RedisPart(found, 0, [], []), kafka=kafka)
    assert [problem.kind for problem in of_servers(observed)] == kinds


def test_a_generation_that_is_dropped_concerns_nobody() -> None:
    state = State(FIRST, (FIRST, SECOND), {}, ("ledger",), breaks=(lost(FIRST, SECOND),))
    assert state.without(SECOND).breaks == (lost(FIRST),)
    assert state.without(SECOND).without(FIRST).breaks == ()


@pytest.mark.parametrize(
    ("kind", "is_access"),
    [
        pytest.param(resources.LEAD, False, id="documents"),
        pytest.param(resources.API_KEY, True, id="API keys"),
        pytest.param(resources.ORGANIZATION, True, id="organizations"),
    ],
)
def test_what_a_break_concerns(kind: resources.Kind, is_access: bool) -> None:
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
        unpacker.epochs[LEADS] = known
    noted = [unpacker.note_leader(LEADS, offset, epoch) for offset, epoch in batches]
    assert (unpacker.new_leaders, noted.count(False)) == (new_leaders, left)
    unpacker.begin()
    assert unpacker.new_leaders == {}
