"""What `status` judges: each problem alone, its words, and that nothing is said twice."""

import re
import time
from functools import cache
from io import StringIO
from itertools import islice, zip_longest
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from docs.generate.troubles import ROWS
from operate.commands import status
from operate.console import pages
from projector import problem
from projector.dead_letter import DeadLetter
from projector.health.judge import problems, unattended
from projector.health.observe import ApiPart, KafkaPart, Observation, RedisPart
from projector.kafka.groups import Member
from projector.kafka.topics import Retention, Topic
from projector.ledger.control import ControlRecord
from projector.ledger.writers import Writer
from projector.mapping import VERSION
from projector.record import Partition
from projector.redis.store import Memory
from projector.words import Said, headline, say
from schemas import metrics, resources, words
from schemas.control import Stamp
from schemas.heartbeat import Clocks, Heartbeat, KafkaRight, LineTrouble
from tests.harness import control, troubled
from tests.harness.troubled import EVERY, HALT, HELD, OBSERVED

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
    of_lines: tuple[str, ...] = (),
    mapping: int = VERSION,
    troubles: dict[str, LineTrouble] = {},  # noqa: B006 - never changed
    started_ms_ago: int | None = None,
) -> Writer:
    started_at = 0 if started_ms_ago is None else int(NOW - started_ms_ago)
    said = Heartbeat(
        "run",
        mapping,
        STAMP.text,
        started_at,
        lines=lines,
        troubles=troubles,
        problems=list(problems),
        kinds=list(kinds),
        of_lines=list(of_lines),
    )
    return Writer("host-1-ab", age_ms, said)


def with_clocks(clocks: Clocks | None) -> Writer:
    writer = projector()
    return replace(writer, heartbeat=replace(writer.heartbeat, clocks=clocks))


def rebuilding(age_ms: int = 100) -> Writer:
    return Writer("host-2-cd", age_ms, Heartbeat("rebuild", VERSION, STAMP.text))


def record(*, filled: bool = True, position: int = 5, mapping: int = VERSION) -> ControlRecord:
    state = control.state_of(mappings={1: mapping})
    return control.record_of(state, {LEADS: position}, filled=None if filled else ())


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


def survey(redis_part: RedisPart | str, kafka_part: KafkaPart | str, waiting_ms: int | None = None) -> Observation:
    """Instead of a part, there is the reason why it cannot be read."""
    parts: dict[str, Any] = {"redis": redis_part, "kafka": kafka_part}
    known = {f"{name}_unknown" if isinstance(part, str) else name: part for name, part in parts.items()}
    return Observation(at=NOW, oldest={} if waiting_ms is None else {LEADS: int(NOW - waiting_ms)}, **known)


def wrong(found: Observation) -> list[Said]:
    return [say(problem) for problem in problems(found) if problem.severity == "problem"]


def notes(found: Observation) -> list[Said]:
    return [say(problem) for problem in problems(found) if problem.severity == "note"]


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
def test_state_without_problems_is_well(found: Observation) -> None:
    assert headline(wrong(found)) == "all is well"


def test_api_that_waits_until_projectors_have_filled_redis_is_left_alone() -> None:
    """`status` may see a Redis that is complete, a moment before the API does."""
    filling = replace(NOT_READY, causes=("the projection is not complete in this part of Redis",), filling=True)
    for programs, advised in ((projector(), "wait: "), (projector(age_ms=9000), "`doctor --api`")):
        said = wrong(replace(survey(redis(programs), kafka()), api=filling))[-1]
        assert said.what == "no worker of the API is ready, so that every request gets 503 or no answer"
        assert advised in said.advice
        assert ("doctor" in said.advice) is (advised != "wait: ")


@pytest.mark.parametrize(
    ("reply", "advised"),
    [
        pytest.param(
            "NOAUTH Authentication required.", "Redis wants a password: set LEADVIEW_REDIS_PASSWORD", id="none"
        ),
        pytest.param("WRONGPASS invalid username-password pair", "correct LEADVIEW_REDIS_USERNAME", id="a wrong one"),
        pytest.param("NOPERM User x has no permissions", "deploy/redis-users.conf.example", id="a right"),
    ],
)
def test_redis_that_refuses_a_program_is_not_repaired_but_given_what_it_wants(reply: str, advised: str) -> None:
    unready = replace(NOT_READY, causes=(f"there is no connection to Redis: {reply}",))
    for found in (survey(f"Redis: {reply}", kafka()), replace(survey(redis(), kafka()), api=unready)):
        [said] = wrong(found)
        assert advised in said.advice
        assert "repair Redis" not in said.advice


