"""Every problem once, and the troubles of `docs/generate/troubles.py` as observations: what Redis and Kafka say while
each of them lasts. For tests of what follows from that, without servers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from projector import problem
from projector.dead_letter import DeadLetter
from projector.health.observe import ApiPart, Held, Observation, RedisPart
from projector.kafka.groups import Member
from projector.kafka.topics import Retention
from projector.ledger.control import Break, BreakKind, ControlRecord, Copy, Generation
from projector.ledger.late_versions import LateVersion, LateVersions
from projector.ledger.writers import Writer
from projector.mapping import VERSION
from projector.record import Partition
from projector.redis.store import Memory
from schemas.faults import Fault
from schemas.heartbeat import Clocks, FailingLine, Former, HaltedLine, KafkaRight, LineTrouble, StandingByLine
from tests.harness import crm
from tests.harness.console import observation_of
from tests.harness.generations import generation, ids

HALT = HaltedLine("row", 3, 1000, 3, "crm.leads:0:3", Fault("missing", "$.data.stage"), 3, ("crm.leads:0:1-3",))

READ = KafkaRight("Read", "topic", ("crm.contacts", "crm.leads"), "User:leadview")

HELD = problem.HeldPartition(0, 17, 3, "2026-01-01T00:00:00.000Z", 7.0)

EVERY: list[problem.Problem] = [
    problem.RedisUnknown("no answer"),
    problem.KafkaUnknown("no answer"),
    problem.TopicMissing(("a", "b")),
    problem.TopicMissing(("a",), allowed=False),
    problem.TopicMissing(("a",), allowed=False, principal="User:leadview"),
    problem.KafkaDenies((), READ),
    problem.KafkaDenies(("a", "b"), replace(READ, principal="")),
    problem.KafkaDenies((), KafkaRight("Describe", "cluster", ())),
    problem.TopicUnserved(("a",)),
    problem.TopicNotCompacted(("a",), ("cleanup.policy=delete",), compacted=False),
    problem.TopicRecreated(("a",), "2026-01-01T00:00:00Z", "old", "new", access=True),
    problem.TopicTruncated(("a",), "2026-01-01T00:00:00Z", "old", "", access=False),
    problem.OpenTransaction(
        ("a",), (HELD, problem.HeldPartition(1, 5, 1, "2026-01-01T00:00:01.000Z", 6.0)), access=True
    ),
    problem.OpenTransaction(("a",), (HELD,), access=False),
    problem.RecordsMissed(("a",), "2026-01-01T00:00:00Z", access=True),
    problem.DeletesMissed(("a",), "2026-01-01T00:00:00.000Z"),
    problem.PartitionsRaised(("a",), "2026-01-01T00:00:00Z", access=False),
    problem.OtherCluster("one", "other", accepted=False, access=False),
    problem.OtherCluster("one", "other", accepted=True, access=True),
    problem.Evicted("2026-01-01T00:00:00Z"),
    problem.RedisEvicts(("allkeys-lru",)),
    problem.RedisFull(1.0, 104_857_600),
    problem.RedisRefusesWrites("NOREPLICAS Not enough good replicas to write."),
    problem.ClockDiffers((), Clocks(3_600_000, 0)),
    problem.ClockDiffers(("a", "b"), Clocks(0, 3_600_000)),
    problem.RedisEmpty(filling=False),
    problem.Incomplete(1, 1, ()),
    problem.Incomplete(1, 3, ("10.0.0.1:7000",)),
    problem.NoProjector(("a",)),
    problem.ApiUnknown("http://127.0.0.1:9100 (refused)"),
    problem.ApiUnavailable(0, 2, ("WRONGPASS invalid username-password pair or user is disabled.",), 1.0),
    problem.ApiUnavailable(1, 2, (), 0.0),
    problem.ApiUnavailable(2, 2, (), 1.6),
    problem.ApiUnavailable(0, 2, ("not complete",), 1.6, filling=True),
    problem.ApiReports("not_written", 1),
    problem.ApiReports("clock_differs", 1),
    problem.ApiReports("of_a_newer_version", 1),
    problem.OtherSettings(("a",), "LEADVIEW_TOPIC_PREFIX", "crn.", "crm."),
    problem.Halted("documents", ("a",), HALT),
    problem.Halted("documents", ("a",), Former("halted", "bad")),
    problem.Failing("documents", (), FailingLine("documents", "KeyError")),
    problem.StandingBy("documents", ("a",), StandingByLine(2, 2, 1)),
    problem.NotAdvancing("documents", (), 5, 31.0, ("crm.leads:0",)),
    problem.NoPartitions("documents", (), 2, spare=True),
    problem.Reported("documents", ("a",), "no_step", "no step"),
    problem.Stale(1, 61.0),
    problem.Stale(2, 61.0, ("a",)),
    problem.Stale(2, 61.0, enough=True),
    problem.ForeignMember((problem.Stranger("console-consumer", "10.0.0.7", "leadview", ("crm.leads:0",)),)),
    problem.RebuildDue(1, 2),
    problem.GenerationUnfilled(2),
    problem.GenerationUnwritten(2, 3),
    problem.OtherLayout(2),
    problem.DeadLetters(5),
    problem.Silent(("a",), "run", 9.0),
    problem.FewProjectors(1, 2),
    problem.AccessAsBefore(("a:b", "a")),
    problem.DocumentsAsBefore(("leads:a:b",)),
    problem.OlderPublished(("leads:a:b", "organizations:a"), 1, 3),
    problem.Misplaced(("crm.leads",)),
    problem.RedisNearlyFull(0.9),
]

WELL = observation_of(0)
_SILENT_MS = 9_000


def _redis(**changes: Any) -> Observation:
    assert WELL.redis
    return replace(WELL, redis=replace(WELL.redis, **changes))


def _part() -> RedisPart:
    assert WELL.redis
    return WELL.redis


def _record() -> ControlRecord:
    record = _part().record
    assert record
    return record


def _copy() -> Copy:
    copy = _record().copies[b"ledger"]
    assert copy
    return copy


def _saying(writer: Writer, age_ms: int = 100, **said: Any) -> Writer:
    return replace(writer, age_ms=age_ms, heartbeat=replace(writer.heartbeat, **said))


def _projectors(
    *changes: Mapping[str, Any], prefix: str | None = None, group: str | None = None, expected: int = 0
) -> Observation:
    """With the heartbeats of both projectors changed, one after the other."""
    writers = [_saying(writer, **change) for writer, change in zip(_part().writers, changes, strict=True)]
    return replace(_redis(writers=writers), prefix=prefix, group=group, expected=expected)


def _no_worker(cause: str) -> Observation:
    return replace(WELL, api=ApiPart(ready_workers=0, workers=2, causes=(f"there is no connection to Redis: {cause}",)))


def _nobody_reaches_redis(why: str) -> Observation:
    """Neither program can open a connection. `status` reaches it in another way."""
    return replace(_projectors(_silent(), _silent()), api=_no_worker(f"certificate verify failed: {why}").api)


_NO_PORT = replace(WELL, api=ApiPart(unread="http://127.0.0.1:9100 (Connection refused)"))


def _silent() -> dict[str, Any]:
    return {"age_ms": _SILENT_MS}


def _documents(trouble: LineTrouble) -> dict[str, Any]:
    return {"lines": {"access": "running", "documents": trouble.state}, "troubles": {"documents": trouble}}


def _contacts(**changes: Any) -> Observation:
    """With the topic of contacts changed."""
    assert WELL.kafka
    topics = [it._replace(**changes) if it.name == "crm.contacts" else it for it in WELL.kafka.topics]
    ranges = {at: span for at, span in WELL.kafka.ranges.items() if any(at in it.partitions for it in topics)}
    return replace(WELL, kafka=replace(WELL.kafka, topics=topics, ranges=ranges))


def _created_again() -> Observation:
    found, copy = _contacts(id="new"), _copy()
    stored = {
        at: replace(it, topic_id="old" if at.topic == "crm.contacts" else "") for at, it in copy.positions.items()
    }
    return replace(found, redis=_with_copies(ledger=replace(copy, positions=stored)))


def _with_break(kind: BreakKind, topic: str) -> Observation:
    assert WELL.redis
    assert WELL.redis.record
    record = WELL.redis.record
    noted = Break(kind, topic, "", "", "2026-01-01T00:00:00Z", (record.state.live,))
    broken = replace(record, state=replace(record.state, breaks=(noted,)))
    return replace(WELL, redis=replace(WELL.redis, record=broken))


def _open_transaction() -> Observation:
    """With one in the first partition. Three records wait for its end, for longer than a line may be late."""
    assert WELL.kafka
    at, (first, end) = next(iter(WELL.kafka.ranges.items()))
    began_at = int(WELL.at) - 100_000
    kafka = replace(WELL.kafka, ranges={**WELL.kafka.ranges, at: (first, end + 3)})
    held = {at: Held(end, end + 3, began_at, 100.0, doubtful=False)}
    return replace(WELL, kafka=kafka, oldest={at: began_at}, held=held)


def _with_a_stranger() -> Observation:
    assert WELL.kafka
    stranger = Member("stranger", "leadview", "console-consumer", "10.0.0.7", (Partition("crm.leads", 0),))
    found = _projectors(*[{"members": ["ours"]}] * 2)
    return replace(found, kafka=replace(WELL.kafka, members=[stranger]))


def _with_copies(**copies: Copy) -> RedisPart:
    return replace(_part(), record=replace(_record(), copies={tag.encode(): it for tag, it in copies.items()}))


def shards(*filled: bool) -> RedisPart:
    """Returns what Redis says if it has this number of shards, three at most, each of which is complete or not."""
    copies = {tag: replace(_copy(), filled=ids(1) if it else ()) for tag, it in zip("abc", filled, strict=False)}
    servers = {tag.encode(): f"10.0.0.1:{7000 + number}" for number, tag in enumerate(copies)}
    return replace(_with_copies(**copies), servers=servers)


def _with_next(*, complete: bool) -> RedisPart:
    """With a second generation, which a newer program fills or has filled."""
    record = _record()
    state = replace(
        record.state,
        written=ids(1, 2),
        generations=record.state.generations | {generation(2): Generation(VERSION + complete, "2026-01-01T00:00:00Z")},
    )
    copy = replace(_copy(), state=state, filled=ids(1, 2) if complete else ids(1))
    return replace(_part(), record=replace(record, state=state, copies={b"ledger": copy}))


def _older_program() -> Observation:
    waits = StandingByLine(2, VERSION + 1, VERSION)
    redis = _with_next(complete=True)
    return replace(WELL, redis=replace(redis, writers=[_saying(it, **_documents(waits)) for it in redis.writers]))


def _abandoned_rebuild() -> Observation:
    redis = _with_next(complete=False)
    rebuild = _saying(redis.writers[0], _SILENT_MS, role="rebuild", lines={})
    return replace(WELL, redis=replace(redis, writers=[*redis.writers, replace(rebuild, id="host-0-rebuild")]))


def _without_projectors(redis: RedisPart) -> Observation:
    return replace(WELL, redis=replace(redis, writers=[]))


_BAD_KEY = DeadLetter("crm.api-keys", 0, 5, f"{crm.ORGANIZATION}:{crm.API_KEY}", "bad", 0)
_BAD_LEAD = DeadLetter("crm.leads", 0, 5, f"{crm.ORGANIZATION}:{crm.LEAD}", "bad", 0)
_LATE = LateVersion("leads", f"{crm.ORGANIZATION}:{crm.LEAD}", "older", 5, 6, 0, 7, 0, 0)
_DELETES = Retention("delete", 604_800_000, -1)

OBSERVED: dict[str, Callable[[], Observation]] = {
    "no projector": lambda: _projectors(_silent(), _silent()),
    "one of two projectors is dead": lambda: _projectors(_silent(), {"expected": 2}),
    "one of two projectors stands still": lambda: _projectors({}, _silent(), expected=2),
    "all projectors stand still": lambda: _projectors(_silent(), _silent(), expected=2),
    "Kafka is away": lambda: replace(WELL, kafka=None, kafka_unknown="Kafka does not answer within 1.2 s", oldest=None),
    "a topic is missing": lambda: _contacts(exists=False, partitions=(), retention=None),
    "a topic is not compacted": lambda: _contacts(retention=_DELETES),
    "a topic was deleted and created again": _created_again,
    "deletions were removed before they were read": lambda: _with_break("deletes_missed", "crm.contacts"),
    "records were removed before they were read": lambda: _with_break("records_missed", "crm.leads"),
    "partitions were added to a topic": lambda: _with_break("partitions_raised", "crm.contacts"),
    "another Kafka cluster answers": lambda: _projectors(
        *[{"problems": ["another Kafka cluster answers: its id is B"], "kinds": ["other_cluster"]}] * 2
    ),
    "a transaction is open": _open_transaction,
    "one projector has another prefix": lambda: _projectors({"prefix": "crn."}, {"prefix": "crm."}, prefix="crm."),
    "all projectors have another prefix": lambda: _projectors(*[{"prefix": "crn."}] * 2, prefix="crm."),
    "one projector has another prefix, and may not see such topics": lambda: _projectors(
        {"prefix": "crn."}, {"prefix": "crm."}, prefix="crm."
    ),
    "all projectors have another prefix, and may not see such topics": lambda: _projectors(
        *[{"prefix": "crn."}] * 2, prefix="crm."
    ),
    "one projector has another group": lambda: _projectors({"group": "leadview"}, {"group": "other"}, group="leadview"),
    "a stranger is in the consumer group": _with_a_stranger,
    "Redis is away": lambda: replace(WELL, redis=None, redis_unknown="Redis does not answer within 1.2 s", oldest=None),
    "Redis was emptied, and no projector fills it": lambda: _without_projectors(replace(_part(), record=None)),
    "Redis evicts": lambda: _redis(memories=[Memory(1, 0, "allkeys-lru")]),
    "Redis is full": lambda: _redis(memories=[Memory(99, 100, "noeviction")]),
    "Redis refuses writes": lambda: _redis(refusal="NOREPLICAS Not enough good replicas to write."),
    "a line is halted": lambda: _projectors(_documents(HALT), {}),
    "a line is failing": lambda: _projectors(_documents(FailingLine("documents", "KeyError")), {}),
    "a bad record": lambda: _redis(dead_letters=1, newest_bad=[_BAD_LEAD]),
    "a bad record of an API key": lambda: _redis(dead_letters=1, bad_access=[_BAD_KEY]),
    "an older version is published behind a newer one": lambda: _redis(late=LateVersions([_LATE])),
    "an older program": _older_program,
    "a rebuild that nobody continues": _abandoned_rebuild,
    "the projectors' user lacks a right": lambda: _projectors(
        {"problems": ["documents: no step has succeeded for 31 s"], "kinds": ["no_step"]}, {}
    ),
    "the API's user lacks a right": lambda: _no_worker("NOPERM User api has no permissions to run the 'mget' command"),
    "the API's password is changed": lambda: _no_worker("WRONGPASS invalid username-password pair"),
    "the projectors' password is changed": lambda: _projectors(_silent(), _silent()),
    "Redis has a certificate of another CA": lambda: _nobody_reaches_redis("unable to get local issuer certificate"),
    "the certificate of Redis has expired": lambda: _nobody_reaches_redis("certificate has expired"),
    "the projectors' password is changed in Kafka": lambda: _projectors(
        *[{"problems": ["Kafka refuses the user 'projector' or its password: …"], "kinds": ["kafka_unknown"]}] * 2
    ),
    "no API worker": lambda: _NO_PORT,
    "all API workers hang": lambda: _NO_PORT,
    "the projectors' user lacks a right in Kafka": lambda: _projectors(
        *[{"problems": ["Kafka refuses …"], "kinds": ["kafka_denies"], "rights": [READ]}] * 2
    ),
    "one shard is away": lambda: replace(
        WELL, redis=None, redis_unknown="1 of its 3 shards do not answer: 10.0.0.1:7000", oldest=None
    ),
    "one shard was emptied, and no projector fills it": lambda: _without_projectors(shards(True, False, True)),
    "one shard is lost, its slots were given away, and no projector fills them": lambda: _without_projectors(
        shards(True, False)
    ),
    "master and replica are away": lambda: replace(
        WELL, redis=None, redis_unknown="Redis does not answer within 1.2 s", oldest=None
    ),
}
"""By the name of the trouble, for each in which `status` says something."""
