"""The scripts of positions and dead letters, how scripts are called, and how keys are listed, on a real Redis, alone
and in cluster mode.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from projector.dead_letter import DeadLetter
from projector.errors import Refused
from projector.ledger.breaks import rewind
from projector.ledger.control import (
    NOTHING_STORED,
    Advance,
    Checkpointed,
    ControlChanged,
    Covered,
    Position,
    WentBack,
)
from projector.record import Partition
from projector.redis import scripts
from projector.redis.scripts import RewindRow
from projector.redis.store import SLICE
from projector.upkeep.dead_letters import all_dead_letters
from schemas import names
from schemas.faults import Fault
from tests.harness import control, crm
from tests.harness.generations import ids, numbers
from tests.harness.projection import Opened, Projection
from tests.service.conftest import everywhere

LEADS, CONTACTS = Partition("crm.leads", 0), Partition("crm.contacts", 3)
LETTER = DeadLetter.of(crm.lead().record(offset=6), Fault("other", found="it is bad"))


def advance(expected: int, offset: int) -> Advance:
    return Advance(expected, Position(offset, 1_700_000_000_000, 1_700_000_000_001))


STORED = Covered()


@pytest.mark.parametrize(
    ("before", "advances", "outcome", "after"),
    [
        pytest.param({}, {LEADS: advance(NOTHING_STORED, 7)}, STORED, {LEADS: 7}, id="the first"),
        pytest.param({LEADS: 7}, {LEADS: advance(7, 9)}, STORED, {LEADS: 9}, id="forward"),
        pytest.param({LEADS: 99}, {LEADS: advance(99, 100)}, STORED, {LEADS: 100}, id="99 to 100 compares numbers"),
        pytest.param(
            {LEADS: 2**46}, {LEADS: advance(2**46, 2**46 + 1)}, STORED, {LEADS: 2**46 + 1}, id="large offsets"
        ),
        pytest.param({LEADS: 9}, {LEADS: advance(7, 8)}, STORED, {LEADS: 9}, id="a zombie takes nothing back"),
        pytest.param(
            {LEADS: 9}, {LEADS: advance(NOTHING_STORED, 3)}, STORED, {LEADS: 9}, id="nor one that expected no position"
        ),
        pytest.param({LEADS: 7}, {LEADS: advance(9, 12)}, WentBack(["crm.leads:0"]), {LEADS: 7}, id="went back"),
        pytest.param({}, {LEADS: advance(9, 12)}, WentBack(["crm.leads:0"]), {LEADS: None}, id="emptied"),
        pytest.param(
            {}, {LEADS: advance(0, 12)}, WentBack(["crm.leads:0"]), {LEADS: None}, id="emptied, after offset 0"
        ),
        pytest.param(
            {LEADS: 7, CONTACTS: 5},
            {LEADS: advance(7, 9), CONTACTS: advance(6, 8)},
            WentBack(["crm.contacts:3"]),
            {LEADS: 7, CONTACTS: 5},
            id="one went back: none is stored",
        ),
        pytest.param(
            {LEADS: 7},
            {LEADS: advance(7, 9), CONTACTS: advance(NOTHING_STORED, 1)},
            STORED,
            {LEADS: 9, CONTACTS: 1},
            id="two at once",
        ),
        pytest.param({LEADS: 7}, {}, STORED, {LEADS: 7}, id="none"),
    ],
)
async def test_positions(
    projection: Projection,
    before: dict[Partition, int],
    advances: dict[Partition, Advance],
    outcome: Checkpointed,
    after: dict[Partition, int | None],
) -> None:
    opened = await Opened.open(projection.store)
    assert await opened.cover({at: advance(NOTHING_STORED, offset) for at, offset in before.items()}) == STORED
    assert await opened.cover(advances) == outcome
    assert await opened.positions(*after) == after


async def test_only_a_batch_of_the_present_control_record_is_covered(projection: Projection) -> None:
    """A batch that was written before a generation was begun has not reached it."""
    control.write(projection.client)
    opened = await Opened.open(projection.store)
    assert opened.session.generations == ids(1)
    record, _ = await control.with_next(projection.store)
    assert numbers(record.state.written) == [1, 2]
    assert await opened.cover({LEADS: advance(NOTHING_STORED, 7)}, [LETTER]) == ControlChanged()
    assert await opened.positions(LEADS) == {LEADS: None}
    assert await all_dead_letters(projection.store) == []
    again = await Opened.open(projection.store)
    assert again.session.generations == record.state.written
    assert await again.cover({LEADS: advance(NOTHING_STORED, 7)}) == STORED
    assert await opened.cover({LEADS: advance(7, 9)}) == ControlChanged(), "the first session stays closed"


@pytest.mark.parametrize(
    "empty",
    [
        pytest.param(lambda client: client.flushdb(), id="emptied"),
        pytest.param(lambda client: client.hset(names.CONTROL, "incarnation", "another"), id="has its copy again"),
    ],
)
async def test_a_session_ends_if_redis_was_emptied(projection: Projection, empty: Callable[[Any], object]) -> None:
    """The stamp of a copy that was written again is the same, and its incarnation is not."""
    opened = await Opened.open(projection.store)
    empty(projection.client)
    assert await opened.ledger.check(opened.session, {}) == ControlChanged()
    assert await opened.cover({LEADS: advance(NOTHING_STORED, 7)}) == ControlChanged()


@pytest.mark.parametrize(
    ("expected", "outcome", "kept"),
    [
        pytest.param(NOTHING_STORED, STORED, [LETTER], id="with the positions"),
        pytest.param(9, WentBack(["crm.leads:0"]), [], id="not without them"),
    ],
)
async def test_dead_letters_are_written_with_the_positions(
    projection: Projection, expected: int, outcome: Checkpointed, kept: list[DeadLetter]
) -> None:
    opened = await Opened.open(projection.store)
    assert await opened.cover({LEADS: advance(expected, 12)}, [LETTER]) == outcome
    assert await all_dead_letters(projection.store) == kept


async def test_a_dead_letter_that_is_parked_twice_is_stored_once(projection: Projection) -> None:
    opened = await Opened.open(projection.store)
    again = msgspec.structs.replace(LETTER, time=LETTER.time + 1)
    assert await opened.cover({}, [LETTER]) == STORED
    assert await opened.cover({}, [again]) == STORED
    assert await all_dead_letters(projection.store) == [again]


@everywhere
@pytest.mark.parametrize(
    "forget",
    [
        pytest.param(lambda client: client.script_flush(), id="SCRIPT FLUSH"),
        pytest.param(lambda client: client.script_flush("ASYNC"), id="SCRIPT FLUSH ASYNC"),
    ],
)
async def test_scripts_are_loaded_again_if_redis_has_forgotten_them(projection: Projection, forget: Any) -> None:
    records = [crm.contact(1).record(0), crm.lead(1).record(0), crm.api_key(1).record(0)]
    await projection.apply(*records)
    before = projection.documents()
    forget(projection.client)
    applied = await projection.apply(*records, crm.lead(2, stage="STALE").record(1))
    assert (applied.written, applied.stale) == (1, 3)
    assert projection.documents().keys() == before.keys()
    assert projection.documents() != before


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        pytest.param("noeviction", False, id="keeps everything"),
        pytest.param("volatile-lru", False, id="drops only what expires"),
        pytest.param("allkeys-lru", True, id="drops anything"),
        pytest.param("allkeys-random", True, id="drops anything at random"),
    ],
)
async def test_a_redis_that_evicts_documents_is_refused(projection: Projection, policy: str, refused: bool) -> None:
    projection.client.config_set("maxmemory-policy", policy)
    try:
        with pytest.raises(Refused, match=f"maxmemory-policy is {policy}") if refused else nullcontext():
            await projection.store.check_policy()
    finally:
        projection.client.config_set("maxmemory-policy", "noeviction")


AT = Partition("crm.leads", 0)
FIELD = names.position(*AT)


def position(offset: int, topic_id: str = "old") -> Position:
    return Position(offset, 1_700_000_000_000, 9, 3, topic_id)


@everywhere
@pytest.mark.parametrize(
    ("stored", "row", "after"),
    [
        pytest.param(position(9), rewind(AT, "new"), None, id="another topic"),
        pytest.param(position(9, "new"), rewind(AT, "new"), position(9, "new"), id="this topic"),
        pytest.param(position(9, ""), rewind(AT, "new"), position(9, ""), id="it is not known which topic"),
        pytest.param(position(9), rewind(AT, "old", 5, position(5)), position(5), id="above the cut"),
        pytest.param(position(100), rewind(AT, "old", 99, position(99)), position(99), id="100 to 99 compares numbers"),
        pytest.param(position(5), rewind(AT, "old", 5, position(5)), position(5), id="at the cut"),
        pytest.param(position(3), rewind(AT, "old", 5, position(5)), position(3), id="never forward"),
        pytest.param(position(9), rewind(AT, "new", 5, position(5, "new")), None, id="above the cut of another topic"),
        pytest.param(position(9), rewind(AT, "", 8), None, id="beyond the end, and nothing is known"),
        pytest.param(position(7), rewind(AT, "", 8), position(7), id="another projector was faster"),
        pytest.param(None, rewind(AT, "new"), None, id="nothing is stored"),
    ],
)
async def test_a_position_is_taken_back(
    projection: Projection, stored: Position | None, row: RewindRow, after: Position | None
) -> None:
    if stored:
        projection.client.hset(names.CONTROL, FIELD, stored.format())
    other = rewind(Partition("crm.contacts", 7), "new")
    command = scripts.rewind(positions=names.CONTROL, rewinds=[row, other])
    assert await projection.store.run([command]) == [stored != after]
    found = projection.client.hget(names.CONTROL, FIELD)
    assert (Position.parse(found) if found else None) == after


@everywhere
async def test_a_scan_finds_every_key(projection: Projection) -> None:
    keys = {names.usage(names.organization(crm.uuid(number))) for number in range(10 * SLICE)}
    for key in keys:
        projection.client.set(key, b"")
    assert {key async for some in projection.store.scan(names.ALL) for key in some} == keys