@pytest.mark.parametrize(
    ("memory", "command"),
    [
        pytest.param(Memory(99 << 20, 100 << 20, "noeviction"), "CONFIG SET maxmemory 150mb", id="full"),
        pytest.param(Memory(99, 100, "noeviction"), "CONFIG SET maxmemory 1mb", id="full, and very small"),
        pytest.param(Memory(1, 0, "allkeys-lru"), "CONFIG SET maxmemory-policy noeviction", id="evicts"),
    ],
)
def test_what_redis_has_to_be_told_can_be_pasted(memory: Memory, command: str) -> None:
    """It goes to the Redis of the settings, and says that a restart undoes it."""
    [said] = wrong(survey(redis(memory=memory), kafka()))
    assert said.command == f'redis-cli -u "$LEADVIEW_REDIS_URL" {command}'
    assert said.detail.endswith("until Redis restarts, unless you also run CONFIG REWRITE:")


@pytest.mark.parametrize(
    ("found", "said", "advised"),
    [
        pytest.param(
            survey(redis(projector(age_ms=-3_600_000)), kafka()),
            "no projector is running",
            "start one",
            id="the clock was set back since the last heartbeat",
        ),
        pytest.param(
            survey(replace(redis(), clocks=Clocks(3_600_000, 0)), kafka()),
            "the clocks differ: that of Redis says 1970-01-01T01:00:00.000Z, that of this machine "
            "1970-01-01T00:00:00.000Z",
            "Let NTP set both clocks",
            id="the clock of this machine differs",
        ),
        pytest.param(
            survey(redis(*map(with_clocks, (Clocks(0, 3_600_000), None, Clocks(9, 3_600_003)))), kafka()),
            "the clocks differ: that of Redis says 1970-01-01T00:00:00.000Z, that of host-1-ab, host-1-ab "
            "1970-01-01T01:00:00.000Z",
            "API keys expire by the clock of Redis",
            id="the clocks of projectors differ, each by other milliseconds",
        ),
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
            survey(redis(), KafkaPart([Topic("crn.leads", True, False, (), (), None)], {})),
            "topic crn.leads: this user may not read it",
            "or correct LEADVIEW_TOPIC_PREFIX",
            id="no topic that it may read",
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
        pytest.param(survey(redis(), "Kafka refuses the user 'x'"), "Kafka cannot be read", "'x'", id="no Kafka"),
        pytest.param(survey("Redis: refused.", kafka()), "Redis cannot be read", "Redis: refused. Co", id="no Redis"),
    ],
)
def test_one_problem_is_said_in_the_first_line_with_what_to_do(found: Observation, said: str, advised: str) -> None:
    [problem] = wrong(found)
    assert re.match(f"not well: .*{re.escape(said)}.*{re.escape(advised)}", headline([problem]))


def test_all_problems_are_in_the_first_line() -> None:
    halted = projector({"documents": "halted: bad"}, problems=("line documents is stopped: bad",), kinds=("halted",))
    found = wrong(survey(redis(halted, halted), kafka(exists=False)))
    assert headline(found) == "not well: topic crm.leads: missing; line documents is stopped: bad"


NOT_READY = ApiPart(ready_workers=0, workers=2, unavailable=1.0)
UNWRITTEN = ApiPart(ready_workers=2, workers=2, reported={"not_written": 2})
HALTED = RUNNING | {"documents": "halted: bad"}


