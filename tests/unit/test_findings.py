"""What `status` judges: each problem alone, its words, and that nothing is said twice."""

import time

import msgspec
import pytest

from projector.commands import findings
from projector.commands.finding import headline
from projector.commands.survey import KafkaPart, Memory, RedisPart, Survey
from projector.errors import Refused, Unavailable
from projector.kafka.topics import Retention, Topic
from projector.ledger.checkpoint import Position
from projector.ledger.control import ControlRecord, Copy, Generation, State
from projector.ledger.writers import Heartbeat, Writer
from projector.mapping import VERSION
from projector.record import Partition
from schemas import words
from schemas.control import Stamp
from schemas.faults import Fault
from schemas.line_states import Halted, LineTrouble
from tests.harness.generations import generation, ids

STAMP = Stamp.first()
NOW = time.time() * 1000
LEADS = Partition("crm.leads", 0)
RUNNING = {"access": "running", "documents": "running"}
COMPACTED = Retention("compact", 604_800_000, -1)


def projector(
    lines: dict[str, str] = RUNNING,
    age_ms: int = 100,
    problems: tuple[str, ...] = (),
    kinds: tuple[str, ...] = (),
    mapping: int = VERSION,
    troubles: dict[str, LineTrouble] = {},  # noqa: B006 - never changed
) -> Writer:
    said = Heartbeat(
        "run", mapping, STAMP.text, lines=lines, troubles=troubles, problems=list(problems), kinds=list(kinds)
    )
    return Writer("host-1-ab", age_ms, said)


def rebuilding() -> Writer:
    return Writer("host-2-cd", 100, Heartbeat("rebuild", VERSION, STAMP.text))


def record(*, filled: bool = True, position: int = 5, mapping: int = VERSION) -> ControlRecord:
    state = State(generation(1), ids(1), {generation(1): Generation(mapping, "2026-01-01T00:00:00Z")}, ("ledger",))
    positions = {LEADS: Position(position, 0, 0)}
    return ControlRecord(
        STAMP, state, {b"ledger": Copy(STAMP, state, "i", ids(1), ids(1) if filled else (), (), positions)}
    )


def redis(
    *writers: Writer,
    control: ControlRecord | None = None,
    empty: bool = False,
    memory: Memory = Memory(10, 100, "noeviction"),  # noqa: B008 - frozen
    dead_letters: int = 0,
) -> RedisPart:
    return RedisPart(None if empty else control or record(), dead_letters, [memory], list(writers or (projector(),)))


def kafka(
    retention: Retention | None = COMPACTED, *, exists: bool = True, leaderless: tuple[int, ...] = ()
) -> KafkaPart:
    topic = Topic("crm.leads", exists, True, (LEADS,) if exists else (), leaderless, retention if exists else None)
    return KafkaPart([topic], {LEADS: (0, 5)})


def survey(
    redis_part: RedisPart | Refused | Unavailable, kafka_part: KafkaPart | Unavailable, waiting_ms: int | None = None
) -> Survey:
    oldest = {} if waiting_ms is None else {LEADS: int(NOW - waiting_ms)}
    return Survey(redis_part, kafka_part, oldest, NOW)


WELL = survey(redis(), kafka())


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(WELL, id="nothing is wrong"),
        pytest.param(survey(redis(dead_letters=3), kafka()), id="dead letters are a note"),
        pytest.param(survey(redis(control=record(mapping=VERSION - 1)), kafka()), id="a rebuild that is due is a note"),
        pytest.param(survey(redis(projector(), projector(age_ms=9000)), kafka()), id="one of two projectors died"),
        pytest.param(survey(redis(), kafka(None)), id="brokers that do not report it"),
        pytest.param(survey(redis(control=record(position=3)), kafka(), 30_000), id="records wait, but not for long"),
        pytest.param(survey(redis(memory=Memory(90, 100, "noeviction")), kafka()), id="Redis is nearly full"),
        pytest.param(survey(redis(memory=Memory(90, 0, "volatile-lru")), kafka()), id="evicts only what expires"),
    ],
)
def test_all_is_well(found: Survey) -> None:
    assert headline(findings.problems(found)) == "all is well"


