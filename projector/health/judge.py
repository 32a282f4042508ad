"""Judges what is wrong from what was observed. Pure: no clock, no connection, no words."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat, zip_longest
from math import inf
from typing import Protocol, assert_never

from msgspec.structs import replace

from projector import problem
from projector.health.observe import Observation, RedisPart
from projector.kafka.groups import Member
from projector.kafka.topics import Topic
from projector.ledger.control import ACCESS, Break
from projector.ledger.writers import Writer
from projector.liveness import LineHealth
from projector.mapping import VERSION
from projector.problem import OF_STOPPED_LINES, Problem, lasting, of_line, seconds_of, stops
from projector.record import Partition
from schemas import names
from schemas.control import number_of
from schemas.heartbeat import KafkaRight
from schemas.resources import ACCESS_KINDS, KINDS
from schemas.words import utc

STALE_SECONDS = 60.0
"""The age of a waiting record from which on readers see an old state."""
UNKNOWN_SECONDS = 10.0
STUCK_SECONDS = 30.0
"""A line with waiting records counts as stuck if it has applied nothing for this time."""
STUCK_PARTITION_SECONDS = 120.0
"""The same for a single partition, which may wait longer for its turn while others are read."""
UNOWNED_SECONDS = 30.0
FULL = 0.98
"""The used share of maxmemory from which on a Redis counts as full."""
_NEARLY_FULL = 0.8
_STATES = frozenset(("halted", "failing", "standing_by"))


def problems(found: Observation) -> list[Problem]:
    """Returns the problems, causes before their effects, and then the notes. A problem that only follows from another
    one is left out, and the same problem of several projectors is one.
    """
    every = merged([*of_servers(found), *_of_projection(found), *of_api(found), *notes(found)])
    same: dict[Problem, list[Problem]] = {}
    for it in every:
        by = getattr(it, "programs", ())
        same.setdefault(lasting(replace(it, programs=()), 0.0) if by else it, []).append(it)
    return causes([_together(reports) for reports in same.values()])


def merged(every: Sequence[Problem]) -> list[Problem]:
    """Returns them with one problem for each right that Kafka refuses to a user, on whatever number of resources."""
    denied: dict[KafkaRight, list[problem.KafkaDenies]] = {}
    for it in every:
        if isinstance(it, problem.KafkaDenies):
            denied.setdefault(replace(it.right, names=()), []).append(it)
    others = [it for it in every if not isinstance(it, problem.KafkaDenies)]
    rights = []
    for right, reports in denied.items():
        programs = dict.fromkeys(program for it in reports for program in it.programs)
        names = sorted({name for it in reports for name in it.right.names})
        rights.append(problem.KafkaDenies((*programs,), replace(right, names=tuple(names))))
    return [*rights, *others]


def _together(reports: Sequence[Problem]) -> Problem:
    """Returns the one problem of several projectors: it lasts as long as that of the first of them."""
    programs = tuple(program for it in reports for program in getattr(it, "programs", ()))
    if not programs:
        return reports[0]
    return lasting(replace(reports[0], programs=programs), max(map(seconds_of, reports)))


def causes(together: Sequence[Problem]) -> list[Problem]:
    """Returns those that do not only follow from another one."""
    rules = (_follows, _follows_from_kafka, _follows_for_api)
    return [it for it in together if not any(follows(it, cause) for follows in rules for cause in together)]


def _follows(it: Problem, cause: Problem) -> bool:
    """Returns whether a problem is only an effect of another one."""
    stopped = it.label in OF_STOPPED_LINES
    match cause:
        case problem.RedisFull() | problem.RedisRefusesWrites() | problem.RedisUnknown() if stopped:
            return True
        case problem.RedisFull() | problem.RedisRefusesWrites():  # so heartbeats are not stored either
            return isinstance(it, problem.NoProjector | problem.FewProjectors | problem.Silent | problem.Stale)
        case problem.OtherCluster(accepted=False) if stopped or isinstance(it, problem.Stale):
            return True
        case problem.Reported(reported="no_step") if it.label == "not_advancing":
            return _is_of_line(it, cause)
        case problem.Halted() | problem.Failing() if stopped:
            return _is_of_line(it, cause)
        case problem.ForeignMember() if it.label == "no_partitions" or isinstance(it, problem.Stale):
            return any(stranger.partitions for stranger in cause.strangers)  # nobody else can apply what waits there
        case problem.StandingBy():
            late = problem.Stale | problem.GenerationUnfilled | problem.GenerationUnwritten
            return isinstance(it, late) or it.label == "no_partitions"
    hinders = isinstance(cause, problem.RedisEmpty | problem.Incomplete) or bool(stops(cause))
    return hinders and isinstance(it, problem.Stale)


def _follows_from_kafka(it: Problem, cause: Problem) -> bool:
    """Returns whether a problem is only an effect of one that programs have with Kafka."""
    stopped = it.label in OF_STOPPED_LINES
    match cause:
        case problem.KafkaDenies():
            return stopped or it.label == "no_partitions"
        case problem.KafkaUnknown() | problem.OtherCluster(accepted=False):
            return isinstance(it, problem.Reported) and (stopped or it.label == cause.label)
        case problem.Reported(reported="kafka_unknown"):
            own = isinstance(it, problem.OfLine) and {*it.programs} <= {*cause.programs}
            return isinstance(it, problem.Stale) or (stopped and own)
        case _:
            return False


def _follows_for_api(it: Problem, cause: Problem) -> bool:
    """Returns whether a problem of the API is only an effect of another one."""
    match it:
        case problem.ApiUnavailable():
            return isinstance(cause, problem.RedisUnknown | problem.RedisEmpty | problem.Incomplete)
        case problem.ApiReports("not_written"):
            return isinstance(cause, problem.NoProjector | problem.RedisFull | problem.RedisRefusesWrites)
        case problem.ApiReports():
            return isinstance(cause, problem.ClockDiffers) and it.label == cause.label
        case _:
            return False


def is_elsewhere(it: Problem) -> bool:
    """Returns whether a program was led to another Kafka cluster, whose records nobody applies."""
    return isinstance(it, problem.OtherCluster) and not it.accepted


def _is_of_line(it: Problem, cause: problem.OfLine) -> bool:
    """Returns whether a problem is one of the same line, and of no other programs."""
    return isinstance(it, problem.OfLine) and it.line == cause.line and {*it.programs} <= {*cause.programs}


def of_servers(found: Observation) -> Iterator[Problem]:
    """Yields the problems that anybody sees who asks Redis and Kafka."""
    if found.redis:
        yield from of_redis(found.redis)
    else:
        yield problem.RedisUnknown(found.redis_unknown)
    if found.kafka:
        yield from of_topics(found.kafka.topics, found.principal)
    elif not found.rights:
        yield problem.KafkaUnknown(found.kafka_unknown)
    for right in found.rights:
        yield problem.KafkaDenies((), right)
    yield from of_history(found)
    yield from of_transactions(found)
    yield from of_members(found)


def of_api(found: Observation) -> Iterator[Problem]:
    """Yields what is wrong with the API, as its metrics ports say it; nothing if they were not asked."""
    if (api := found.api) is None:
        return
    if api.unread:
        yield problem.ApiUnknown(api.unread)
    elif (ready := api.ready_workers or 0) < (api.workers or 1) or api.unavailable:
        filling = api.filling and bool(found.redis and found.redis.living)
        yield problem.ApiUnavailable(ready, api.workers or 0, api.causes, api.unavailable or 0.0, filling)
    for label, workers in sorted(api.reported.items()):
        yield problem.ApiReports(label, workers)


def of_members(found: Observation) -> Iterator[Problem]:
    """Yields who else is a member of the consumer groups."""
    if strangers := found.strangers:
        yield problem.ForeignMember(tuple(map(_stranger, strangers)))


def _stranger(member: Member) -> problem.Stranger:
    partitions = tuple(names.position(*partition) for partition in sorted(member.partitions))
    return problem.Stranger(member.client_id, member.host, member.group, partitions)


def of_redis(redis: RedisPart) -> Iterator[Problem]:
    """Yields the problems of Redis: documents may be evicted, or cannot be written, or the clocks differ."""
    if policies := sorted({it.policy for it in redis.memories if it.evicts}):
        yield problem.RedisEvicts(tuple(policies))
    if redis.used >= FULL:
        yield problem.RedisFull(redis.used, max(redis.memories, key=lambda it: it.share).limit)
    if redis.refusal:
        yield problem.RedisRefusesWrites(redis.refusal)
    if redis.clocks:
        yield problem.ClockDiffers((), redis.clocks)


def of_topics(topics: Sequence[Topic], principal: str = "") -> Iterator[Problem]:
    """Yields what is wrong with the topics: they must exist, be allowed to this user, be served, and be compacted.
    `principal` is the user as Kafka's rights name it.
    """
    kept = [(topic.name, topic.retention) for topic in topics if topic.retention]
    if forbidden := tuple(topic.name for topic in topics if not topic.allowed):
        yield problem.TopicMissing(forbidden, False, principal)
    if missing := tuple(topic.name for topic in topics if topic.allowed and not topic.exists):
        yield problem.TopicMissing(missing)
    if unserved := tuple(topic.name for topic in topics if topic.leaderless):
        yield problem.TopicUnserved(unserved)
    for compacted in (False, True):
        wrong = [(name, str(it)) for name, it in kept if it.compacts is compacted and (it.deletes or not compacted)]
        if wrong:
            names, policies = zip(*wrong, strict=True)
            yield problem.TopicNotCompacted(names, policies, compacted)


def of_history(found: Observation) -> Iterator[Problem]:
    """Yields the reasons why the served documents may differ from Kafka."""
    if cluster := found.other_cluster:
        yield problem.OtherCluster(*cluster, accepted=False, access=False)
    accepted = [it for it in found.breaks or () if it.kind == "other_cluster"]
    if accepted:
        clusters = accepted[0].former_id, accepted[0].topic_id
        yield problem.OtherCluster(*clusters, accepted=True, access=any(ACCESS in it.unverified for it in accepted))
    for it in found.breaks or ():
        if it.kind != "other_cluster":
            yield _of_break(it)


def _of_break(it: Break) -> Problem:
    topics, access = (it.topic,), ACCESS in it.unverified
    match it.kind:
        case "topic_recreated":
            return problem.TopicRecreated(topics, it.noticed_at, it.former_id, it.topic_id, access)
        case "topic_truncated":
            return problem.TopicTruncated(topics, it.noticed_at, it.former_id, it.topic_id, access)
        case "records_missed":
            return problem.RecordsMissed(topics, it.noticed_at, access)
        case "deletes_missed":
            return problem.DeletesMissed(topics, it.since)
        case "partitions_raised":
            return problem.PartitionsRaised(topics, it.noticed_at, access)
        case "other_cluster":
            return problem.OtherCluster(it.former_id, it.topic_id, accepted=True, access=access)
        case "evicted":
            return problem.Evicted(it.noticed_at)
        case unknown:
            assert_never(unknown)


def of_transactions(found: Observation) -> Iterator[Problem]:
    """Yields which topics have transactions that are open for longer than usual."""
    by_topic: dict[str, list[tuple[int, problem.HeldPartition]]] = {}
    for (topic, number), held in sorted(found.open_transactions.items()):
        seconds, records = (found.at - held.since) / 1000, held.end - held.first
        partition = problem.HeldPartition(number, held.first, records, utc(held.since), seconds)
        by_topic.setdefault(topic, []).append((held.since, partition))
    for topic, partitions in by_topic.items():
        oldest_first = tuple(partition for _, partition in sorted(partitions, key=lambda pair: pair[0]))
        access = any(topic.endswith(kind.topic) for kind in ACCESS_KINDS)
        yield problem.OpenTransaction((topic,), oldest_first, access)


def of_records(redis: RedisPart) -> Iterator[Problem]:
    """Yields the entities that do not show their last record in Kafka, which is the only one that compaction keeps."""
    if keys := tuple(dict.fromkeys(letter.key for letter in redis.bad_access)):
        yield problem.AccessAsBefore(keys)
    bad = ((kind.topic, letter) for letter in redis.newest_bad for kind in KINDS if letter.topic.endswith(kind.topic))
    if entities := tuple(dict.fromkeys(f"{topic}:{letter.key}" for topic, letter in bad)):
        yield problem.DocumentsAsBefore(entities, redis.unjudged)
    if late := redis.late:
        reused = sum(one.cause == "reused" for one in late.named)
        yield problem.OlderPublished(tuple(one.field for one in late.named), reused, sum(late.more.values()))


def reported(writer: Writer) -> Iterator[Problem]:
    """Yields what a projector says about itself in its heartbeat."""
    said = writer.heartbeat
    for line in said.lines:
        if trouble := said.trouble(line):
            yield of_line(line, trouble, (writer.id,))
    for right in said.rights:
        yield problem.KafkaDenies((writer.id,), right)
    lists = zip_longest(said.problems, said.kinds, said.of_lines, fillvalue="")
    for (text, label, line), seconds in zip(lists, chain(said.seconds, repeat(0.0)), strict=False):
        if label not in _STATES and not (said.rights and label == "kafka_denies"):
            yield problem.Reported(line, (writer.id,), label, text, seconds)


def of_projectors(redis: RedisPart, found: Observation) -> Iterator[Problem]:
    """Yields the problems that a comparison of the projectors' heartbeats shows: too few are alive, or one reads other
    topics than the others, or the same ones beside them. Whoever was told to expect most of them is right.
    """
    writers = redis.living
    expected = max([found.expected, *(it.heartbeat.expected for it in writers)])
    if 0 < len(writers) < expected:
        yield problem.FewProjectors(len(writers), expected)
    yield from _other_settings("LEADVIEW_TOPIC_PREFIX", found.prefix, [(it.id, it.heartbeat.prefix) for it in writers])
    yield from _other_settings("LEADVIEW_GROUP_ID", found.group, [(it.id, it.heartbeat.group) for it in writers])


def _other_settings(
    setting: problem.SharedSetting, own: str | None, theirs: Sequence[tuple[str, str | None]]
) -> Iterator[Problem]:
    """Yields which projectors have another value than this program. None: it is not known, or does not matter."""
    others = [(id_, value) for id_, value in theirs if value not in (None, own)] if own is not None else []
    for id_, value in others:
        yield problem.OtherSettings((id_,), setting, str(value), str(own), alone=len(others) == len(theirs))


def _of_clocks(redis: RedisPart) -> Iterator[Problem]:
    """Yields the problem that clocks of projectors differ from that of Redis, if this program's clock does not."""
    differing = [(it.heartbeat.clocks, it.id) for it in redis.living if it.heartbeat.clocks]
    if differing and not redis.clocks:
        furthest, _ = max(differing, key=lambda it: it[0].apart_ms)
        yield problem.ClockDiffers(tuple(program for _, program in differing), furthest)