def saying(said: dict[str, str], lines: dict[str, str] = RUNNING) -> Writer:
    """Returns a projector that says this of itself. `said` has the kind of each text, which begins with its line here.
    The line is said apart from the text as well: no program takes it out of the words.
    """
    of_lines = [text.partition(":")[0] if text.partition(":")[0] in lines else "" for text in said]
    return projector(lines, problems=(*said,), kinds=(*said.values(),), of_lines=(*of_lines,))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(
            survey(
                redis(
                    saying({"documents: Redis refuses writes": "no_step", "no partitions": "no_partitions"}),
                    memory=Memory(99, 100, "noeviction"),
                ),
                kafka(),
            ),
            ["Redis is full", "no partitions"],
            id="a full Redis lets no step succeed",
        ),
        pytest.param(
            survey(
                redis(saying({"no partitions": "no_partitions"}, {"documents": "standing by: an older mapping"})),
                kafka(),
            ),
            ["line documents is standing by: an older mapping"],
            id="a line that stands by has no partitions",
        ),
        pytest.param(
            survey(redis(saying({"documents: behind": "no_step", "access: behind.": "no_step"}, HALTED)), kafka()),
            ["line documents is stopped: bad", "access: behind"],
            id="a stopped line is behind, and this does not explain the other one",
        ),
        pytest.param(
            survey(
                redis(
                    saying({"documents: behind": "not_advancing"}, HALTED),
                    msgspec.structs.replace(saying({"documents: late": "not_advancing"}), id="other"),
                ),
                kafka(),
            ),
            ["line documents is stopped: bad", "documents: late"],
            id="a stopped line explains only what its own program says of it",
        ),
        pytest.param(
            survey(redis(saying({"documents: no step": "no_step", "documents: late": "not_advancing"})), kafka()),
            ["documents: no step"],
            id="a line that completes no step does not advance",
        ),
        pytest.param(
            survey(
                redis(saying({"Kafka cannot be read: x": "kafka_unknown", "access: no step (Kafka)": "no_step"})),
                "no answer",
            ),
            ["Kafka cannot be read"],
            id="projectors cannot read it either",
        ),
        pytest.param(
            survey(redis(saying({"Kafka cannot be read: x": "kafka_unknown"})), kafka()),
            ["Kafka cannot be read: x"],
            id="only a projector cannot read it",
        ),
        pytest.param(
            survey(
                redis(
                    saying({"Kafka cannot be read: x": "kafka_unknown", "access: no step (Kafka)": "no_step"}),
                    control=record(position=3),
                ),
                kafka(),
                90_000,
            ),
            ["Kafka cannot be read: x"],
            id="records wait because projectors cannot read them",
        ),
        pytest.param(
            survey(
                redis(
                    saying({"Kafka cannot be read: x": "kafka_unknown"}),
                    msgspec.structs.replace(saying({"access: no step": "no_step"}), id="other"),
                ),
                kafka(),
            ),
            ["Kafka cannot be read: x", "access: no step"],
            id="another projector has a problem of its own",
        ),
        pytest.param(
            survey(redis(projector(age_ms=9000), control=record(position=3)), kafka(), 90_000),
            ["no projector is running"],
            id="records wait because nobody reads them",
        ),
        pytest.param(
            survey(redis(control=record(position=3), memory=Memory(1, 0, "allkeys-lru")), kafka(), 90_000),
            [
                "Redis evicts keys when its memory is full (maxmemory-policy is allkeys-lru)",
                "stale: 2 records wait to be applied, the oldest for 90 s",
            ],
            id="records do not wait because Redis evicts",
        ),
        pytest.param(
            replace(survey("Redis: refused", kafka()), api=NOT_READY),
            ["Redis cannot be read"],
            id="the API cannot read it either",
        ),
        pytest.param(
            replace(survey(redis(projector(age_ms=9000)), kafka()), api=UNWRITTEN),
            ["no projector is running"],
            id="the API finds nothing written because nobody writes",
        ),
        pytest.param(
            replace(survey(redis(), kafka()), api=UNWRITTEN),
            ["no projector writes to the Redis that the API reads"],
            id="the API reads another Redis",
        ),
    ],
)
def test_what_only_follows_from_another_problem_is_not_said(found: Observation, said: list[str]) -> None:
    assert [problem.what for problem in wrong(found)] == said


def test_words_do_not_say_which_line_a_problem_is_of() -> None:
    """Only the heartbeat's own field does, which a former version does not have."""
    late, halted = ("of documents: late",), {"documents": "halted: bad"}
    known = projector(halted, problems=late, kinds=("not_advancing",), of_lines=("documents",))
    assert [problem.what for problem in wrong(survey(redis(known), kafka()))] == ["line documents is stopped: bad"]
    former = projector(halted, problems=("documents: late",), kinds=("not_advancing",))
    assert [problem.what for problem in wrong(survey(redis(former), kafka()))] == [
        "line documents is stopped: bad",
        "documents: late",
    ]


def test_what_two_projectors_report_is_one_problem_for_as_long_as_it_has_lasted() -> None:
    """Each of them has counted other seconds."""
    text = "documents: no step has succeeded (Kafka)"
    one = saying({text: "no_step"})
    other = msgspec.structs.replace(one, id="other")
    writers = [
        msgspec.structs.replace(it, heartbeat=msgspec.structs.replace(it.heartbeat, seconds=[seconds]))
        for it, seconds in ((one, 61.0), (other, 62.4))
    ]
    [said] = wrong(survey(redis(*writers), kafka()))
    assert said.what == "documents: no step has succeeded (Kafka) for 62 s"
    assert said.advice == "read the log of host-1-ab, other"


