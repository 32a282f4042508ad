"""What follows from observations of Kafka and Redis: lag, age and problems of a projector, its metrics, health,
heartbeat and log, and what `status` shows.
"""

import time
from collections.abc import Mapping
from math import isnan
from typing import Any, NamedTuple

import msgspec
import pytest
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from msgspec.structs import replace

from operate.commands import status
from projector.errors import Denied, Unavailable
from projector.health.judge import (
    STUCK_PARTITION_SECONDS,
    STUCK_SECONDS,
    UNKNOWN_SECONDS,
    UNOWNED_SECONDS,
    Lasting,
    causes,
    problems,
)
from projector.health.observe import Held, KafkaPart, Observation, RedisPart
from projector.health.watch import Watch
from projector.kafka.client import errors, principal
from projector.kafka.topics import Retention, Topic
from projector.ledger.writers import Writer
from projector.line.apply import Applied
from projector.line.metrics import REGISTRY, UNAVAILABLE, LineMetrics
from projector.liveness import LineHealth, WorkHealth
from projector.problem import KafkaDenies, NotAdvancing, OtherCluster, Reported
from projector.record import Partition
from projector.redis.store import Memory
from projector.words import say
from schemas.control import Stamp
from schemas.heartbeat import SILENT_MS, Condition, Freshness, Heartbeat, KafkaRight, LineTrouble, StandingByLine
from schemas.settings import ProjectorSettings
from tests.harness import control
from tests.harness.troubled import HALT
from tests.harness.waiting import wait_until

FIRST, SECOND = Partition("crm.leads", 0), Partition("crm.leads", 1)
STAMP = Stamp.first()
AGE, LAG = "leadview_projector_unapplied_age_seconds", "leadview_projector_lag_records"
KAFKA, REDIS = "leadview_projector_measured kafka", "leadview_projector_measured redis"
MEMORY = "leadview_projector_redis_memory_ratio"


class Line:
    """A line that has these partitions."""

    def __init__(self, *partitions: Partition) -> None:
        self.health = LineHealth("documents")
        self.topics = frozenset(("crm.leads",))
        self.partitions = set(partitions)
        self.member_id = "member"

    def assigned(self) -> set[Partition]:
        return self.partitions

    def misplaced(self) -> list[str]:
        return []


def topic(
    exists: bool = True,
    allowed: bool = True,
    retention: Retention | None = None,
    leaderless: tuple[int, ...] = (),
) -> Topic:
    return Topic("crm.leads", exists, allowed, (FIRST, SECOND) if exists else (), leaderless, retention)


def writer(partitions: dict[str, int], age_ms: int = 0, role: str = "run") -> Writer:
    return Writer("host", age_ms, Heartbeat(role, 1, STAMP.text, lines={"documents": "running"}, partitions=partitions))


def redis(
    positions: Mapping[Partition, int], *writers: Writer, used: int = 50, policy: str = "noeviction"
) -> RedisPart:
    record = control.record_of(control.state_of(), positions)
    return RedisPart(record, 0, [Memory(used, 100, policy)], list(writers))


def kafka(*ends: int, topics: list[Topic] | None = None) -> KafkaPart:
    return KafkaPart(topics or [topic()], {p: (0, end) for p, end in zip((FIRST, SECOND), ends, strict=False)})


class Taken(NamedTuple):
    """An observation, and the monotonic time at which it was made."""

    now: float
    found: Observation


def taken(now: float, kafka: KafkaPart | None, redis: RedisPart | None, **times: int) -> Taken:
    oldest = {Partition("crm.leads", int(number.removeprefix("_"))): time for number, time in times.items()}
    return Taken(now, Observation(at=1_000_000, kafka=kafka, redis=redis, oldest=oldest))