def unattended(redis: RedisPart) -> Problem | None:
    """Returns the problem that a newer generation is neither filled nor written; None if it is."""
    state = redis.record.state if redis.record else None
    newest = state.next if state else None
    known = state.generations.get(newest) if state and newest else None
    if redis.record is None or newest is None or known is None:
        return None
    alive = [writer.heartbeat for writer in redis.writers if writer.alive]
    complete = redis.record.is_complete(newest)
    if not complete and not any(writer.role == "rebuild" for writer in alive):
        return problem.GenerationUnfilled(number_of(newest))
    if complete and redis.living and not any(it.role == "run" and it.mapping >= known.mapping for it in alive):
        return problem.GenerationUnwritten(number_of(newest), known.mapping)
    return None


def _of_projection(found: Observation) -> Iterator[Problem]:
    """Yields the problems that keep readers from seeing everything that was published, as far as Redis says it."""
    if (redis := found.redis) is None:
        return
    if redis.record is None:
        yield problem.RedisEmpty(bool(redis.living))
    if not redis.living:
        yield problem.NoProjector(tuple(it.id for it in redis.writers if not it.alive and it.heartbeat.role == "run"))
    yield from of_projectors(redis, found)
    yield from _of_clocks(redis)
    for writer in redis.living:
        yield from reported(writer)
    yield from of_records(redis)
    if redis.record and (tags := redis.incomplete):  # a shard is being filled, so that records wait
        addresses = tuple(redis.servers[tag] for tag in tags if tag in redis.servers)
        yield problem.Incomplete(len(tags), len(redis.record.copies), addresses)
    yield from _stale(redis, found)