def denied(id_: str, *rights: KafkaRight) -> Writer:
    one = saying({"Kafka refuses …": "kafka_denies", "documents: no partitions": "no_partitions"})
    return replace(one, id=id_, heartbeat=replace(one.heartbeat, rights=list(rights)))


def test_what_kafka_refuses_is_one_problem_for_each_right_with_the_line_that_grants_it() -> None:
    """Each line and each projector meets another topic. That a line without its group has no partitions follows."""
    leads = KafkaRight("Read", "topic", ("crm.leads",), "User:leadview")
    contacts, group = replace(leads, names=("crm.contacts",)), replace(leads, resource="group", names=("leadview",))
    own = replace(survey(redis(denied("a", leads, group), denied("b", contacts)), "no"), rights=[leads])
    of_topics, of_group = wrong(own)
    assert of_topics.what == "Kafka refuses the user leadview the right Read on topics crm.contacts, crm.leads"
    assert of_topics.command.endswith(
        "--add --allow-principal User:leadview --operation Read --topic crm.contacts --topic crm.leads"
    )
    assert of_group.command.endswith("--operation Read --group leadview")
    [said] = wrong(survey(redis(denied("a", replace(leads, principal=""))), kafka()))
    assert said.what == "Kafka refuses the user of a the right Read on topic crm.leads"
    assert '--allow-principal "User:$LEADVIEW_USER"' in said.command


def joined(*members: str, hindered: tuple[str, ...] = ()) -> Writer:
    """Returns a projector whose lines are these members of consumer groups."""
    one = projector()
    said = msgspec.structs.replace(one.heartbeat, members=list(members), hindered=list(hindered))
    return msgspec.structs.replace(one, heartbeat=said)


def silent(*members: str) -> Writer:
    """Returns such a projector whose last heartbeat is old."""
    return msgspec.structs.replace(joined(*members), id="silent", age_ms=9000)


def in_group(*members: str, client: str = "") -> KafkaPart:
    """Each member has a partition."""
    return msgspec.structs.replace(
        kafka(), members=[Member(it, "leadview", client or f"client {it}", "10.0.0.7", (LEADS,)) for it in members]
    )


NOT_OURS = "not a projector of this installation, and a member of its consumer group: client b at 10.0.0.7 in leadview"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(survey(redis(joined("a")), in_group("a")), [], id="all are ours"),
        pytest.param(survey(redis(joined("a")), kafka()), [], id="members are not known"),
        pytest.param(
            survey(redis(joined("a")), in_group("a", "b")), [f"{NOT_OURS} (crm.leads:0)"], id="one is not ours"
        ),
        pytest.param(survey(redis(joined("a"), projector()), in_group("a", "b")), [], id="a former version may be it"),
        pytest.param(
            survey(redis(joined("a"), silent("c")), in_group("a", "b", client="leadview-projector")),
            [],
            id="one that cannot say under which id it has joined again",
        ),
        pytest.param(
            survey(redis(joined("a"), silent("c")), in_group("a", "b", "d", client="leadview-projector")),
            [
                NOT_OURS.replace("client b", "leadview-projector") + " (crm.leads:0)",
            ],
            id="one more than those that are silent may be",
        ),
        pytest.param(
            survey(redis(joined("a"), silent("c")), in_group("a", "b")),
            [f"{NOT_OURS} (crm.leads:0)"],
            id="another program, while a projector is silent",
        ),
        pytest.param(
            survey(redis(joined("a"), control=record(position=3)), in_group("a", "b"), 90_000),
            [f"{NOT_OURS} (crm.leads:0)"],
            id="records wait because it has their partition",
        ),
        pytest.param(
            survey(redis(joined("a", hindered=("documents",)), control=record(position=3)), in_group("a"), 90_000),
            ["stale: 2 records wait to be applied, the oldest for 90 s"],
            id="records wait",
        ),
    ],
)
def test_member_of_the_group_that_no_heartbeat_knows_is_a_problem(found: Observation, said: list[str]) -> None:
    assert [problem.what for problem in wrong(found)] == said


