"""What is wrong, from one sample after the other. Pure: no clock, no connection."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from projector.kafka.topics import Topic
from projector.ledger.control import Break
from projector.line.health import LineHealth
from projector.operate.sample import KafkaSample, RedisSample, Sample
from projector.problem import Problem
from projector.record import Partition

UNKNOWN_SECONDS = 10.0
STUCK_SECONDS = 30.0
"""A line that has applied nothing for so long, although records wait, does not advance."""
STUCK_PARTITION_SECONDS = 120.0
"""A single partition may wait for its turn longer than that while others are read."""
UNOWNED_SECONDS = 30.0
FULL = 0.98
"""The used share of maxmemory from which on a Redis counts as full."""


class WatchedLine(Protocol):
    """What is known of a line of this projector."""

    health: LineHealth
    topics: frozenset[str]

    def assigned(self) -> set[Partition]: ...


class Verdict:
    """Remembers what has to last for a while before it is a problem."""

    def __init__(self, now: float, session_seconds: float) -> None:
        """`now` is a monotonic time in seconds. `session_seconds` is how long Kafka may take to reassign partitions."""
        self._unowned_seconds = max(UNOWNED_SECONDS, 2 * session_seconds)
        self._known_at = {"kafka": now, "redis": now}
        self._moved: dict[Partition, tuple[int, float]] = {}
        self._owned_at: dict[str, float] = {}

    def problems(self, sample: Sample, lines: Sequence[WatchedLine]) -> list[Problem]:
        """Returns the problems that this sample shows."""
        now, found = sample.monotonic_at, []
        if isinstance(sample.kafka, KafkaSample):
            self._known_at["kafka"] = now
            found += [problem for topic in sample.kafka.topics for problem in _of_topic(topic)]
        elif now - self._known_at["kafka"] > UNKNOWN_SECONDS:
            found.append(Problem("kafka_unknown", "", f"{sample.kafka}: it is not known how far the lines are behind"))
        if isinstance(sample.redis, RedisSample):
            self._known_at["redis"] = now
            found += _of_redis(sample.redis)
            found += [_of_break(it) for it in sample.breaks or ()]
        elif now - self._known_at["redis"] > UNKNOWN_SECONDS:
            found.append(Problem("redis_unknown", "", f"{sample.redis}: it is not known what is served"))
        waiting = sample.waiting
        if waiting is not None:
            self._note_moves(waiting, now)
            found += [problem for line in lines if (problem := self._not_advancing(line, waiting, now))]
        found += [problem for line in lines if (problem := self._without_partitions(line, sample, now))]
        return found

    def _note_moves(self, waiting: Mapping[Partition, tuple[int, int]], now: float) -> None:
        moved = {}
        for partition, (at, end) in waiting.items():
            before = self._moved.get(partition)
            moved[partition] = before if before and at < end and before[0] == at else (at, now)
        self._moved = moved

    def _not_advancing(
        self, line: WatchedLine, waiting: Mapping[Partition, tuple[int, int]], now: float
    ) -> Problem | None:
        behind = {p: span[1] - span[0] for p, span in waiting.items() if p in line.assigned() and span[0] < span[1]}
        quiet = {partition: now - self._moved[partition][1] for partition in behind}
        stuck = {p: seconds for p, seconds in quiet.items() if seconds > STUCK_PARTITION_SECONDS}
        if quiet and min(quiet.values()) > STUCK_SECONDS:
            stuck = quiet
        if not stuck:
            return None
        records = sum(behind[partition] for partition in stuck)
        name, at = line.health.name, ", ".join(f"{topic}:{number}" for topic, number in sorted(stuck))
        return Problem(
            "not_advancing",
            name,
            f"{name}: {records:,} records behind, and has not advanced for {max(stuck.values()):.0f} s ({at})",
        )

    def _without_partitions(self, line: WatchedLine, sample: Sample, now: float) -> Problem | None:
        """Partitions that belong to no living projector. A projector without any is a spare one if others have all."""
        name = line.health.name
        unowned = _unowned(line, sample)
        if not unowned:
            self._owned_at[name] = now
            return None
        if now - self._owned_at.setdefault(name, now) < self._unowned_seconds:
            return None
        own = "" if line.assigned() else " This line has none."
        return Problem(
            "no_partitions",
            name,
            f"{name}: {unowned} partitions belong to no projector.{own} Check that every projector may join the "
            "consumer group, and that none stands by.",
        )


def _unowned(line: WatchedLine, sample: Sample) -> int:
    """Returns how many partitions no living projector has; 0 if it is not known."""
    if isinstance(sample.kafka, str) or isinstance(sample.redis, str):
        return 0
    name = line.health.name
    living = [writer.heartbeat for writer in sample.redis.writers if writer.is_living_projector]
    if not living or any(name not in heartbeat.partitions for heartbeat in living):
        return 0
    partitions = sum(len(topic.partitions) for topic in sample.kafka.topics if topic.name in line.topics)
    return max(0, partitions - sum(heartbeat.partitions[name] for heartbeat in living))


def _of_topic(topic: Topic) -> list[Problem]:
    if not topic.allowed:
        text = "may not be described by this user: nothing can be read from it. Grant it DESCRIBE and READ."
        return [Problem("topic_missing", topic.name, f"topic {topic.name} {text}")]
    if not topic.exists:
        text = "is missing: nothing can be read from it. Create it, compacted, or correct LEADVIEW_TOPIC_PREFIX."
        return [Problem("topic_missing", topic.name, f"topic {topic.name} {text}")]
    if topic.retention and (not topic.retention.compacts or topic.retention.deletes):
        text = f"is not kept for good ({topic.retention}): records vanish or pile up. Set cleanup.policy=compact."
        return [Problem("topic_not_compacted", topic.name, f"topic {topic.name} {text}")]
    return []


def _of_break(found: Break) -> Problem:
    text = (
        f"topic {found.topic} {found.what}: what is served may be what Kafka no longer has. Let the core product "
        "publish all of its entities again, then run `verify`, and `rebuild` if it finds differences."
    )
    return Problem(found.kind, found.topic, text)


def _of_redis(redis: RedisSample) -> list[Problem]:
    found = []
    if redis.evicts:
        found.append(Problem("redis_evicts", "", redis.evicts))
    if redis.memory_ratio >= FULL:
        text = (
            f"The memory of Redis is full ({redis.memory_ratio:.0%} of maxmemory): it refuses writes. Raise maxmemory."
        )
        found.append(Problem("redis_full", "", text))
    return found
