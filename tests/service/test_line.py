"""The loop of a line: what it covers, what makes it read again, and when it leaves its work. Kafka is scripted."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any, cast

import pytest
from msgspec.structs import replace

from projector import defect
from projector.dead_letter import DeadLetter
from projector.errors import LineStopped, Refused, Unavailable
from projector.kafka.accepted import AcceptedRecords, OffsetTexts
from projector.ledger import breaks, copies
from projector.ledger.control import NOTHING_STORED, Advance, Break, Checkpointed, Copy, Position
from projector.ledger.ledger import Ledger, Session
from projector.line.line import Line
from projector.line.metrics import APPLIED, DEFECTS, PARKED, REWINDS, UNAVAILABLE
from projector.line.pace import Pace, Pacer
from projector.line.policy import Policy
from projector.mapping import VERSION
from projector.record import Partition
from projector.redis import scripts
from projector.redis.calls import MAX_LEADS
from projector.redis.store import Store
from projector.run import lines_of
from projector.stop import Stop
from projector.upkeep import jobs
from projector.upkeep.dead_letters import all_dead_letters
from runtime.redis.scripts import Command
from schemas import names, resources
from schemas.control import number_of
from schemas.heartbeat import FailingLine, HaltedLine, StandingByLine
from schemas.settings import ProjectorSettings
from tests.harness import control, crm, stored
from tests.harness.expected import documents_of
from tests.harness.generations import generation
from tests.harness.histories import now_ms
from tests.harness.projection import Projection
from tests.harness.scripted_kafka import ScriptedKafka
from tests.harness.services import calls_of
from tests.harness.waiting import eventually

LEADS, CONTACTS = Partition("crm.leads", 0), Partition("crm.contacts", 0)
ROW = 5
BAD = crm.changed(resources.LEAD, crm.lead_data() | {"stage": 1})


@pytest.fixture
def kafka() -> ScriptedKafka:
    return ScriptedKafka()


@pytest.fixture
async def projection(alone: Projection) -> Projection:
    await copies.current(alone.store)
    return alone


class Running:
    """A line that runs, and what it has stored."""

    def __init__(self, line: Line, projection: Projection, kafka: ScriptedKafka) -> None:
        self.line = line
        self._projection = projection
        self._kafka = kafka

    @property
    def trouble(self) -> Any:
        return self.line.health.trouble

    async def halts(self) -> HaltedLine:
        await eventually(lambda: self.trouble, "it is halted")
        assert isinstance(self.trouble, HaltedLine)
        return self.trouble

    @property
    def copy(self) -> Copy:
        return control.home(self._projection.client)

    @property
    def breaks(self) -> list[tuple[str, ...]]:
        """Kind, topic, former id and id of each break that is noted."""
        return [(it.kind, it.topic, it.former_id, it.topic_id) for it in self.copy.state.breaks]

    def stored(self, partition: Partition = LEADS) -> int | None:
        copy = control.read(self._projection.client)
        position = copy.positions.get(partition) if copy else None
        return position.offset if position else None

    async def covers(self, offset: int, partition: Partition = LEADS) -> None:
        await eventually(lambda: self.stored(partition) == offset, f"the position of {partition} is {offset}")

    async def applies(self, *messages: crm.Message) -> None:
        """Publish these messages, and wait until the stored positions are behind the last of them."""
        for partition in self._kafka.publish(*messages):
            await self.covers(self._kafka.end(partition), partition)


def new_line(
    projection: Projection,
    kafka: ScriptedKafka,
    ledger: Ledger | None = None,
    pacer: Pacer | None = None,
    *,
    ends: bool = False,
    **policy: Any,
) -> Line:
    """Returns a line that looks and tries again without a pause, unless its policy says otherwise."""
    at_once = {"bad_row": ROW, "check": 0.0, "halted": 0.0, "superseded": 0.0, "first_pause": 0.0}
    given = replace(Policy.of(ProjectorSettings()), **at_once | policy)
    accepted = AcceptedRecords(projection.settings, projection.store, cast(OffsetTexts, kafka))
    ledger = ledger or Ledger(projection.store, projection.writing.sessions)
    return Line("documents", kafka.source(), accepted, projection.store, ledger, given, pacer, ends=ends)


@asynccontextmanager
async def running(
    projection: Projection,
    kafka: ScriptedKafka,
    ledger: Ledger | None = None,
    pacer: Pacer | None = None,
    stop: Stop | None = None,
    **policy: Any,
) -> AsyncIterator[Running]:
    made = new_line(projection, kafka, ledger, pacer, **policy)
    async with until_it_stops(made, stop or Stop()):
        yield Running(made, projection, kafka)


@asynccontextmanager
async def until_it_stops(made: Line, stop: Stop) -> AsyncIterator[None]:
    task = asyncio.create_task(made.run(stop))
    try:
        yield
    finally:
        stop.set()
        await task


def leads(count: int, version: int = 1) -> list[crm.Message]:
    return [crm.lead(version, id=crm.uuid(0x100 + number)) for number in range(count)]


def parked() -> float:
    return sum(
        sample.value for metric in PARKED.collect() for sample in metric.samples if sample.name.endswith("_total")
    )


def counted(metric: Any, *labels: str) -> float:
    return float(metric.labels(*labels)._value.get())


async def test_what_is_written_is_covered_and_committed(projection: Projection, kafka: ScriptedKafka) -> None:
    async with running(projection, kafka) as it:
        await it.applies(*leads(7), crm.contact())
        assert len(projection.documents()) == 8
        await eventually(lambda: kafka.committed == {LEADS: 7, CONTACTS: 1}, "Kafka has a copy")
        await it.applies(*leads(7, version=2))
        assert (it.trouble, it.line.health.state) == (None, "running")
    assert (kafka.committed[LEADS], kafka.calls) == (14, ["join", "stop"])
    assert not projection.writing.sessions._open
    async with running(projection, kafka) as it:
        await it.applies(*leads(2, version=3))
        assert it.breaks == [], "brokers that name no epochs of leaders raise no alarm"
    assert kafka.sought(LEADS) == [None, 14], "the next line continues from there"


async def test_outage_of_kafka_is_waited_for(projection: Projection, kafka: ScriptedKafka) -> None:
    before = counted(UNAVAILABLE, "documents")
    async with running(projection, kafka) as it:
        await it.applies(*leads(3))
        kafka.errors = [Unavailable("no broker answers")] * 3
        await it.applies(*leads(3, version=2))
        assert it.trouble is None
        await eventually(lambda: it.line.health.unavailable == "", "it is over")
    assert counted(UNAVAILABLE, "documents") == before + 3
    assert kafka.sought(LEADS)[1:] == [3] * 3


async def test_commit_that_failed_is_repeated(projection: Projection, kafka: ScriptedKafka) -> None:
    """No record comes after it, so nothing else would tell Kafka the position."""
    kafka.refusals = [Unavailable("the group has no coordinator")] * 3
    async with running(projection, kafka) as it:
        kafka.publish(*leads(3))
        await eventually(lambda: kafka.committed.get(LEADS) == 3, "Kafka has the position")
        assert it.line.health.unavailable == ""


class NotedPauses(Stop):
    """Notes each pause instead of waiting, and what `seen` returns then. It is set after eight of them."""

    def __init__(self, seen: Callable[[], object] = bool) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self.seen: list[object] = []
        self._see = seen

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.seen.append(self._see())
        if len(self.pauses) == 8:
            self.set()


async def test_line_tries_again_within_a_second_however_long_the_outage_was(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    """A key that was revoked during the outage works until then."""
    kafka.errors = [Unavailable("no broker answers")] * 8
    made = new_line(projection, kafka, first_pause=0.1)
    stop = NotedPauses(lambda: (made.health.unavailable, len(projection.writing.sessions._open)))
    await made.run(stop)
    assert stop.pauses == [0.1, 0.2, 0.4, 0.8, *[1.0] * 4]
    assert stop.seen == [("no broker answers", 0)] * 8, "the reason is known, and no command waits for the line"


class ChangedAfterEachSession(Ledger):
    """Between the first sessions and what is written in them, a command changes the control record and closes the
    connections of all that write, as `promote` and `drop` do."""

    changes = 0

    async def open(self) -> Session:
        session = await super().open()
        if self.changes < 8:
            self.changes += 1
            await self._store.ask_one(b"HSET", names.CONTROL, b"stamp", session.stamp.next().text)
            await self._store.close_all_writers()
        return session


async def test_line_does_not_wait_if_a_command_has_changed_the_control_record(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    """A revocation that is published meanwhile holds at once, however many commands there are."""
    ledger, stop = ChangedAfterEachSession(projection.store, projection.writing.sessions), NotedPauses()
    async with running(projection, kafka, ledger, stop=stop) as it:
        await it.applies(*leads(2))
    assert (ledger.changes, stop.pauses) == (8, [])


async def test_line_that_has_failed_says_so_until_it_advances(
    projection: Projection,
    kafka: ScriptedKafka,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def reported() -> list[str]:
        """Returns what is logged of defects, with all fields of these lines."""
        return [f"{line.getMessage()} {vars(line)}" for line in caplog.records if line.name == defect.__name__]

    before = counted(DEFECTS, "documents")
    async with running(projection, kafka) as it:
        kafka.held_back = 1  # so that the positions are not at the ends
        kafka.errors = [KeyError("a name")] * 2
        await eventually(lambda: it.trouble == FailingLine("documents", "KeyError"), "it has failed")
        await eventually(lambda: kafka.offsets, "it reads again")
        assert it.line.health.state == "failing"
        await it.applies(*leads(1))
        await eventually(lambda: it.trouble is None, "it has advanced")
        kafka.held_back = 0
        kafka.errors = [KeyError("a name")]
        await eventually(lambda: len(reported()) == 3, "it has failed again")
        await eventually(lambda: it.trouble is None, "all positions are at the ends")
    for said in reported():
        assert said.startswith("the line documents failed, which is a defect of Leadview")
        assert "in poll" in said, "where it was"
        assert "a name" not in said, "its message may be a value of a record"
    assert counted(DEFECTS, "documents") == before + 3


@pytest.mark.parametrize(
    ("happens", "error"),
    [
        pytest.param(lambda kafka: kafka.errors.append(KeyError()), KeyError, id="a defect"),
        pytest.param(lambda kafka: kafka.errors.append(Refused("no")), Refused, id="a refusal"),
        pytest.param(lambda kafka: kafka.publish(*[BAD] * ROW), LineStopped, id="too many bad records"),
    ],
)
async def test_replay_ends_with_what_a_live_line_repeats_or_waits_for(
    projection: Projection, kafka: ScriptedKafka, happens: Callable[[ScriptedKafka], object], error: type[Exception]
) -> None:
    made = new_line(projection, kafka, ends=True)
    happens(kafka)
    with pytest.raises(error):
        await made.run(Stop())
    assert kafka.calls[-1] == "stop"
    assert not projection.writing.sessions._open


@pytest.mark.parametrize(
    ("limit", "most", "settings"),
    [
        pytest.param("row", ROW, {}, id="in a row"),
        pytest.param("share", 0.004, {"bad_row": 50, "bad_share": 0.004}, id="a share"),
    ],
)
async def test_too_many_bad_records_halt_the_line_until_one_is_accepted(
    projection: Projection,
    kafka: ScriptedKafka,
    limit: str,
    most: float,
    settings: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those that are accepted do not halt it either when all is read again, because Redis was emptied."""
    async with running(projection, kafka, **settings) as it:
        kafka.publish(*leads(2), *[BAD] * ROW, *leads(2, version=2))
        found = await it.halts()
        ranges = (f"crm.leads:0:2-{ROW + 1}",)
        assert (found.limit, found.most, found.count, found.bad, found.ranges) == (limit, most, ROW, ROW, ranges)
        polls = kafka.polls
        await eventually(lambda: kafka.stays, "it is still a member")
        assert kafka.polls == polls, "it reads nothing"
        assert it.stored() is None
        assert not projection.writing.sessions._open, "no command waits for it"
        assert ranges[0] in caplog.text
        kafka.accept("crm.leads", 2)
        await it.covers(ROW + 4)
        await eventually(lambda: it.trouble is None, "it works again")
        stays = kafka.stays
        kafka.accept("crm.leads", *range(2, ROW + 2))
        projection.client.flushdb()
        await eventually(lambda: kafka.sought(LEADS)[1:].count(None) == 2, "it reads everything again")
        await it.covers(ROW + 4)
        assert (it.trouble, kafka.stays) == (None, stays)
    assert kafka.calls == ["join", "stop"]