@pytest.mark.parametrize(
    ("projectors", "partitions", "advice"),
    [
        pytest.param([joined()], 2, "the projectors are too slow: start more of them", id="one has more to do"),
        pytest.param([joined()], 1, "more projectors would not help", id="there are as many as partitions"),
        pytest.param(
            [joined(hindered=("documents",))], 2, "host-1-ab cannot apply them now: read the log", id="no step succeeds"
        ),
    ],
)
def test_more_projectors_are_advised_only_if_they_would_help(
    projectors: list[Writer], partitions: int, advice: str
) -> None:
    part = kafka()
    topics = [part.topics[0]._replace(partitions=tuple(Partition("crm.leads", number) for number in range(partitions)))]
    behind = msgspec.structs.replace(part, topics=topics)
    [said] = wrong(survey(redis(*projectors, control=record(position=3)), behind, 90_000))
    assert said.advice.startswith(advice)


def test_the_page_of_what_a_projector_says() -> None:
    said = [projector(problems=("x",), kinds=kinds) for kinds in (("no_step",), ())]
    found = [problem.page for each in said for problem in wrong(survey(redis(each), kafka()))]
    assert found == ["runbook.md#no_step", "runbook.md#leadviewproblem"]


def test_stopped_line_is_said_in_short_and_its_command_stands_alone() -> None:
    command = "python -m projector dead-letters accept crm.leads:0:1-3 --note 'why'"
    halted = projector(
        RUNNING | {"documents": "halted"},
        problems=(f"documents: halted: {words.trouble(HALT)}",),
        kinds=("halted",),
        troubles={"documents": HALT},
    )
    [problem] = wrong(survey(redis(halted), kafka()))
    assert headline([problem]) == (
        "not well: line documents is stopped: 3 consecutive bad records (LEADVIEW_DEAD_LETTER_ROW is 3): fix the "
        "producer, or deploy a projector that can read them (docs/dead-letters.md)"
    )
    detail = (
        "The last one is crm.leads:0:3: `$.data.stage` is missing. Only if none of them is needed, accept these 3 bad "
        "records, with those behind the last one. This leaves them out for good:"
    )
    assert (problem.detail, problem.command) == (detail, command)
    assert "(docs/dead-letters.md). The last one is crm.leads:0:3" in str(problem)
    assert str(problem).endswith(f"for good: {command}")
    printed = StringIO()
    console = Console(file=printed, width=500, soft_wrap=True)
    for part in islice(status.parts(survey(redis(halted), kafka())), 2):
        console.print(part)
    assert printed.getvalue() == f"{headline([problem])}\n  {problem.detail} {command}\n"


def screen(found: Observation) -> list[str]:
    printed = StringIO()
    console = Console(file=printed, width=160)
    for part in status.parts(found):
        console.print(part)
    return [" ".join(line.split()) for line in printed.getvalue().splitlines()]


def test_status_of_800_partitions_and_600_programs_fits_on_a_screen() -> None:
    topics = [f"crm.{kind.topic}" for kind in resources.KINDS]
    partitions = [Partition(topic, number) for topic in topics for number in range(200)]
    behind = {Partition("crm.leads", number): 3 for number in range(22)}
    busy = Partition("crm.api-keys", 3)
    nobody, stranger = Partition("crm.contacts", 7), Partition("crm.contacts", 8)
    positions = {at: 5 - (behind | {busy: 3}).get(at, 0) for at in partitions}
    programs = [replace(projector(), id=f"living-{number}") for number in range(100)]
    programs += [replace(projector(age_ms=9000), id=f"dead-{number}") for number in range(500)]
    programs = [replace(it, heartbeat=replace(it.heartbeat, members=["ours"])) for it in programs]
    stands = replace(programs[99], heartbeat=replace(programs[99].heartbeat, lines={"documents": "failing"}))
    members = [
        Member("ours", "leadview", "", "", tuple(at for at in partitions if at not in (nobody, stranger))),
        Member("theirs", "leadview", "", "", (stranger,)),
    ]
    described = [
        Topic(it, True, True, tuple(at for at in partitions if at.topic == it), (), COMPACTED) for it in topics
    ]
    described[0] = described[0]._replace(leaderless=(199,))
    ranges = {at: (0, 5) for at in partitions if at != (topics[0], 199)}
    found = survey(
        redis(*programs[:99], stands, *programs[100:], control=control.record_of(control.state_of(), positions)),
        KafkaPart(described, ranges, members),
    )
    waits = {at: int(NOW - 61_000 - 1000 * at.partition) for at in behind}
    found = replace(found, oldest=waits | {busy: int(NOW - 59_000)})

    shown = screen(found)
    assert len(shown) < 70
    [note] = [line for line in shown if line.startswith("note")]
    assert note.startswith("note silent for 9 s: 500 programs (projector dead-0, dead-1, dead-2 and 497 more)")
    assert "and 580 more: `status --json`" in shown
    assert "and 5 more: `status --json`" in shown, "22 of leads, 2 of contacts, and the one without a leader"
    assert any(line.startswith("projector living-99") for line in shown), "it does not work, so it is among the first"
    rows = {tuple(line.split()[:2]): line for line in shown if line.startswith("crm.")}
    assert rows["crm.leads", "21"].startswith("crm.leads 21 2 5 3 82 s")
    assert rows["crm.api-keys", "200"].startswith("crm.api-keys 200 of 200 997 1,000 3 59 s"), "not for long"
    assert rows["crm.contacts", "198"].startswith("crm.contacts 198 of 200 990 990 0 -")
    assert rows["crm.leads", "178"].startswith("crm.leads 178 of 200 890 890 0 -")
    assert len(status.of(found).partitions) == 799


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"leaderless": True}, "no broker leads it", id="no leader"),
        pytest.param({"members": []}, "no projector has it", id="no owner"),
        pytest.param({"members": None}, "", id="the owners are not known"),
    ],
)
def test_what_is_wrong_with_a_partition_stands_in_its_row(changed: dict[str, Any], said: str) -> None:
    part = kafka(leaderless=(0,) if "leaderless" in changed else ())
    part = replace(part, ranges={} if "leaderless" in changed else part.ranges, members=changed.get("members"))
    [row] = [line for line in screen(survey(redis(), part)) if line.startswith("crm.leads 0")]
    assert row.endswith(said or "0 - - -")