@pytest.mark.parametrize(
    ("given", "lags", "complete_until"),
    [
        pytest.param(taken(0, kafka(5, 7), redis({FIRST: 5, SECOND: 7})), {FIRST: 0, SECOND: 0}, 1_000_000, id="all"),
        pytest.param(
            taken(0, kafka(5, 7), redis({FIRST: 5, SECOND: 4}), _1=900), {FIRST: 0, SECOND: 3}, 900, id="one waits"
        ),
        pytest.param(
            taken(0, kafka(5, 7), redis({FIRST: 1, SECOND: 4}), _0=800, _1=900),
            {FIRST: 4, SECOND: 3},
            800,
            id="the oldest counts",
        ),
        pytest.param(
            taken(0, kafka(5, 7), redis({FIRST: 5, SECOND: 4}), _1=2_000_000),
            {FIRST: 0, SECOND: 3},
            1_000_000,
            id="a timestamp in the future",
        ),
        pytest.param(
            taken(0, kafka(5, 7), redis({FIRST: 5, SECOND: 4})), {FIRST: 0, SECOND: 3}, None, id="a time is not known"
        ),
        pytest.param(taken(0, kafka(5, 7), redis({FIRST: 5}), _1=900), {FIRST: 0, SECOND: 7}, 900, id="no position"),
        pytest.param(
            taken(0, kafka(5, topics=[topic(leaderless=(1,))]), redis({FIRST: 5})), {FIRST: 0}, None, id="no leader"
        ),
        pytest.param(taken(0, None, redis({FIRST: 5})), None, None, id="no Kafka"),
        pytest.param(taken(0, kafka(5), None), None, None, id="no Redis"),
        pytest.param(taken(0, kafka(topics=[topic(exists=False)]), redis({})), {}, None, id="no topic"),
    ],
)
def test_lag_and_age_follow_from_the_positions(
    given: Taken, lags: dict[Partition, int] | None, complete_until: int | None
) -> None:
    assert (given.found.lags, given.found.complete_until) == (lags, complete_until)


WAITS = taken(0, kafka(5, 7), redis({FIRST: 5, SECOND: 4}), _1=900).found
"""Three records of the second partition wait, the oldest since 999.1 s."""


@pytest.mark.parametrize(
    ("found", "generation", "dead_letters", "freshness", "partitions"),
    [
        pytest.param(WAITS, 1, 0, 999.1, [(5, 5, 0), (4, 7, 3)], id="both are read"),
        pytest.param(
            taken(0, kafka(5, 7), redis({FIRST: 1, SECOND: 4}), _0=800, _1=900).found,
            1,
            0,
            999.2,
            [(1, 5, 4), (4, 7, 3)],
            id="records of both partitions wait: the oldest counts",
        ),
        pytest.param(
            replace(WAITS, kafka=None, oldest=None), 1, 0, None, [(5, None, None), (4, None, None)], id="no Kafka"
        ),
        pytest.param(
            replace(WAITS, redis=None, oldest=None), None, None, None, [(None, 5, None), (None, 7, None)], id="no Redis"
        ),
        pytest.param(
            taken(0, kafka(5, 7), redis({FIRST: 5, SECOND: 7})).found,
            1,
            0,
            None,
            [(5, 5, 0), (7, 7, 0)],
            id="all is applied, and no projector says what it knows",
        ),
    ],
)
def test_status_shows_what_was_read(
    found: Observation,
    generation: int | None,
    dead_letters: int | None,
    freshness: float | None,
    partitions: list[tuple[int | None, ...]],
) -> None:
    """None where it is not known."""
    shown = status.of(found)
    assert (shown.generation, shown.dead_letters, shown.freshness) == (generation, dead_letters, freshness)
    assert [(each.position, each.head, each.lag) for each in shown.partitions] == partitions
    assert shown.lag == (sum(lag or 0 for *_, lag in partitions) if found.lags is not None else None)