@pytest.mark.parametrize("count", [pytest.param(1, id="one"), pytest.param(ROW, id="as many as would halt the line")])
async def test_record_accepted_after_the_line_has_looked_counts_as_accepted(
    projection: Projection, kafka: ScriptedKafka, count: int
) -> None:
    """It looks again before it counts these records."""
    kafka.meanwhile = [lambda: None, lambda: kafka.accept("crm.leads", *range(count))]
    async with running(projection, kafka) as it:
        await it.applies(*[BAD] * count)
        assert (kafka.meanwhile, kafka.stays) == ([], 0)
    assert [letter.accepted for letter in await all_dead_letters(projection.store)] == [True] * count


async def test_another_acceptance_does_not_let_it_pass(projection: Projection, kafka: ScriptedKafka) -> None:
    """Whoever accepts one of the records has not accepted the others."""
    async with running(projection, kafka) as it:
        kafka.publish(*[BAD] * (ROW + 1))
        await it.halts()
        kafka.accept("crm.leads", 0)
        await eventually(lambda: it.trouble and it.trouble.ranges == (f"crm.leads:0:1-{ROW}",), "because of the others")
        assert it.stored() is None
        kafka.accept("crm.leads", 0, ROW)
        await it.covers(ROW + 1)
    accepted = {letter.offset for letter in await all_dead_letters(projection.store) if letter.accepted}
    assert accepted == {0, ROW}