def test_empty_redis_is_explained_without_causes_that_are_excluded() -> None:
    found = [survey(redis(projector(age_ms=age), empty=True), kafka()) for age in (9000, 100)]
    assert ["LEADVIEW_REDIS_URL" in wrong(each)[0].advice for each in found] == [True, False]


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
def test_shard_that_is_not_complete_is_named(filled: tuple[bool, ...], said: str, advised: str) -> None:
    [problem] = wrong(survey(troubled.shards(*filled), kafka()))
    assert (problem.what, problem.advice[: len(advised)]) == (said, advised)


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
def test_generation_that_nobody_writes_is_named(writers: tuple[Writer, ...], complete: bool, said: str) -> None:
    state = control.state_of(1, 1, 2)
    record = control.record_of(state, {LEADS: 5}, filled=(1, 2) if complete else (1,))
    found = survey(redis(*writers, control=record), kafka())
    assert found.redis
    nobody = unattended(found.redis)
    assert said in (str(say(nobody)) if nobody else "")
    assert (nobody is not None, nobody in problems(found)) == (bool(said), bool(said))


@pytest.mark.parametrize("name", [name for name in OBSERVED if "`status`: " in ROWS[name].sign])
def test_what_the_runbook_says_that_status_says(name: str) -> None:
    """Up to what the runbook adds to it."""
    _, _, sign = ROWS[name].sign.partition("`status`: ")
    said, *_ = re.split("; |, (?:if|also|although|with) ", sign)
    assert re.search(".*".join(map(re.escape, said.split("…"))), "\n".join(map(str, wrong(OBSERVED[name]()))))


def test_what_several_projectors_report_is_one_problem() -> None:
    waits = {"access": "running", "documents": "standing by: generation 2 requires mapping version 2"}
    both = [msgspec.structs.replace(projector(waits), id=id_) for id_ in ("a", "b")]
    [said] = wrong(survey(redis(*both), kafka()))
    assert said.advice.startswith("deploy the newer program on a, b again")


@pytest.mark.parametrize("name", OBSERVED)
def test_what_follows_from_each_trouble_as_it_was_observed(name: str) -> None:
    found = problems(OBSERVED[name]())
    assert [it.label for it in found if it.severity == "problem"] == [*ROWS[name].problems]
    assert [it.label for it in found if it.severity == "note"] == [*ROWS[name].notes]


def test_each_trouble_in_which_something_is_said_is_observed() -> None:
    assert problems(troubled.WELL) == []
    assert OBSERVED.keys() == {name for name, row in ROWS.items() if row.problems or row.notes}


def test_every_kind_has_words_and_a_page_and_is_read_as_it_was_written() -> None:
    assert {type(it) for it in EVERY} == set(get_args(problem.Problem))
    page_of = cache(pages.page)
    for it in EVERY:
        said = say(it)
        name, _, section = said.page.partition("#")
        html = page_of(name)
        assert html, said
        assert not section or f'id="{section}"' in html, said
        assert said.what in str(said)
        assert msgspec.json.decode(msgspec.json.encode(it), type=problem.Problem) == it