def kinds(lasting: Lasting, given: Taken, *lines: Line) -> list[str]:
    return [problem.kind for problem in lasting.problems(given.found, lines, given.now)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(taken(0, kafka(5), redis({FIRST: 5})), [], id="well"),
        pytest.param(
            taken(0, kafka(5, topics=[topic(leaderless=(1,))]), redis({FIRST: 5})), ["topic_unserved"], id="no leader"
        ),
        pytest.param(
            taken(0, kafka(topics=[topic(exists=False)]), redis({})), ["topic_missing"], id="a topic is missing"
        ),
        pytest.param(
            taken(0, kafka(topics=[topic(allowed=False)]), redis({})), ["topic_missing"], id="it may not be read"
        ),
        pytest.param(
            taken(0, kafka(topics=[topic(retention=Retention("delete", -1, -1))]), redis({})),
            ["topic_not_compacted"],
            id="it grows for ever",
        ),
        pytest.param(
            taken(0, kafka(topics=[topic(retention=Retention("compact,delete", 1000, -1))]), redis({})),
            ["topic_not_compacted"],
            id="its records vanish",
        ),
        pytest.param(
            taken(0, kafka(topics=[topic(retention=Retention("compact", 1000, -1))]), redis({})), [], id="compacted"
        ),
        pytest.param(taken(0, kafka(5), redis({FIRST: 5}, policy="allkeys-lru")), ["redis_evicts"], id="evicts"),
        pytest.param(taken(0, kafka(5), redis({FIRST: 5}, used=99)), ["redis_full"], id="full"),
        pytest.param(taken(UNKNOWN_SECONDS, None, None), [], id="unknown for a moment"),
        pytest.param(taken(UNKNOWN_SECONDS + 1, None, None), ["redis_unknown", "kafka_unknown"], id="unknown"),
    ],
)
def test_server_that_cannot_be_read_for_a_while_is_a_problem(given: Taken, expected: list[str]) -> None:
    """What cannot be read is one when that has lasted, counted from when it was read last."""
    lasting = Lasting(0.0, 6.0)
    assert kinds(lasting, given) == expected
    assert kinds(lasting, taken(100, kafka(5), redis({FIRST: 5}))) == []
    assert kinds(lasting, taken(101, None, None)) == []


def test_line_that_does_not_advance_is_a_problem() -> None:
    lasting, line = Lasting(0.0, 6.0), Line(FIRST, SECOND)
    waiting = kafka(5, 7), redis({FIRST: 3, SECOND: 7})
    assert [kinds(lasting, taken(now, *waiting), line) for now in (0, STUCK_SECONDS)] == [[], []]
    now, found = taken(STUCK_SECONDS + 1, *waiting)
    [problem] = lasting.problems(found, [line], now)
    assert problem == NotAdvancing("documents", (), 2, 31, ("crm.leads:0",))
    assert str(say(problem)) == "documents: 2 records behind, and has not advanced for 31 s (crm.leads:0)"
    moved = kafka(9, 7), redis({FIRST: 4, SECOND: 7})
    assert kinds(lasting, taken(STUCK_SECONDS + 2, *moved), line) == []
    line.partitions = {SECOND}
    assert kinds(lasting, taken(3 * STUCK_SECONDS, *moved), line) == [], "it is another projector's"


def test_one_partition_that_does_not_advance_while_others_do() -> None:
    lasting, line = Lasting(0.0, 6.0), Line(FIRST, SECOND)
    for at in range(0, int(STUCK_PARTITION_SECONDS) + 1, 2):
        assert kinds(lasting, taken(at, kafka(5, 1000), redis({FIRST: 3, SECOND: at})), line) == []
    late = taken(STUCK_PARTITION_SECONDS + 2, kafka(5, 1000), redis({FIRST: 3, SECOND: 999}))
    assert kinds(lasting, late, line) == ["not_advancing"]


@pytest.mark.parametrize(
    ("writers", "expected"),
    [
        pytest.param([writer({"documents": 0}), writer({"documents": 2})], [], id="a spare one"),
        pytest.param([writer({"documents": 0}), writer({"documents": 1})], ["no_partitions"], id="nobody has one"),
        pytest.param(
            [writer({"documents": 0}), writer({"documents": 2}, SILENT_MS)], ["no_partitions"], id="its owner is dead"
        ),
        pytest.param([writer({"documents": 0}), writer({})], [], id="an older program does not say what it has"),
        pytest.param([writer({"documents": 0}, role="rebuild")], [], id="not known before the first heartbeat"),
    ],
)
def test_partitions_that_belong_to_nobody_are_a_problem(writers: list[Writer], expected: list[str]) -> None:
    """Kafka takes longer than the usual time to assign them again if its sessions last longer."""
    lasting, line = Lasting(0.0, UNOWNED_SECONDS), Line()
    parts = kafka(5, 7), redis({FIRST: 5, SECOND: 7}, *writers)
    for now, found in ((0, []), (UNOWNED_SECONDS + 1, []), (2 * UNOWNED_SECONDS + 1, expected)):
        assert kinds(lasting, taken(now, *parts), line) == found, now
    unknown = taken(3 * UNOWNED_SECONDS + 2, None, redis({FIRST: 5, SECOND: 7}, *writers))
    assert "no_partitions" not in kinds(lasting, unknown, line), "nobody knows what partitions there are"


