"""Judges what was found: what is not well, and what to do about it.

The first line of `status` names every problem. Each one then has a line that says what to do.
"""

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from projector.commands.survey import KafkaPart, RedisPart, Survey
from projector.errors import ProjectorError, Refused
from projector.health.verdict import FULL
from projector.ledger.writers import Writer
from projector.line.batch import ACCEPTANCE
from projector.mapping import VERSION

STALE_SECONDS = 60.0
"""Readers see an old state if a record has waited for so long."""
_MEASURED_HERE = ("topic ", "Redis evicts keys", "The memory of Redis")
"""What projectors say of topics and of Redis: `status` says it in its own words, also if none is alive."""
_OF_STOPPED_LINES = frozenset(("no_step", "not_advancing"))
"""What follows if a line cannot write, or may not."""
_NEARLY_FULL = 0.8


class Finding(NamedTuple):
    """What was found, and what to do about it. `page` is the page in `docs` that says more, with its section."""

    what: str
    advice: str
    page: str = "status.md"

    def __str__(self) -> str:
        return f"{self.what}: {self.advice}"


def headline(problems: list[Finding]) -> str:
    """Returns the verdict in one line. It says what to do if there is one problem; each of several has its own line."""
    match problems:
        case []:
            return "all is well"
        case [problem]:
            return f"not well: {problem}"
    return f"not well: {'; '.join(problem.what for problem in problems)}"


def problems(survey: Survey) -> list[Finding]:
    """Returns what is not well, causes before their effects."""
    found = [*_servers(survey), *_projectors(survey), *_completeness(survey)]
    return list(dict.fromkeys([*found, *_age(survey, alone=not found)]))


def notes(survey: Survey) -> list[Finding]:
    """Returns what has to be done some time, although all is well."""
    redis = survey.redis
    if isinstance(redis, ProjectorError):
        return []
    found = []
    if redis.record and redis.record.rebuild_due():
        live = redis.record.state.generations[redis.record.state.live].mapping
        found.append(
            Finding(
                f"rebuild due: this program has mapping version {VERSION}, the live generation {live}",
                "run `rebuild` (docs/rebuild.md), or deploy the older version again",
                "runbook.md#leadviewrebuilddue",
            )
        )
    if redis.dead_letters:
        found.append(
            Finding(
                f"dead letters: {redis.dead_letters:,}",
                "`dead-letters list` says why these records are bad (docs/dead-letters.md)",
                "dead-letters.md",
            )
        )
    silent = [writer for writer in redis.writers if not writer.alive]
    found += [
        Finding(
            f"silent for {writer.age_ms / 1000:.0f} s: {writer.heartbeat.role} {writer.id}",
            "it has crashed, stands still, or cannot reach Redis",
            "runbook.md#leadviewnoprojector",
        )
        for writer in silent
    ]
    if _NEARLY_FULL <= _used(redis) < FULL:
        found.append(
            Finding(
                f"the memory of Redis is {_used(redis):.0%} used",
                "raise its maxmemory (docs/capacity.md)",
                "runbook.md#leadviewredismemory",
            )
        )
    return found


def living(redis: RedisPart) -> list[Writer]:
    """Returns the projectors that are alive."""
    return [writer for writer in redis.writers if writer.is_living_projector]


def _servers(survey: Survey) -> Iterator[Finding]:
    match survey.redis:
        case Refused() as error:  # its data has another layout, and the message says what to do
            yield Finding(str(error).partition(", which ")[0], str(error), "upgrading.md")
        case ProjectorError() as error:
            yield Finding(
                "Redis cannot be read",
                f"{str(error).rstrip('.')}. Correct LEADVIEW_REDIS_URL or the user, or repair Redis; "
                "`doctor` finds out more",
                "runbook.md#redis_unknown",
            )
        case redis:
            yield from _redis(redis)
    match survey.kafka:
        case ProjectorError() as error:
            yield Finding("Kafka cannot be read", f"{error}. `doctor` finds out more", "runbook.md#kafka_unknown")
        case kafka:
            yield from of_topics(kafka)


def _redis(redis: RedisPart) -> Iterator[Finding]:
    for policy in sorted({memory.policy for memory in redis.memories if memory.policy.startswith("allkeys-")}):
        yield Finding(
            f"Redis evicts keys when its memory is full (maxmemory-policy is {policy})",
            "documents would vanish: set its maxmemory-policy to noeviction",
            "runbook.md#redis_evicts",
        )
    if _used(redis) >= FULL:
        yield Finding(
            "Redis is full",
            "it refuses writes, so nothing is applied: raise its maxmemory (docs/capacity.md)",
            "runbook.md#redis_full",
        )


def of_topics(kafka: KafkaPart) -> Iterator[Finding]:
    """Yields what is wrong with the topics."""
    kept = [(topic, topic.retention) for topic in kafka.topics if topic.retention]
    found = [
        (
            [topic.name for topic in kafka.topics if not topic.allowed],
            "this user may not read it",
            "let the user of the projector read and describe it",
            "topic_missing",
        ),
        (
            [topic.name for topic in kafka.topics if topic.allowed and not topic.exists],
            "missing",
            "create what is missing, compacted (cleanup.policy=compact), or correct LEADVIEW_TOPIC_PREFIX",
            "topic_missing",
        ),
        (
            [topic.name for topic in kafka.topics if topic.leaderless],
            "not served, because partitions have no leader",
            "repair the brokers of Kafka",
            "kafka_unknown",
        ),
        (
            [f"{topic.name} ({retention})" for topic, retention in kept if not retention.compacts],
            "not compacted",
            "records that are still needed would vanish: set cleanup.policy=compact",
            "topic_not_compacted",
        ),
        (
            [f"{topic.name} ({retention})" for topic, retention in kept if retention.compacts and retention.deletes],
            "compacted, but its old records are deleted as well",
            "records that are still needed would vanish: set cleanup.policy=compact",
            "topic_not_compacted",
        ),
    ]
    for names, state, advice, section in found:
        if names:
            topics = "topic" if len(names) == 1 else "topics"
            yield Finding(f"{topics} {', '.join(names)}: {state}", advice, f"runbook.md#{section}")