def _stale(redis: RedisPart, found: Observation) -> Iterator[Problem]:
    """Yields the problem that records wait for too long. Those behind an open transaction do not count, because the
    projectors cannot read them.
    """
    readable = found.readable or {}
    ages = {partition: age for partition, age in (found.ages or {}).items() if partition in readable}
    if (age := max(ages.values(), default=0.0)) > STALE_SECONDS:
        records = sum(last - first for first, last in readable.values())
        hindered = tuple(writer.id for writer in redis.living if writer.heartbeat.hindered)
        yield problem.Stale(records, age, hindered, _are_enough(redis, found))


def notes(found: Observation) -> Iterator[Problem]:
    """Yields what somebody should know, although it hinders nothing."""
    if (redis := found.redis) is None:
        return
    record = redis.record
    if record and record.rebuild_due():
        yield problem.RebuildDue(record.state.generations[record.state.live].mapping, VERSION)
    if nobody := unattended(redis):
        yield nobody
    for layout in redis.other_layouts:
        yield problem.OtherLayout(layout)
    named = len(redis.bad_access) + len(redis.newest_bad)
    if others := redis.dead_letters - named:
        yield problem.DeadLetters(others, redis.unjudged, named)
    for writer in redis.silent(found.at):
        role = writer.heartbeat.role
        # If no projector is alive, that problem says which ones there were. A rebuild whose generation is gone is over.
        if redis.living if role == "run" else role != "rebuild" or (record and record.state.next):
            yield problem.Silent((writer.id,), role, writer.age_ms / 1000)
    if misplaced := {topic for writer in redis.living for topic in writer.heartbeat.misplaced}:
        yield problem.Misplaced(tuple(sorted(misplaced)))
    if _NEARLY_FULL <= redis.used < FULL:
        yield problem.RedisNearlyFull(redis.used)