def measured(watch: Watch) -> dict[str, float]:
    """Returns each series of the metrics port, by its name and the values of its labels."""
    samples = [sample for family in watch.collect() for sample in family.samples]
    return {" ".join((sample.name, *sample.labels.values())): sample.value for sample in samples}


def test_metrics_follow_from_the_newest_observation_and_are_unknown_without_one() -> None:
    """Never the last value: of a Redis that is frozen, nothing is known."""
    watch, now, began_at = Watch(ProjectorSettings(), []), time.monotonic(), time.time()
    watch._take(WAITS, now)
    found, known = measured(watch), {f"{LAG} crm.leads 0": 0, f"{LAG} crm.leads 1": 3, KAFKA: 1, REDIS: 1, MEMORY: 0.5}
    assert {name: found[name] for name in known} == known
    assert found[AGE] >= began_at - 0.9, "that of the oldest record that waits"
    watch._take(replace(WAITS, redis=None, oldest=None), now)
    found = measured(watch)
    assert not [name for name in found if name.startswith(LAG)]
    assert (found[KAFKA], found[REDIS]) == (1, 0)
    for name in (AGE, MEMORY, "leadview_projector_dead_letters"):
        assert isnan(found[name]), name
    watch._take(taken(now, kafka(5, 7), redis({FIRST: 5, SECOND: 7})).found, now)
    assert measured(watch)[AGE] == 0, "nothing waits"
    watch._observed = (now - 60, WAITS)
    assert isnan(measured(watch)[AGE]), "too long ago"


@pytest.mark.parametrize(
    ("trouble", "stopped", "standing_by"),
    [pytest.param(HALT, 1, 0, id="halted"), pytest.param(StandingByLine(2, 999, 3), 0, 1, id="standing by")],
)
def test_what_a_line_says_is_in_metrics_health_and_heartbeat(
    trouble: LineTrouble, stopped: int, standing_by: int
) -> None:
    line = Line(FIRST)
    watch = Watch(ProjectorSettings(topic_prefix="crn.", group_id="other", expected_projectors=2), [line])
    line.health.stops(trouble)
    found = measured(watch)
    known = {"line_stopped documents": stopped, "line_standing_by documents": standing_by, "partitions crm.leads": 1}
    assert {name: found[f"leadview_projector_{name}"] for name in known} == known
    assert (watch.health().healthy, watch.live().healthy) == (False, True)
    condition = watch.condition()
    assert (condition.troubles, condition.of_lines) == ({"documents": trouble}, ["documents"])
    assert (condition.prefix, condition.group) == ("crn.", "other"), "a difference between programs is a problem"
    assert condition.expected == 2, "who looks may not have been told it"
    assert [kind for kind, count in found.items() if "_problems " in kind and count] == [
        f"leadview_projector_problems {condition.kinds[0]}"
    ]
    line.health.resumes()
    assert watch.condition().problems == []


def test_another_cluster_is_said_by_the_projector_that_it_answers() -> None:
    """Whoever has the right address sees nothing of it. Who has the same one need not be told twice."""
    watch = Watch(ProjectorSettings(), [])
    watch._found = [OtherCluster("one", "other", accepted=False, access=False)]
    [said] = watch.condition().problems
    assert (watch.condition().kinds, "its id is other" in said) == (["other_cluster"], True)
    assert causes([*watch._found, Reported("", ("1",), "other_cluster", said)]) == watch._found
    watch._found = [OtherCluster("one", "other", accepted=True, access=False)]
    assert watch.condition().problems == [], "it is in the control record"