def test_every_label_is_that_of_a_kind_or_said_by_projectors_alone() -> None:
    assert {it.label for it in EVERY} >= set(metrics.PROBLEM_LABELS)


def seen(*writers: Writer) -> Observation:
    return survey(redis(*writers), kafka())


MANY = tuple(f"name-{number}" for number in range(4))


@pytest.mark.parametrize(
    "about",
    [
        pytest.param(problem.ClockDiffers(MANY, Clocks(0, 3_600_000)), id="clocks"),
        pytest.param(problem.Incomplete(4, 4, MANY), id="shards"),
        pytest.param(problem.NoProjector(MANY), id="projectors that are gone"),
        pytest.param(problem.OtherSettings(MANY, "LEADVIEW_GROUP_ID", "a", "b"), id="projectors with another setting"),
        pytest.param(problem.Failing("documents", MANY, HALT), id="projectors that fail"),
        pytest.param(problem.NotAdvancing("documents", (), 5, 31.0, MANY), id="partitions that do not advance"),
        pytest.param(problem.Stale(2, 61.0, MANY), id="projectors that are hindered"),
        pytest.param(problem.Silent(MANY, "run", 9.0), id="programs that are silent"),
        pytest.param(problem.AccessAsBefore(tuple(f"{it}:key" for it in MANY)), id="bad records of access"),
        pytest.param(
            problem.DocumentsAsBefore(tuple(f"leads:{it}:lead" for it in MANY)), id="bad records of documents"
        ),
        pytest.param(problem.OlderPublished(tuple(f"leads:{it}:lead" for it in MANY)), id="older versions"),
        pytest.param(problem.ForeignMember((problem.Stranger("", "", "", MANY),)), id="partitions of a stranger"),
        pytest.param(problem.ForeignMember((problem.Stranger("", "", "", ()),) * 4), id="strangers"),
        pytest.param(
            problem.OpenTransaction(
                ("a",), tuple(replace(HELD, partition=number) for number in range(4)), access=False
            ),
            id="open transactions",
        ),
    ],
)
def test_more_than_three_are_counted_and_not_named(about: problem.Problem) -> None:
    text = str(say(about))
    assert MANY[3] not in text
    assert "and 1 more" in text


@pytest.mark.parametrize(
    ("about", "first", "then"),
    [
        pytest.param(
            problem.DocumentsAsBefore(tuple(f"leads:one:{number}" for number in range(50))),
            "50 leads show an old state, because their newest record is bad",
            "They are lead 0, lead 1, lead 2 of organization one and 47 more.",
            id="many documents of an organization",
        ),
        pytest.param(
            problem.DocumentsAsBefore(("leads:one:1",), 5),
            "lead 1 of organization one shows an old state, because its newest record is bad",
            "Do it before a rebuild",
            id="one document",
        ),
        pytest.param(
            problem.DocumentsAsBefore(("leads:one:1", "contacts:one:2", "contacts:other:3")),
            "2 contacts and 1 lead show an old state, because their newest record is bad",
            "They are lead 1, contact 2 of organization one, contact 3 of organization other.",
            id="documents of both kinds",
        ),
        pytest.param(
            problem.AccessAsBefore(("one", "one:key", "other:key")),
            "2 API keys and 1 organization are as before, because records of them are bad; a revoked key may still "
            "work",
            "They are organization one, API key key of organization one, API key key of organization other.",
            id="access",
        ),
        pytest.param(
            problem.OlderPublished((), 0, 3),
            "3 entities have a last record in Kafka that is not the newest one: an older version was published "
            "behind a newer one",
            "They are not among those that are remembered.",
            id="older versions of entities that are only counted",
        ),
    ],
)
def test_first_line_counts_and_the_ids_follow(about: problem.Problem, first: str, then: str) -> None:
    said = say(about)
    assert said.what == first
    assert said.detail.startswith(then)
    assert len(re.findall("of organization one", str(said))) <= 2
    assert ("organization" in said.what) is (first.startswith("lead 1 ") or "1 organization" in first)
    assert "alone" not in str(said)


def test_dead_letters_beside_those_that_a_problem_names_are_others() -> None:
    bad = [DeadLetter("crm.leads", 0, number, f"one:{number}", "bad", 0) for number in range(50)]
    for newest_bad, said in ((bad, "2 other dead letters"), ([], "52 dead letters")):
        [note] = notes(survey(replace(redis(dead_letters=52), newest_bad=newest_bad), kafka()))
        assert note.what == said