def _projectors(survey: Survey) -> Iterator[Finding]:
    redis = survey.redis
    if isinstance(redis, ProjectorError):
        return
    alive = living(redis)
    if not alive:
        yield Finding(
            "no projector is running",
            "nothing is applied; start one with `python -m projector run`" + _silent(redis),
            "runbook.md#leadviewnoprojector",
        )
    effects = _effects(redis, alive)
    for writer in alive:
        yield from _lines(writer, effects)


def _silent(redis: RedisPart) -> str:
    """Returns which projectors there were a moment ago."""
    silent = [writer.id for writer in redis.writers if not writer.alive and writer.heartbeat.role == "run"]
    return f", after a look at why {', '.join(silent)} no longer stores heartbeats" if silent else ""


def _effects(redis: RedisPart, alive: list[Writer]) -> frozenset[str]:
    """Returns the kinds of problems that only follow from another one, which has a finding of its own."""
    states = {state.partition(": ")[0] for writer in alive for state in writer.heartbeat.lines.values()}
    effects = _OF_STOPPED_LINES if _used(redis) >= FULL else frozenset()
    return effects | ({"no_partitions"} if "standing by" in states else frozenset())


def _lines(writer: Writer, effects: frozenset[str]) -> Iterator[Finding]:
    said = set()
    halted = {line for line, state in writer.heartbeat.lines.items() if state.startswith("halted")}
    for line, state in writer.heartbeat.lines.items():
        word, _, reason = state.partition(": ")
        said |= {f"{line}: {state}", f"{line}: {reason}"}
        match word:
            case "running":
                continue
            case "halted":
                why, *acceptance = reason.partition(ACCEPTANCE)
                yield Finding(
                    f"line {line} is stopped: {why}",
                    "fix the producer, or deploy a projector that can read them (docs/dead-letters.md)"
                    + "".join(acceptance),
                    "dead-letters.md#a-halted-line",
                )
            case "standing by":
                yield Finding(
                    f"line {line} is standing by: {reason}",
                    f"deploy the newer program on {writer.id} again, or drop the newer generation (docs/upgrading.md)",
                    "runbook.md#leadviewstandingby",
                )
            case _:
                yield Finding(f"line {line} is {word}: {reason}", f"read the log of {writer.id}", "runbook.md#failing")
    for problem, kind in zip_longest(writer.heartbeat.problems, writer.heartbeat.kinds, fillvalue=""):
        follows = kind in effects or (kind in _OF_STOPPED_LINES and problem.partition(":")[0] in halted)
        if problem not in said and not problem.startswith(_MEASURED_HERE) and not follows:
            page = f"runbook.md#{kind or 'leadviewproblem'}"
            yield Finding(problem.rstrip("."), f"read the log of {writer.id}", page)


def _completeness(survey: Survey) -> Iterator[Finding]:
    redis = survey.redis
    if isinstance(redis, ProjectorError):
        return
    if redis.record is None:
        yield Finding(
            "Nothing is served yet: Redis is empty",
            "it was never filled, or it has lost everything, or LEADVIEW_REDIS_URL names another one. A projector "
            "fills it from the topics, and the API serves nothing until then",
            "status.md#redis-is-empty-or-not-complete",
        )
    elif incomplete := incomplete_shards(redis):
        if len(redis.record.copies) == 1:
            what, advice = (
                "not complete: Redis",
                "the API answers 503 until a projector has read all topics to their end",
            )
        else:
            what = f"not complete: {incomplete} of the parts (shards) of Redis"
            advice = "for the organizations there, the API answers 503 until a projector has filled them"
        yield Finding(what, advice, "status.md#redis-is-empty-or-not-complete")


def incomplete_shards(redis: RedisPart) -> int:
    """Returns how many shards do not hold everything of the live generation."""
    copies = redis.record.copies.values() if redis.record else ()
    return sum(not (copy and copy.serves) for copy in copies)


def _age(survey: Survey, *, alone: bool) -> Iterator[Finding]:
    """`alone`: nothing else is wrong."""
    age = max((survey.ages() or {}).values(), default=0.0)
    if age > STALE_SECONDS:
        waiting = sum(last - first for first, last in (survey.waiting() or {}).values())
        wait = "record waits" if waiting == 1 else "records wait"
        yield Finding(
            f"stale: {waiting:,} {wait} to be applied, the oldest for {duration(age)}",
            "the projectors are too slow: start more of them (docs/capacity.md)"
            if alone
            else "they are applied when what is named above is repaired",
            "runbook.md#leadviewstale",
        )


def duration(seconds: float) -> str:
    """Returns a duration for people to read, such as `3 min`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _used(redis: RedisPart) -> float:
    return max((memory.used / memory.limit for memory in redis.memories if memory.limit), default=0.0)