def test_each_problem_is_logged_when_it_begins_and_when_it_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    watch = Watch(ProjectorSettings(), [])
    for used in (50, 99, 99, 50, 50):
        watch._take(taken(0, kafka(5), redis({FIRST: 5}, used=used)).found, 0)
    assert [vars(record)["problem"] for record in caplog.records] == ["redis_full"] * 2


def test_event_loop_that_stands_still_is_unhealthy() -> None:
    """The threads of the metrics server see it. Nothing of Redis or Kafka is asked."""
    watch = Watch(ProjectorSettings(), [])
    assert watch.live().healthy
    watch._turned_at -= 60
    assert (watch.live().healthy, watch.health().healthy) == (False, False)


def test_the_api_reads_the_heartbeats_that_projectors_store() -> None:
    condition = Condition(measured_at=5, complete_until=4, problems=["x"])
    heartbeat = Heartbeat("run", 1, STAMP.text, **msgspec.structs.asdict(condition))
    assert msgspec.json.decode(msgspec.json.encode(heartbeat), type=Freshness) == Freshness("run", 5, 4)


def test_work_that_fails_again_and_again_is_a_problem_however_long_a_turn_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("projector.liveness._QUIET_SECONDS", 0.0)
    watch = Watch(ProjectorSettings(), [])
    assert watch.problems() == []
    watch.jobs.failed("NOPERM srem")
    wait_until(watch.problems, "it has failed for longer than that")
    [said] = watch.condition().problems
    assert said == "jobs: no step has succeeded (NOPERM srem)"
    assert (watch.condition().kinds, watch.condition().of_lines) == (["no_step"], ["jobs"])
    assert watch.condition().seconds[0] >= 0.0
    watch.jobs.succeeded()
    assert watch.problems() == []


def held(since: int, seen: float, *, doubtful: bool = False) -> Held:
    return Held(5, 7, since, seen, doubtful)


@pytest.mark.parametrize(
    ("given", "lasts", "may_last"),
    [
        pytest.param(held(998_000, 0), False, False, id="it is young"),
        pytest.param(held(990_000, 0), False, True, id="its first record is old, and it was just seen"),
        pytest.param(held(990_000, 1), True, False, id="it is old, and stands"),
        pytest.param(held(998_000, 6), True, False, id="it was seen for as long"),
        pytest.param(held(1, 4, doubtful=True), False, True, id="the time of its first record may mean nothing"),
        pytest.param(
            held(1, 6, doubtful=True), True, False, id="its time may mean nothing, and it was seen for as long"
        ),
        pytest.param(held(1_000_000, 0, doubtful=True), False, True, id="its time is in the future"),
    ],
)
def test_transaction_lasts_when_it_is_open_for_longer_than_usual(given: Held, lasts: bool, may_last: bool) -> None:
    now = 1_000_000
    assert (given.lasts(now), given.may_last(now)) == (lasts, may_last)


def test_line_behind_an_open_transaction_is_neither_late_nor_stuck() -> None:
    """What it could apply in another partition still counts, and so does everything in lag and age."""
    lasting, line = Lasting(0.0, 6.0), Line(FIRST, SECOND)
    given = taken(0, kafka(7, 9), redis({FIRST: 5, SECOND: 9}), _0=800)
    found = replace(given.found, held={FIRST: held(800, 100)})
    for now in (0.0, STUCK_SECONDS + 1, STUCK_PARTITION_SECONDS + 1):
        [problem] = lasting.problems(found, [line], now)
        assert (problem.label, problem.subjects) == ("open_transaction", ("crm.leads:0",))
    assert [(found.lag, found.complete_until, found.readable)] == [(2, 800, {})]
    assert [it.label for it in problems(found) if it.label in ("stale", "open_transaction")] == ["open_transaction"]
    late = replace(found, redis=redis({FIRST: 4, SECOND: 9}, writer({"documents": 2})))
    assert late.readable == {FIRST: (4, 5)}
    assert [it.label for it in problems(late) if it.label in ("stale", "open_transaction")] == [
        "open_transaction",
        "stale",
    ]