@pytest.mark.parametrize(
    ("found", "said", "advised"),
    [
        pytest.param(
            survey(redis(projector(age_ms=5000)), kafka()), "no projector is running", "start one", id="no projector"
        ),
        pytest.param(
            survey(redis(projector({"access": "running", "documents": "halted: 5 bad"})), kafka()),
            "line documents is stopped: 5 bad",
            "fix the producer",
            id="stopped",
        ),
        pytest.param(
            survey(redis(projector({"documents": "standing by: generation 2 requires mapping version 9"})), kafka()),
            "line documents is standing by: generation 2 requires",
            "deploy the newer program on host-1-ab",
            id="standing by",
        ),
        pytest.param(
            survey(redis(projector({"documents": "failing: KeyError in x.py"})), kafka()),
            "line documents is failing: KeyError in x.py",
            "read the log of host-1-ab",
            id="a defect",
        ),
        pytest.param(
            survey(redis(projector(problems=("documents: no partition is assigned",))), kafka()),
            "documents: no partition is assigned",
            "read the log of host-1-ab",
            id="what a projector says of itself",
        ),
        pytest.param(
            survey(redis(), kafka(exists=False)), "topic crm.leads: missing", "LEADVIEW_TOPIC_PREFIX", id="no topic"
        ),
        pytest.param(
            survey(redis(), kafka(Retention("delete", -1, -1))), "not compacted", "cleanup.policy=compact", id="kept"
        ),
        pytest.param(
            survey(redis(), kafka(Retention("compact,delete", 1, -1))), "deleted as well", "set cleanup", id="deleted"
        ),
        pytest.param(survey(redis(), kafka(leaderless=(0,))), "no leader", "repair the brokers", id="no leader"),
        pytest.param(
            survey(redis(memory=Memory(1, 0, "allkeys-lru")), kafka()), "Redis evicts keys", "noeviction", id="evicts"
        ),
        pytest.param(
            survey(redis(memory=Memory(99, 100, "noeviction")), kafka()),
            "Redis is full",
            "raise its maxmemory",
            id="full",
        ),
        pytest.param(survey(redis(empty=True), kafka()), "Redis is empty", "a projector fills it", id="emptied"),
        pytest.param(
            survey(redis(control=record(filled=False)), kafka()), "not complete: Redis", "503", id="not filled"
        ),
        pytest.param(
            survey(redis(control=record(position=3)), kafka(), 90_000), "stale: 2 records wait", "for 90 s", id="stale"
        ),
        pytest.param(
            survey(redis(), Unavailable("Kafka refuses the user 'x'")), "Kafka cannot be read", "'x'", id="no Kafka"
        ),
        pytest.param(
            survey(Unavailable("Redis: refused."), kafka()), "Redis cannot be read", "Redis: refused. Co", id="no Redis"
        ),
    ],
)
def test_one_problem_is_said_in_the_first_line_with_what_to_do(found: Survey, said: str, advised: str) -> None:
    problems = findings.problems(found)
    line = headline(problems)
    assert len(problems) == 1, problems
    assert line.startswith("not well: ")
    assert said in line
    assert advised in line


def test_all_problems_are_in_the_first_line() -> None:
    halted = projector(
        {"documents": "halted: bad"}, problems=("documents: halted: bad", "topic crm.leads is missing: create it")
    )
    problems = findings.problems(survey(redis(halted, halted), kafka(exists=False)))
    assert headline(problems) == "not well: topic crm.leads: missing; line documents is stopped: bad"


def test_what_only_follows_from_another_problem_is_not_said() -> None:
    stuck = projector(problems=("documents: Redis refuses writes", "no partitions"), kinds=("no_step", "no_partitions"))
    full = survey(redis(stuck, memory=Memory(99, 100, "noeviction")), kafka())
    assert [problem.what for problem in findings.problems(full)] == ["Redis is full", "no partitions"]
    waits = projector(
        {"documents": "standing by: an older mapping"}, problems=("no partitions",), kinds=("no_partitions",)
    )
    assert len(findings.problems(survey(redis(waits), kafka()))) == 1
    stopped = projector(
        RUNNING | {"documents": "halted: bad"},
        problems=("documents: behind", "access: behind."),
        kinds=("no_step",) * 2,
    )
    problems = findings.problems(survey(redis(stopped), kafka()))
    assert [problem.what for problem in problems] == ["line documents is stopped: bad", "access: behind"]


def test_the_page_of_what_a_projector_says() -> None:
    known, unknown = projector(problems=("x",), kinds=("no_step",)), projector(problems=("x",))
    assert [problem.page for problem in findings.problems(survey(redis(known), kafka()))] == ["runbook.md#no_step"]
    assert [problem.page for problem in findings.problems(survey(redis(unknown), kafka()))] == [
        "runbook.md#leadviewproblem"
    ]


def test_notes() -> None:
    found = survey(redis(projector(), projector(age_ms=9000), dead_letters=2, control=record(mapping=0)), kafka())
    notes = [str(note) for note in findings.notes(found)]
    assert [note.partition(":")[0] for note in notes] == ["rebuild due", "dead letters", "silent for 9 s"]
    assert findings.notes(survey(redis(projector(age_ms=9000)), kafka())) == [], "the problem says it already"
    assert findings.notes(survey(Unavailable("Redis"), kafka())) == []


def test_what_cannot_be_read_is_unknown() -> None:
    assert survey(Unavailable("Redis"), kafka()).waiting() is None
    assert Survey(redis(), kafka(), None, NOW).ages() is None
    assert WELL.waiting() == {}


