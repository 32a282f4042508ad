"""What is wrong, judged from what was observed. Pure: no clock, no connection, no words."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from math import inf
from typing import Protocol, assert_never

from msgspec.structs import replace

from projector import problem
from projector.kafka.topics import Topic
from projector.ledger.control import ACCESS, Break
from projector.ledger.writers import Writer
from projector.line.health import LineHealth
from projector.mapping import VERSION
from projector.operate.observe import Observation, RedisPart
from projector.problem import OF_STOPPED_LINES, Problem, of_line, stops
from projector.record import Partition
from schemas.control import number_of

STALE_SECONDS = 60.0
"""Readers see an old state if a record has waited for so long."""
UNKNOWN_SECONDS = 10.0
STUCK_SECONDS = 30.0
"""A line that has applied nothing for so long, although records wait, does not advance."""
STUCK_PARTITION_SECONDS = 120.0
"""A single partition may wait for its turn longer than that while others are read."""
UNOWNED_SECONDS = 30.0
FULL = 0.98
"""The used share of maxmemory from which on a Redis counts as full."""
_NEARLY_FULL = 0.8
_STATES = frozenset(("halted", "failing", "standing_by"))


def problems(found: Observation) -> list[Problem]:
    """Returns what is not well, causes before their effects, and then the notes. What only follows from another problem
    is left out, and what several projectors report is one problem.
    """
    every = [*of_servers(found), *_of_projection(found), *_notes(found)]
    programs: dict[Problem, list[str]] = {}
    for it in every:
        by = getattr(it, "programs", ())
        programs.setdefault(replace(it, programs=()) if by else it, []).extend(by)
    return causes([replace(it, programs=tuple(by)) if by else it for it, by in programs.items()])


def causes(together: Sequence[Problem]) -> list[Problem]:
    """Returns those that do not only follow from another one."""
    return [it for it in together if not any(_follows(it, cause) for cause in together)]


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
        case problem.StandingBy() if it.label == "no_partitions":
            return True
        case problem.StandingBy() if isinstance(it, problem.GenerationUnfilled | problem.GenerationUnwritten):
            return True
        case problem.KafkaUnknown() if isinstance(it, problem.Reported):
            return stopped or it.label == cause.label
    late = isinstance(it, problem.Stale)
    return late and (isinstance(cause, problem.RedisEmpty | problem.Incomplete) or bool(stops(cause)))


def _is_of_line(it: Problem, cause: problem.OfLine) -> bool:
    """Returns whether a problem is one of the same line, and of no other programs."""
    return isinstance(it, problem.OfLine) and it.line == cause.line and {*it.programs} <= {*cause.programs}


def of_servers(found: Observation) -> Iterator[Problem]:
    """Yields what anybody sees who asks Redis and Kafka."""
    if found.redis:
        yield from of_redis(found.redis)
    else:
        yield problem.RedisUnknown(found.redis_unknown)
    if found.kafka:
        yield from of_topics(found.kafka.topics)
    else:
        yield problem.KafkaUnknown(found.kafka_unknown)
    yield from of_history(found)


def of_redis(redis: RedisPart) -> Iterator[Problem]:
    """Yields whether documents may be evicted, or not be written."""
    if policies := sorted({it.policy for it in redis.memories if it.evicts}):
        yield problem.RedisEvicts(tuple(policies))
    if redis.used >= FULL:
        yield problem.RedisFull(redis.used)
    if redis.refusal:
        yield problem.RedisRefusesWrites(redis.refusal)


def of_topics(topics: Sequence[Topic]) -> Iterator[Problem]:
    """Yields what is wrong with the topics: they must exist, be allowed to this user, be served, and be compacted."""
    kept = [(topic.name, topic.retention) for topic in topics if topic.retention]
    if forbidden := tuple(topic.name for topic in topics if not topic.allowed):
        yield problem.TopicMissing(forbidden, allowed=False)
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
    """Yields why what is served may not be what Kafka has."""
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


def reported(writer: Writer) -> Iterator[Problem]:
    """Yields what a projector says about itself in its heartbeat."""
    said = writer.heartbeat
    for line in said.lines:
        if trouble := said.trouble(line):
            yield of_line(line, trouble, (writer.id,))
    for text, label, line in zip_longest(said.problems, said.kinds, said.of_lines, fillvalue=""):
        if label not in _STATES:
            yield problem.Reported(line, (writer.id,), label, text)


def of_projectors(redis: RedisPart, found: Observation) -> Iterator[Problem]:
    """Yields what anybody sees who compares the heartbeats of the projectors: too few are alive, or one reads other
    topics than the others, or the same ones beside them.
    """
    writers, prefix = redis.living, found.prefix
    if 0 < len(writers) < found.expected:
        yield problem.FewProjectors(len(writers), found.expected)
    alone = all(it.heartbeat.prefix not in (None, prefix) for it in writers)
    groups = Counter(it.heartbeat.group for it in writers if it.heartbeat.group is not None)
    for writer in writers:
        theirs = writer.heartbeat
        if prefix is not None and theirs.prefix not in (None, prefix):
            yield problem.OtherSettings((writer.id,), "LEADVIEW_TOPIC_PREFIX", str(theirs.prefix), prefix, alone)
        elif theirs.group is not None and theirs.group != (usual := groups.most_common(1)[0][0]):
            yield problem.OtherSettings((writer.id,), "LEADVIEW_GROUP_ID", theirs.group, str(usual))


def unattended(redis: RedisPart) -> Problem | None:
    """Returns that nobody fills a newer generation, or that nobody writes it any more."""
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
    """Yields what prevents readers from seeing everything that was published, as far as Redis says it."""
    if (redis := found.redis) is None:
        return
    if redis.record is None:
        yield problem.RedisEmpty(bool(redis.living))
    if not redis.living:
        yield problem.NoProjector(tuple(it.id for it in redis.writers if not it.alive and it.heartbeat.role == "run"))
    yield from of_projectors(redis, found)
    for writer in redis.living:
        yield from reported(writer)
    if keys := tuple(dict.fromkeys(letter.key for letter in redis.bad_access)):
        yield problem.AccessAsBefore(keys)
    if redis.record and (tags := redis.incomplete):  # a shard is being filled, so that records wait
        addresses = tuple(redis.servers[tag] for tag in tags if tag in redis.servers)
        yield problem.Incomplete(len(tags), len(redis.record.copies), addresses)
    if (age := max((found.ages or {}).values(), default=0.0)) > STALE_SECONDS:
        yield problem.Stale(found.lag or 0, age)


def _notes(found: Observation) -> Iterator[Problem]:
    if (redis := found.redis) is None:
        return
    record = redis.record
    if record and record.rebuild_due():
        yield problem.RebuildDue(record.state.generations[record.state.live].mapping, VERSION)
    if nobody := unattended(redis):
        yield nobody
    for layout in redis.other_layouts:
        yield problem.OtherLayout(layout)
    if others := redis.dead_letters - len(redis.bad_access):
        yield problem.DeadLetters(others)
    for writer in redis.silent(found.at):
        role = writer.heartbeat.role
        # If no projector is alive, that problem says which ones there were. A rebuild whose generation is gone is over.
        if redis.living if role == "run" else role != "rebuild" or (record and record.state.next):
            yield problem.Silent(writer.id, role, writer.age_ms / 1000)
    if _NEARLY_FULL <= redis.used < FULL:
        yield problem.RedisNearlyFull(redis.used)


class WatchedLine(Protocol):
    """What is known of a line of this projector."""

    health: LineHealth
    topics: frozenset[str]

    def assigned(self) -> set[Partition]: ...


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
        if (waiting := found.waiting) is not None:
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
        """Returns that partitions belong to no living projector. While the others have all of them, a projector that
        has none is a spare one, which is no problem.
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