async def test_what_was_counted_before_it_was_accepted_counts_no_more(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    async with running(projection, kafka) as it:
        await it.applies(*[BAD] * (ROW - 1))
        kafka.publish(BAD)
        await eventually(lambda: it.trouble, "the row continues in the next batch")
        kafka.accept("crm.leads", *range(ROW - 1))
        await it.covers(ROW)


async def test_what_was_accepted_in_a_topic_that_is_created_again_is_forgotten(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    kafka.accept("crm.leads", 0)
    async with running(projection, kafka) as it:
        await it.applies(BAD)
        assert [letter.accepted for letter in await all_dead_letters(projection.store)] == [True]
        kafka.recreate("crm.leads")
        await eventually(lambda: it.stored() in (None, 0), "the line has noticed it")
        await it.applies(BAD)
    assert [letter.accepted for letter in await all_dead_letters(projection.store)] == [False]


class FailingCheckpoints(Ledger):
    """The first checkpoints fail."""

    failures = 3

    async def cover(self, session: Session, advances: Any, dead_letters: Sequence[DeadLetter] = ()) -> Checkpointed:
        if self.failures:
            self.failures -= 1
            raise Unavailable("Redis fails after the batch was read")
        return await super().cover(session, advances, dead_letters)


async def test_bad_records_of_a_batch_that_is_read_again_count_once(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    ledger, before = FailingCheckpoints(projection.store, projection.writing.sessions), parked()
    async with running(projection, kafka, ledger) as it:
        await it.applies(*[BAD] * (ROW - 1))
        kafka.publish(BAD)
        await eventually(lambda: it.trouble, "the row continues in the next batch")
    assert parked() == before + ROW - 1


@pytest.mark.parametrize(
    ("lose", "sought"),
    [
        pytest.param(lambda client: client.flushdb(), None, id="everything"),
        pytest.param(
            lambda client: client.hset(names.CONTROL, names.position(*LEADS), Position(2, 1, 1).format()),
            2,
            id="the last writes",
        ),
    ],
)
async def test_what_redis_has_lost_is_read_again(
    projection: Projection,
    kafka: ScriptedKafka,
    lose: Callable[[Any], object],
    sought: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = counted(REWINDS, "documents")
    async with running(projection, kafka) as it:
        await it.applies(*leads(2), *leads(3, version=2))
        lose(projection.client)
        await eventually(lambda: sought in kafka.sought(LEADS)[1:], "it reads again")
        await it.covers(5)
        await eventually(lambda: counted(REWINDS, "documents") == before + 1, "it is counted")
        live = number_of(it.copy.state.live)
    assert ("Redis was emptied" in caplog.text) is (sought is None)
    assert projection.documents(live) == documents_of(kafka.records[LEADS])


async def test_partition_that_ends_before_its_position_is_read_from_the_beginning(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    async with running(projection, kafka) as it:
        await it.applies(*leads(5))
    kafka.records[LEADS] = []
    async with running(projection, kafka) as it:
        await it.covers(0)
        await it.applies(*leads(2, version=2))


async def test_records_from_before_the_position_start_over(projection: Projection, kafka: ScriptedKafka) -> None:
    """The broker that leads now has less: nothing says so but the offsets."""
    async with running(projection, kafka) as it:
        await it.applies(*leads(5))
        kafka.records[LEADS] = []
        kafka.publish(*leads(3, version=2))
        kafka.offsets[LEADS] = 0
        await it.covers(3)
        assert kafka.sought(LEADS)[-1] is None


async def test_partition_that_was_cut_off_is_read_again_from_there(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    kafka.leader_epochs[LEADS] = 3
    async with running(projection, kafka) as it:
        await it.applies(*leads(5))
        kafka.cut_off(LEADS, 2, epoch=4)
        await it.covers(2)
        assert it.breaks == [("topic_truncated", "crm.leads", "crm.leads-1", "crm.leads-1")]
        position = it.copy.positions[LEADS]
        assert (position.topic_id, position.leader_epoch) == ("crm.leads-1", 3), "that of the batch before"
        await eventually(lambda: kafka.sought(LEADS)[-1] == 2, "it reads on from there")
        await it.applies(*leads(2, version=2))
        assert it.copy.positions[LEADS].leader_epoch == 4


class Reconnecting(Ledger):
    """All connections to Redis are closed as soon as a break is noted, so that what follows opens new ones."""

    async def note(self, session: Session, found: Sequence[Break]) -> bool:
        noted = await super().note(session, found)
        await self._store.close()
        return noted


@pytest.mark.parametrize("ledger", [Ledger, Reconnecting])
async def test_topic_that_was_created_again_is_read_from_the_beginning(
    projection: Projection, kafka: ScriptedKafka, ledger: type[Ledger]
) -> None:
    """Its former history is counted once."""
    async with running(projection, kafka, ledger(projection.store, projection.writing.sessions)) as it:
        await it.applies(*leads(5))
        kafka.recreate("crm.leads")
        await it.applies(*leads(2, version=2))
        assert it.breaks == [("topic_recreated", "crm.leads", "crm.leads-1", "crm.leads-2")]
        assert it.copy.state.histories == {"crm.leads": 1}


async def test_markers_at_the_end_are_passed(projection: Projection, kafka: ScriptedKafka) -> None:
    """No record follows, and yet nothing is left to be read."""
    began_at = now_ms()
    async with running(projection, kafka) as it:
        kafka.publish(*leads(2))
        kafka.ends[LEADS] = 4
        await it.covers(4)
        assert began_at <= it.copy.positions[LEADS].stored_at <= now_ms()
        await eventually(lambda: kafka.committed.get(LEADS) == 4, "Kafka has it, too")


async def test_line_stands_by_while_a_generation_needs_a_newer_program(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    async with running(projection, kafka) as it:
        await it.applies(*leads(2))
        control.write(projection.client, written=(1, 2), mappings={2: 999})
        await eventually(lambda: it.trouble, "it stands by")
        assert (it.trouble, kafka.member) == (StandingByLine(2, 999, VERSION), False)
        control.write(projection.client)
        await eventually(lambda: it.trouble is None, "it works again")
        await it.applies(*leads(2, version=2))
    assert kafka.calls == ["join", "leave", "join", "stop"]


async def test_access_is_applied_while_documents_stand_by(projection: Projection, kafka: ScriptedKafka) -> None:
    """A deployment was rolled back: the documents wait for the newer program, but a revoked key does not."""
    control.write(projection.client, written=(1, 2), mappings={2: 999})
    sources, texts = (kafka.source(resources.ACCESS_KINDS), kafka.source()), cast(OffsetTexts, kafka)
    access, documents = lines_of(projection.settings, projection.writing, *sources, texts)
    async with until_it_stops(access, Stop()):
        kafka.publish(crm.organization(1), crm.api_key(1, status="revoked"))
        key = names.api_key(names.organization(crm.ORGANIZATION), crm.key_hash(1))
        await eventually(lambda: stored.key_expiry(projection.client, key) == 1, "the key is revoked")
    async with until_it_stops(documents, Stop()):
        await eventually(lambda: isinstance(documents.health.trouble, StandingByLine), "they stand by")


async def test_partitions_that_are_revoked_are_committed_and_forgotten(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    async with running(projection, kafka) as it:
        await it.applies(*leads(2))
        kafka.member = False
        await kafka.revoke()
        kafka.offsets.clear()
        assert (kafka.committed[LEADS], it.line._positions.offsets) == (2, {})
        kafka.publish(*leads(2, version=2))
        kafka.member = True
        await it.covers(4)
    assert kafka.sought(LEADS)[1:] == [2]


class Meanwhile(Pacer):
    """While a poll is written, something happens; while the next one is, something else. In how many slices it is
    written depends on the speed of the machine.
    """

    def __init__(self, *happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens = [*happens]

    async def pace(self, records: int) -> Pace:
        if self._happens:
            self._happens.pop(0)()
        return await super().pace(records)


async def test_revocation_waits_until_the_batch_is_covered(projection: Projection, kafka: ScriptedKafka) -> None:
    """Otherwise the next owner would begin before it, while its writes are still under way."""
    covered: list[int | None] = []
    revoking: list[asyncio.Task[None]] = []

    async def revoke() -> None:
        await kafka.revoke()
        covered.append(it.stored())

    pacer = Meanwhile(lambda: revoking.append(asyncio.create_task(revoke())))
    async with running(projection, kafka, pacer=pacer) as it:
        kafka.publish(*leads(3))
        await eventually(lambda: covered, "the partitions are revoked")
        assert covered == [3]


class OfProjection(Ledger):
    def __init__(self, projection: Projection) -> None:
        super().__init__(projection.store, projection.writing.sessions)
        self.projection = projection


class NotedAdvances(OfProjection):
    """Notes the positions that each checkpoint stores behind records, and how many documents there are by then."""

    def __init__(self, projection: Projection) -> None:
        super().__init__(projection)
        self.noted: list[tuple[dict[Partition, int], int]] = []

    async def cover(self, session: Session, advances: Any, dead_letters: Sequence[DeadLetter] = ()) -> Checkpointed:
        if ends := {at: advance.position.offset for at, advance in advances.items() if advance.position.offset}:
            self.noted.append((ends, len(self.projection.documents())))
        return await super().cover(session, advances, dead_letters)


@pytest.mark.parametrize(
    ("seconds", "batch_records", "checkpoints"),
    [
        pytest.param(inf, 100, [{LEADS: 4, CONTACTS: 1}], id="one checkpoint for all"),
        pytest.param(0.0, 100, [{LEADS: 2}, {LEADS: 4}, {CONTACTS: 1}], id="its time is over"),
        pytest.param(inf, 3, [{LEADS: 3}, {LEADS: 4, CONTACTS: 1}], id="it is full"),
    ],
)
async def test_what_comes_while_a_batch_is_written_waits_for_no_checkpoint(
    projection: Projection,
    kafka: ScriptedKafka,
    seconds: float,
    batch_records: int,
    checkpoints: list[dict[Partition, int]],
) -> None:
    more = [crm.lead(id=crm.uuid(0x200 + number)) for number in range(2)]
    pacer = Meanwhile(lambda: kafka.publish(*more), lambda: kafka.publish(crm.contact()))
    ledger = NotedAdvances(projection)
    async with running(projection, kafka, ledger, pacer, batch=seconds, batch_records=batch_records) as it:
        kafka.publish(*leads(2))
        await it.covers(1, CONTACTS)
        assert it.stored() == 4
    assert [ends for ends, _ in ledger.noted] == checkpoints
    assert ledger.noted[-1][1] == 5, "all are visible before the checkpoint"


async def test_bad_record_that_comes_while_a_batch_is_written_is_parked_with_it(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    """Whatever comes behind it is of the next batch: a bad record does not wait until nothing more comes."""
    ledger = NotedAdvances(projection)
    pacer = Meanwhile(lambda: kafka.publish(BAD), lambda: kafka.publish(*leads(1, version=2)))
    async with running(projection, kafka, ledger, pacer, batch=inf) as it:
        kafka.publish(*leads(2))
        await it.covers(4)
    assert [letter.offset for letter in await all_dead_letters(projection.store)] == [2]
    assert [ends for ends, _ in ledger.noted] == [{LEADS: 3}, {LEADS: 4}]


async def test_partition_that_is_cut_off_while_a_batch_is_written_covers_nothing_of_it(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    """The epoch of the new leader beside the position would say that all before it is what that leader has."""
    kafka.leader_epochs[LEADS] = 3
    async with running(projection, kafka) as it:
        await it.applies(*leads(5))
    ledger = NotedAdvances(projection)
    async with running(projection, kafka, ledger, Meanwhile(lambda: kafka.cut_off(LEADS, 2, epoch=4)), batch=inf) as it:
        kafka.publish(*leads(1, version=2))
        await it.covers(2)
        assert it.breaks == [("topic_truncated", "crm.leads", "crm.leads-1", "crm.leads-1")]
    assert ledger.noted == []


async def test_records_from_before_what_was_just_written_start_over(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    """No position is stored yet that they could be compared with."""

    def replace_all() -> None:
        kafka.records[LEADS] = []
        kafka.publish(*leads(3, version=2))
        kafka.offsets[LEADS] = 0

    ledger = NotedAdvances(projection)
    async with running(projection, kafka, ledger, Meanwhile(replace_all), batch=inf) as it:
        kafka.publish(*leads(5))
        await it.covers(3)
    assert kafka.sought(LEADS) == [None, None]
    assert [ends for ends, _ in ledger.noted] == [{LEADS: 3}]


class HeldCheck(OfProjection):
    def __init__(self, projection: Projection) -> None:
        super().__init__(projection)
        self.begun, self.may_read = asyncio.Event(), asyncio.Event()

    async def check(self, session: Session, known: Mapping[Partition, int]) -> Checkpointed | None:
        self.begun.set()
        await self.may_read.wait()
        return await super().check(session, known)


async def test_no_record_waits_until_the_control_record_was_compared(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    ledger = HeldCheck(projection)
    async with running(projection, kafka, ledger) as it:
        await ledger.begun.wait()
        await it.applies(*leads(3))
        assert not ledger.may_read.is_set()


async def test_what_another_session_has_read_already_is_not_reported(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    ledger = HeldCheck(projection)
    positions = new_line(projection, kafka, ledger)._positions
    kafka.join()
    await positions.ensure_positioned()
    checking = asyncio.create_task(positions.check())
    await ledger.begun.wait()
    projection.client.hset(names.CONTROL, b"stamp", positions.session.stamp.next().text)
    positions.reset()
    await positions.ensure_positioned()
    ledger.may_read.set()
    assert await checking is None
    positions.end()


async def test_partitions_of_another_projector_are_not_held_against_it(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    """While the group rebalances, a line may seek partitions that another member has afterwards."""
    async with running(projection, kafka) as it:
        await it.applies(*leads(2))
        kafka.of_others = {LEADS}
        await eventually(lambda: it.line._positions.offsets.keys() == {CONTACTS}, "it has forgotten the other one")


async def test_session_under_another_record_positions_all_partitions_again(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    """Kafka has assigned one partition more, and Redis was emptied meanwhile: what was read of the others is gone."""
    positions = new_line(projection, kafka)._positions
    kafka.join()
    kafka.publish(*leads(3))
    await positions.ensure_positioned()
    await kafka.poll(10, 0)
    await positions.cover({LEADS: Advance(NOTHING_STORED, Position(3, 0, 0))})
    assert positions.offsets[LEADS] == kafka.position(LEADS) == 3
    projection.client.flushdb()
    await copies.current(projection.store)
    kafka.reset([CONTACTS])
    await positions.ensure_positioned()
    assert positions.offsets == {LEADS: NOTHING_STORED, CONTACTS: NOTHING_STORED}
    assert kafka.position(LEADS) == 0
    kafka.reset([LEADS])
    assert await positions.pass_markers({LEADS: 3}) is None, "what was not sought again is not at its end"
    positions.end()


async def test_records_that_are_published_again_are_compared_by_redis(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    """Redis has to tell a retry from other content with the same version. A document that was lost is repaired."""
    written, stale = (counted(APPLIED, "documents", result) for result in ("written", "stale"))
    async with running(projection, kafka) as it:
        for _ in range(3):
            await it.applies(*leads(6))
        owner = names.organization(crm.ORGANIZATION)
        lost = names.document(resources.LEAD, owner, it.copy.state.live, crm.uuid(0x100))
        assert projection.client.delete(lost) == 1
        await it.applies(*leads(6))
    applied = [counted(APPLIED, "documents", result) for result in ("written", "stale")]
    assert applied == [written + 7, stale + 17]
    assert projection.client.exists(lost)


async def test_bad_record_of_a_deleted_organization_is_not_parked(projection: Projection, kafka: ScriptedKafka) -> None:
    await projection.apply(crm.organization(1).record())
    async with running(projection, kafka) as it:
        await it.applies(BAD)
        assert projection.client.delete(names.DEAD_LETTERS) == 1
        await projection.apply(crm.deleted(resources.ORGANIZATION, 2).record())
        await it.applies(BAD)
    assert not projection.client.exists(names.DEAD_LETTERS)


class DeletedMeanwhile(OfProjection):
    async def cover(self, session: Session, advances: Any, dead_letters: Sequence[DeadLetter] = ()) -> Checkpointed:
        if dead_letters:
            await self.projection.apply(crm.deleted(resources.ORGANIZATION, 2).record())
            self.projection.client.delete(names.JOBS)
        return await super().cover(session, advances, dead_letters)


async def test_bad_record_is_erased_although_the_erasure_ended_before_it_was_stored(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    async with running(projection, kafka, DeletedMeanwhile(projection)):
        kafka.publish(BAD)
        await eventually(lambda: projection.jobs() == {f"erase {crm.ORGANIZATION}"}, "a job erases it")
    await jobs.run_all(projection.writing, projection.settings)
    assert not projection.client.exists(names.DEAD_LETTERS)
    assert projection.jobs() == set()


async def test_replay_has_positions_of_its_own_and_parks_nothing(projection: Projection, kafka: ScriptedKafka) -> None:
    """The live line has parked the bad records already. Its positions, and the ids of topics with them, are others."""
    async with running(projection, kafka) as it:
        await it.applies(*leads(3), BAD)
    assert projection.client.delete(names.DEAD_LETTERS) == 1
    _, added = await control.with_next(projection.store)
    kafka.ids["crm.leads"] = "crm.leads-2"
    ledger = Ledger(projection.store, projection.writing.sessions, rebuild=added)
    replayed = names.copy(names.rebuild(added), names.HOME)
    async with running(projection, kafka, ledger) as it:
        await eventually(
            lambda: (projection.client.hget(replayed, names.position(*LEADS)) or b"").startswith(b"4 "), "it is covered"
        )
    assert (it.stored(), it.breaks) == (4, [])
    assert not projection.client.exists(names.DEAD_LETTERS)
    written = list(projection.client.scan_iter(names.of_generation(added)))
    assert len(written) == 3 + 1, "the leads, and the index of their contact"


async def test_replay_of_a_generation_that_is_gone_ends(projection: Projection, kafka: ScriptedKafka) -> None:
    ledger = Ledger(projection.store, projection.writing.sessions, rebuild=generation(7))
    with pytest.raises(Refused, match="Generation 7 is gone"):
        await new_line(projection, kafka, ledger, ends=True).run(Stop())
    assert not projection.writing.sessions._open


async def test_records_that_were_deleted_before_a_line_read_them(projection: Projection, kafka: ScriptedKafka) -> None:
    """While it runs, and when it begins: it is noted once for each time, and the line continues behind them."""
    async with running(projection, kafka) as it:
        await it.applies(*leads(3))
        kafka.firsts[LEADS] = 2
        await it.applies(*leads(1, version=2))
        assert it.breaks == [], "what was deleted had been read"
        kafka.records[LEADS][:] = [record for record in kafka.records[LEADS] if record.offset < 4]
        kafka.firsts[LEADS] = 6
        kafka.ends[LEADS] = 6
        await eventually(lambda: it.breaks == [("records_missed", "crm.leads", "", "")], "it is noted")
        await it.covers(6)
        [before] = it.copy.state.breaks
        assert it.copy.state.histories == {}, "offsets mean what they meant"
    kafka.firsts[LEADS] = kafka.ends[LEADS] = 8
    async with running(projection, kafka) as it:
        await it.covers(8)
        [again] = it.copy.state.breaks
        assert (again.kind, again.unverified) == (before.kind, before.unverified)


async def test_records_of_a_partition_that_were_deleted_before_any_was_read(
    projection: Projection, kafka: ScriptedKafka
) -> None:
    """An empty Redis misses nothing of it. One that holds everything has read all partitions: another one is new."""
    first, second, third = (Partition("crm.leads", number) for number in (1, 2, 3))

    def add(partition: Partition) -> None:
        kafka.records[partition] = []
        kafka.firsts[partition] = kafka.ends[partition] = 3

    add(first)
    async with running(projection, kafka) as it:
        await it.applies(*leads(3))
        await it.covers(3, first)
    assert it.breaks == []
    await control.complete(projection.store)
    add(second)
    async with running(projection, kafka) as it:
        await it.covers(3, second)
        assert it.breaks == [("records_missed", "crm.leads", "", "")]
    await confirm_all(projection)
    add(third)
    kafka.recreate("crm.leads")
    async with running(projection, kafka) as it:
        await it.covers(3, third)
        assert [kind for kind, *_ in it.breaks] == ["topic_recreated"], "which says more"


async def confirm_all(projection: Projection) -> None:
    record = await copies.require(projection.store)
    await breaks.confirm(projection.store, record.state.live, record.state.breaks)


async def test_line_applies_nothing_of_another_cluster(projection: Projection, kafka: ScriptedKafka) -> None:
    """Neither while it runs nor when it begins; it continues by itself when the former one is back."""
    kafka.cluster = "one"
    async with running(projection, kafka) as it:
        await it.applies(*leads(3))
        assert it.copy.state.cluster == "one"
        kafka.cluster = "other"
        kafka.publish(*leads(3, version=2))
        await eventually(lambda: "another Kafka cluster answers" in it.line.health.unavailable, "the line says so")
        assert it.stored() == 3
    async with running(projection, kafka) as it:
        await eventually(lambda: "another Kafka cluster answers" in it.line.health.unavailable, "the next one as well")
        assert (it.stored(), it.breaks) == (3, [])
        kafka.cluster = "one"
        await it.covers(6)
        assert it.breaks == []


_OF_CONTACT = 5_000


async def with_many_leads(projection: Projection) -> None:
    """Store a contact with very many leads, without a line."""
    projection.client.flushdb()
    await control.complete(projection.store)
    records = [crm.lead(id=crm.uuid(1000 + number)).record(number) for number in range(_OF_CONTACT)]
    for some in (records[start : start + 500] for start in range(0, _OF_CONTACT, 500)):
        await projection.apply(*some)
    await projection.apply(crm.contact().record(0))


def behind(projection: Projection, first_name: str) -> int:
    """Returns how many leads do not show this contact yet."""
    owner = names.organization(crm.ORGANIZATION)
    ids = [crm.uuid(1000 + number) for number in range(_OF_CONTACT)]
    values = projection.client.mget([names.document(resources.LEAD, owner, generation(1), id_) for id_ in ids])
    return sum(first_name.encode() not in value for value in values)


class Hooked(Store):
    """Calls `hook` after each step of a fan-out."""

    hook: Callable[[], Awaitable[object]]

    async def run(self, commands: Sequence[Command], **options: Any) -> list[Any]:
        replies = await super().run(commands, **options)
        if commands and commands[0].script is scripts.resplice:
            await self.hook()
        return replies


@pytest.fixture
async def stepping(projection: Projection) -> AsyncIterator[Projection]:
    """A Redis with a contact of very many leads, and a hook before each step of a fan-out."""
    await with_many_leads(projection)
    store = Hooked(projection.settings)
    yield Projection(store, projection.client, projection.settings)
    await store.close()


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["time for a step", "time for all steps"])
async def test_other_records_do_not_wait_for_a_fan_out(
    stepping: Projection, kafka: ScriptedKafka, seconds: float
) -> None:
    """While records arrive, the line makes one step between two polls, whatever time it has."""
    other = crm.lead(organization_id=crm.OTHER_ORGANIZATION, id=crm.OTHER_LEAD, contact_id=crm.uuid(7))
    name = names.document(resources.LEAD, names.organization(crm.OTHER_ORGANIZATION), generation(1), crm.OTHER_LEAD)
    visible: list[bool] = []

    async def hook() -> None:
        if not visible:
            kafka.publish(other)
        visible.append(bool(stepping.client.exists(name)))

    cast(Hooked, stepping.store).hook = hook
    async with running(stepping, kafka, fan_out=seconds) as it:
        await it.applies(crm.contact(2, first_name="Grace"))
        assert behind(stepping, "Grace") == 0
        await it.covers(1, LEADS)
    assert visible.count(True) > visible.count(False), "most of the fan-out comes after what was published meanwhile"


async def test_changes_during_a_fan_out_share_the_next_one(stepping: Projection, kafka: ScriptedKafka) -> None:
    """What is written is the summary that is stored then, so the leads are written twice at most."""
    versions = list(range(3, 23))

    async def hook() -> None:
        for version in versions:
            kafka.publish(crm.contact(version, first_name=f"Name {version}."))
        versions.clear()

    cast(Hooked, stepping.store).hook = hook
    stepping.client.config_resetstat()
    async with running(stepping, kafka, fan_out=0.0) as it:
        kafka.publish(crm.contact(2, first_name="Grace"))
        await it.covers(21, CONTACTS)
        assert behind(stepping, "Name 22.") == 0
    assert calls_of(stepping.client, "set") <= 2 * _OF_CONTACT + 100
    assert calls_of(stepping.client, "zadd") <= 2 * _OF_CONTACT


async def test_positions_advance_although_a_contact_changes_again_before_all_leads_show_it(
    stepping: Projection, kafka: ScriptedKafka
) -> None:
    """A fan-out ends when all leads show its change or a later one, not when all show the last change."""
    last, covered_at = 500, list[int]()
    versions = iter(range(3, last + 1))

    async def hook() -> None:
        if (version := next(versions, 0)) and it.stored(CONTACTS) is None:
            covered_at[:] = [version]
        if version:
            kafka.publish(crm.contact(version, first_name=f"Name {version}."))

    cast(Hooked, stepping.store).hook = hook
    async with running(stepping, kafka, fan_out=0.0) as it:
        kafka.publish(crm.contact(2, first_name="Grace"))
        await it.covers(last - 1, CONTACTS)
        assert behind(stepping, f"Name {last}.") == 0
    steps = _OF_CONTACT // MAX_LEADS
    assert covered_at[0] < 2 * steps, "the first change was covered after one fan-out"


async def test_line_leaves_a_fan_out_to_the_next_owner_at_once(stepping: Projection, kafka: ScriptedKafka) -> None:
    left: list[tuple[int, int | None]] = []
    revoking: list[asyncio.Task[None]] = []

    async def revoke() -> None:
        await kafka.revoke()
        kafka.offsets.clear()
        left.append((behind(stepping, "Grace"), it.stored(CONTACTS)))

    async def hook() -> None:
        if not revoking:
            revoking.append(asyncio.create_task(revoke()))

    cast(Hooked, stepping.store).hook = hook
    async with running(stepping, kafka, fan_out=0.0) as it:
        kafka.publish(crm.contact(2, first_name="Grace"))
        await it.covers(1, CONTACTS)  # here, the next owner is the same line
        assert behind(stepping, "Grace") == 0
    [(leads_left, position)] = left
    assert leads_left > _OF_CONTACT / 2, "nobody waited for its end"
    assert position is None
    assert kafka.sought(CONTACTS) == [None, None]


@pytest.mark.parametrize("changes", [1, 50])
async def test_batch_costs_one_fan_out_however_many_changes_of_a_contact_it_has(
    projection: Projection, changes: int
) -> None:
    leads_of_contact = [crm.lead(id=crm.uuid(1000 + number)).record(number) for number in range(1000)]
    await projection.apply(crm.contact().record(0), *leads_of_contact)
    projection.client.config_resetstat()
    await projection.apply(
        *(crm.contact(2 + number, first_name=f"Name {number}.").record(number) for number in range(changes))
    )
    assert calls_of(projection.client, "set") <= 1000 + changes
    assert calls_of(projection.client, "zadd") <= 1000