def test_what_stops_everything_hides_what_only_follows() -> None:
    """Records wait because of the cause that is named: "stale" stands alone, or beside what does not explain it."""
    late = 90_000
    dead = survey(redis(projector(age_ms=9000), control=record(position=3)), kafka(), late)
    assert headline(findings.problems(dead)).startswith("not well: no projector is running: ")
    evicts = survey(redis(control=record(position=3), memory=Memory(1, 0, "allkeys-lru")), kafka(), late)
    assert [problem.what.partition(":")[0] for problem in findings.problems(evicts)] == [
        "Redis evicts keys when its memory is full (maxmemory-policy is allkeys-lru)",
        "stale",
    ]


def test_a_stopped_line_is_said_in_short_and_its_command_stands_alone() -> None:
    command = "python -m projector dead-letters accept crm.leads:0:1-3 --note 'why'"
    halt = Halted("row", 3, 1000, 3, "crm.leads:0:3", Fault("missing", "$.data.stage"), 3, ("crm.leads:0:1-3",))
    halted = projector(
        RUNNING | {"documents": "halted"},
        problems=(words.line_trouble("documents", halt),),
        kinds=("halted",),
        troubles={"documents": halt},
    )
    [problem] = findings.problems(survey(redis(halted), kafka()))
    assert headline([problem]) == (
        "not well: line documents is stopped: 3 consecutive bad records (LEADVIEW_DEAD_LETTER_ROW is 3): fix the "
        "producer, or deploy a projector that can read them (docs/dead-letters.md)"
    )
    assert problem.command == command
    assert problem.detail == (
        "The last one is crm.leads:0:3: `$.data.stage` is missing. Only if none of them is needed, accept these 3 bad "
        "records, with those behind the last one. This leaves them out for good:"
    )
    assert str(problem).endswith(f"for good: {command}")


def test_an_empty_redis_is_explained_without_causes_that_are_excluded() -> None:
    alone = survey(redis(projector(age_ms=9000), empty=True), kafka())
    assert "LEADVIEW_REDIS_URL" in findings.problems(alone)[0].advice
    assert "LEADVIEW_REDIS_URL" not in findings.problems(survey(redis(empty=True), kafka()))[0].advice


def shards(*filled: bool) -> RedisPart:
    state = State(generation(1), ids(1), {generation(1): Generation(VERSION, "")}, tuple("abc"))
    copies = {
        tag.encode(): Copy(STAMP, state, "i", ids(1), ids(1) if is_filled else (), (), {LEADS: Position(5, 0, 0)})
        for tag, is_filled in zip("abc", filled, strict=True)
    }
    servers = {tag: f"10.0.0.1:{7000 + number}" for number, tag in enumerate(copies)}
    memory = [Memory(1, 0, "noeviction")] * 3
    return RedisPart(ControlRecord(STAMP, state, copies), 0, memory, [projector()], servers)


@pytest.mark.parametrize(
    ("filled", "said", "advised"),
    [
        pytest.param(
            (True, False, True),
            "not complete: 1 of the 3 parts (shards) of Redis, 10.0.0.1:7001",
            "for the organizations there, and no others, the API answers 503",
            id="one",
        ),
        pytest.param(
            (False, False, False),
            "not complete: all 3 parts (shards) of Redis, 10.0.0.1:7000, 10.0.0.1:7001, 10.0.0.1:7002",
            "for all organizations, the API answers 503",
            id="all",
        ),
    ],
)
def test_shards_are_named(filled: tuple[bool, ...], said: str, advised: str) -> None:
    [problem] = findings.problems(survey(shards(*filled), kafka()))
    assert problem.what == said
    assert problem.advice.startswith(advised)


@pytest.mark.parametrize(
    ("writers", "complete", "said"),
    [
        pytest.param((projector(),), True, "", id="it is written, and may be promoted"),
        pytest.param((projector(), rebuilding()), False, "", id="it is being filled"),
        pytest.param(
            (projector(),), False, "not complete, and no rebuild is running: run `rebuild`", id="nobody fills it"
        ),
        pytest.param((projector(mapping=VERSION - 1),), True, "is not written any more", id="an older program runs"),
        pytest.param((projector(age_ms=9000),), True, "", id="without projectors, that is the problem"),
    ],
)
def test_a_generation_that_nobody_writes(writers: tuple[Writer, ...], complete: bool, said: str) -> None:
    state = State(generation(1), ids(1, 2), {each: Generation(VERSION, "") for each in ids(1, 2)}, ("ledger",))
    copy = Copy(STAMP, state, "i", ids(1, 2), ids(1, 2) if complete else ids(1), (), {LEADS: Position(5, 0, 0)})
    found = survey(redis(*writers, control=ControlRecord(STAMP, state, {b"ledger": copy})), kafka())
    assert isinstance(found.redis, RedisPart)
    finding = findings.unattended(found.redis)
    assert said in str(finding or "")
    assert bool(finding) == bool(said)
    assert (finding in findings.notes(found)) == bool(said)


def test_data_of_another_layout_is_a_note() -> None:
    """Both programs can work, so it is no problem."""
    found = survey(msgspec.structs.replace(redis(), other_layouts=[2]), kafka())
    assert findings.problems(found) == []
    [note] = findings.notes(found)
    assert str(note).startswith("Redis also holds data of layout 2 (this program: 3), which uses memory")