SILENT = ["silent for 9 s"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(
            survey(redis(projector(), projector(age_ms=9000), dead_letters=2, control=record(mapping=0)), kafka()),
            ["rebuild due", "2 dead letters", *SILENT],
            id="several",
        ),
        pytest.param(survey("Redis", kafka()), [], id="nothing can be read"),
        pytest.param(
            survey(msgspec.structs.replace(redis(), other_layouts=[2]), kafka()),
            ["Redis also holds data of layout 2 (this program"],
            id="data of another layout: both programs can work",
        ),
        pytest.param(seen(projector(), rebuilding(age_ms=9000)), [], id="a rebuild whose generation was dropped"),
        pytest.param(seen(projector(age_ms=9000)), [], id="no projector: the problem says it already"),
        pytest.param(
            seen(projector(), projector(age_ms=9000)),
            ["silent for 9 s: projector host-1-ab"],
            id="nobody says when it was started",
        ),
        pytest.param(
            seen(projector(started_ms_ago=8000), projector(age_ms=9000)), [], id="another one was started since"
        ),
        pytest.param(
            seen(projector(started_ms_ago=9001), projector(age_ms=9000)), SILENT, id="the other one was there before"
        ),
        pytest.param(
            seen(projector(started_ms_ago=5000), projector(age_ms=9000), projector(age_ms=8000)),
            ["silent for 8 s"],
            id="one was started for two that died",
        ),
        pytest.param(
            seen(projector(), projector(started_ms_ago=9000, age_ms=9000)), SILENT, id="it was started a moment before"
        ),
        pytest.param(
            seen(projector(started_ms_ago=5000), projector(started_ms_ago=4000), projector(age_ms=9000)),
            [],
            id="two were started for one",
        ),
        pytest.param(
            seen(projector(), projector(started_ms_ago=9000, age_ms=8000), projector(age_ms=20_000)),
            ["silent for 8 s"],
            id="the one that was started since has died as well",
        ),
    ],
)
def test_notes_are_said_once_and_are_no_problems(found: Observation, said: list[str]) -> None:
    """They are no problems. A projector that was replaced is forgotten."""
    assert [str(note)[: len(text)] for note, text in zip_longest(notes(found), said, fillvalue="")] == said


@pytest.mark.parametrize(
    ("expected", "kinds"),
    [
        pytest.param(0, [], id="any number is right"),
        pytest.param(1, [], id="as many as are expected"),
        pytest.param(2, ["few_projectors"], id="fewer"),
    ],
)
def test_fewer_projectors_than_expected_are_a_problem(expected: int, kinds: list[str]) -> None:
    assert [it.kind for it in problems(msgspec.structs.replace(WELL, expected=expected))] == kinds
    nobody = msgspec.structs.replace(survey(redis(projector(age_ms=9000)), kafka()), expected=expected)
    assert problems(nobody) == [problem.NoProjector(("host-1-ab",))]


def told(expected: int, age_ms: int = 100) -> Writer:
    """Returns a projector that was told to expect this number."""
    one = projector(age_ms=age_ms)
    return replace(one, heartbeat=replace(one.heartbeat, expected=expected))


@pytest.mark.parametrize(
    ("programs", "expected", "said"),
    [
        pytest.param([told(3), told(2)], 0, [problem.FewProjectors(2, 3)], id="`status` was told nothing"),
        pytest.param([told(2), projector()], 3, [problem.FewProjectors(2, 3)], id="`status` was told more"),
        pytest.param([told(2), told(2)], 0, [], id="all are there"),
        pytest.param([told(1), told(9, age_ms=9000)], 0, [], id="one that is gone is not asked"),
    ],
)
def test_the_most_projectors_that_anybody_was_told_to_expect_are_expected(
    programs: list[Writer], expected: int, said: list[problem.Problem]
) -> None:
    found = problems(replace(survey(redis(*programs), kafka()), expected=expected))
    assert [it for it in found if it.severity == "problem"] == said


def test_status_with_another_group_than_the_projectors_says_so() -> None:
    """It would look for strangers in a group in which nobody is."""
    one = projector()
    ours = replace(one, heartbeat=replace(one.heartbeat, group="ours"))
    for group, said in (("ours", []), ("leadview", [["host-1-ab", "host-1-ab"]])):
        found = problems(replace(survey(redis(ours, ours), kafka()), group=group))
        assert [[*it.programs] for it in found if isinstance(it, problem.OtherSettings)] == said
        assert len(found) == len(said)