def test_the_age_of_the_oldest_transaction_of_each_topic_is_a_metric() -> None:
    watch, name = Watch(ProjectorSettings(), []), "leadview_projector_open_transaction_age_seconds crm.leads"
    found = replace(WAITS, held={SECOND: held(900, 100)})
    watch._take(found, time.monotonic())
    assert measured(watch)[name] > 100
    watch._take(replace(WAITS, held={SECOND: held(999_000, 0)}), time.monotonic())
    assert measured(watch)[name] == 0, "it is of the usual length"
    watch._take(replace(WAITS, oldest=None), time.monotonic())
    assert name not in measured(watch), "nobody has looked"


READ = KafkaRight("Read", "group", ("a",))


@pytest.mark.parametrize(
    ("error", "resource", "refused"),
    [
        pytest.param(TopicAuthorizationFailedError("crm.leads"), "topic", ("crm.leads",), id="a topic"),
        pytest.param(TopicAuthorizationFailedError("crm.leads:3"), "topic", ("crm.leads",), id="a partition"),
        pytest.param(TopicAuthorizationFailedError({"b", "a"}), "topic", ("a", "b"), id="topics"),
        pytest.param(GroupAuthorizationFailedError("leadview"), "group", ("leadview",), id="a group"),
        pytest.param(ClusterAuthorizationFailedError(), "cluster", (), id="the cluster"),
        pytest.param(TransactionalIdAuthorizationFailed(), "transactional-id", (), id="a transactional id"),
    ],
)
async def test_what_kafka_refuses_is_known(error: Exception, resource: str, refused: tuple[str, ...]) -> None:
    with pytest.raises(Denied) as raised:
        async with errors():
            raise error
    assert raised.value.right
    assert (raised.value.right.resource, raised.value.right.names) == (resource, refused)
    assert all(name in str(raised.value) for name in refused)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        pytest.param({}, "User:ANONYMOUS", id="nobody signs in"),
        pytest.param({"kafka_security_protocol": "SSL"}, "", id="the brokers name it from the certificate"),
        pytest.param(
            {
                "kafka_security_protocol": "SASL_SSL",
                "kafka_sasl_username": "leadview",
                "kafka_sasl_password": "x",
            },
            "User:leadview",
            id="a user",
        ),
    ],
)
def test_the_user_as_kafka_names_it(settings: dict[str, Any], name: str) -> None:
    assert principal(ProjectorSettings(**settings)) == name
    watch = Watch(ProjectorSettings(**settings), [])
    watch.jobs.failed("refused", Denied(KafkaDenies((), READ)))
    [right] = watch.condition().rights
    assert right == replace(READ, principal=name)
    assert watch.condition().kinds == ["kafka_denies"]


@pytest.mark.parametrize(
    ("error", "is_said"),
    [
        pytest.param(Unavailable("Kafka does not answer"), False, id="this may pass, and is said after a while"),
        pytest.param(Denied("NOPERM User api has no permissions"), True, id="a right is missing"),
        pytest.param(Denied(KafkaDenies((), READ)), True, id="a right in Kafka is missing"),
    ],
)
def test_step_that_is_refused_is_said_at_once(error: Unavailable, is_said: bool) -> None:
    health, work = LineHealth("documents"), WorkHealth("jobs")
    health.failed(error)
    work.failed(str(error), error if isinstance(error, Denied) else None)
    for found in (health.problem(), work.problem()):
        assert bool(found and str(error) in str(say(found))) is is_said
    health.alive()
    work.succeeded()
    assert (health.problem(), work.problem()) == (None, None)


def test_line_counts_from_zero_what_a_checkpoint_covers() -> None:
    counted = LineMetrics("counted")

    def values() -> list[float | None]:
        names = ("respliced_leads_total", "batch_seconds_sum", "freshness_seconds_count", "unavailable_total")
        return [REGISTRY.get_sample_value(f"leadview_projector_{name}", {"line": "counted"}) for name in names]

    assert values() == [0, 0, 0, 0]
    counted.batch(Applied(written=2, respliced=5), dead=1, seconds=0.5, freshness=None)
    counted.count(UNAVAILABLE)
    assert values() == [5, 0.5, 0, 1]
    counts = {"written": 2, "stale": 0, "dropped": 0, "dead": 1}
    for result, count in counts.items():
        labels = {"line": "counted", "result": result}
        assert REGISTRY.get_sample_value("leadview_projector_records_total", labels) == count