def _are_enough(redis: RedisPart, found: Observation) -> bool:
    """Returns whether each partition of the topics that are behind may have a projector of its own already."""
    behind = {partition.topic for partition in found.waiting or ()}
    topics = found.kafka.topics if found.kafka else []
    return len(redis.living) >= max((len(topic.partitions) for topic in topics if topic.name in behind), default=inf)


class WatchedLine(Protocol):
    """The state of a line of this projector."""

    health: LineHealth
    topics: frozenset[str]

    @property
    def member_id(self) -> str: ...

    def assigned(self) -> set[Partition]: ...

    def misplaced(self) -> list[str]: ...


class Lasting:
    """Judges one observation after the other, and remembers what has to last for a while before it is a problem."""

    def __init__(self, now: float, session_seconds: float) -> None:
        """`now` is a monotonic time in seconds. `session_seconds` is how long Kafka may take to reassign partitions."""
        self._unowned_seconds = max(UNOWNED_SECONDS, 2 * session_seconds)
        lasting = (
            problem.RedisUnknown,
            problem.RedisRefusesWrites,
            problem.KafkaUnknown,
            problem.FewProjectors,
            problem.OtherSettings,
        )
        self._known_at: dict[type, float] = dict.fromkeys(lasting, now)
        self._moved: dict[Partition, tuple[int, float]] = {}
        self._owned_at: dict[str, float] = {}

    def problems(self, found: Observation, lines: Sequence[WatchedLine], now: float) -> list[Problem]:
        """Returns the problems that this observation shows, which was made `now`."""
        seen = [*of_servers(found), *(of_projectors(found.redis, found) if found.redis else ())]
        for known in self._known_at.keys() - {type(it) for it in seen}:
            self._known_at[known] = now
        shown: list[Problem] = [it for it in seen if now - self._known_at.get(type(it), -inf) > UNKNOWN_SECONDS]
        if (waiting := found.readable) is not None:
            moved = {at: self._moved.get(at) for at in waiting}
            self._moved = {
                at: before if (before := moved[at]) and before[0] == first else (first, now)
                for at, (first, _) in waiting.items()
            }
            shown += [it for line in lines if (it := self._not_advancing(line, waiting, now))]
        return shown + [it for line in lines if (it := self._without_partitions(line, found, now))]

    def _not_advancing(
        self, line: WatchedLine, waiting: Mapping[Partition, tuple[int, int]], now: float
    ) -> Problem | None:
        quiet = {at: now - self._moved[at][1] for at in waiting if at in line.assigned()}
        stuck = {at: seconds for at, seconds in quiet.items() if seconds > STUCK_PARTITION_SECONDS}
        if quiet and min(quiet.values()) > STUCK_SECONDS:
            stuck = quiet
        if not stuck:
            return None
        records = sum(waiting[at][1] - waiting[at][0] for at in stuck)
        partitions = tuple(f"{topic}:{number}" for topic, number in sorted(stuck))
        return problem.NotAdvancing(line.health.name, (), records, max(stuck.values()), partitions)

    def _without_partitions(self, line: WatchedLine, found: Observation, now: float) -> Problem | None:
        """Returns the problem that partitions belong to no living projector. While the others have all of them, a
        projector without partitions is a spare one, which is no problem.
        """
        name, unowned = line.health.name, _unowned(line, found)
        if not unowned:
            self._owned_at[name] = now
        if now - self._owned_at.setdefault(name, now) < self._unowned_seconds:
            return None
        return problem.NoPartitions(name, (), unowned, spare=not line.assigned())


def _unowned(line: WatchedLine, found: Observation) -> int:
    """Returns how many partitions no living projector has; 0 if it is not known."""
    if found.kafka is None or found.redis is None:
        return 0
    name, living = line.health.name, [writer.heartbeat for writer in found.redis.living]
    if not living or any(name not in heartbeat.partitions for heartbeat in living):
        return 0
    partitions = sum(len(topic.partitions) for topic in found.kafka.topics if topic.name in line.topics)
    return max(0, partitions - sum(heartbeat.partitions[name] for heartbeat in living))
