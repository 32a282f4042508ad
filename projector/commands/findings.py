"""Judges what was found: what is not well, and what to do about it.

The first line of `status` names every problem. Each one then has a line that says what to do.
"""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Literal, assert_never

from projector.commands.finding import Finding
from projector.commands.survey import RedisPart, Survey
from projector.commands.topic_findings import of_history, of_topics
from projector.errors import ProjectorError
from projector.health.verdict import FULL
from projector.ledger.writers import Writer
from projector.mapping import VERSION
from schemas import words
from schemas.control import LAYOUT, number_of
from schemas.line_states import Failing, Former, Halted, LineTrouble, StandingBy

STALE_SECONDS = 60.0
"""Readers see an old state if a record has waited for so long."""
_MEASURED_HERE = ("topic ", "Redis evicts keys", "The memory of Redis")
"""What projectors say of topics and of Redis: `status` says it in its own words, also if none is alive."""
_OF_STOPPED_LINES = frozenset(("no_step", "not_advancing"))
"""What follows if a line cannot write, or may not."""
_NEARLY_FULL = 0.8
_NOT_COMPLETE = "status.md#redis-is-empty-or-not-complete"


def problems(survey: Survey) -> list[Finding]:
    """Returns what is not well, causes before their effects."""
    empty, incomplete = list(_empty(survey)), list(_incomplete(survey))
    found = [*_servers(survey), *empty, *_projectors(survey), *incomplete]
    if not empty and not incomplete and not any(finding.stops for finding in found):
        found += _age(survey)
    return list(dict.fromkeys(found))


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
    if (nobody := unattended(redis)) and not _stands_by(redis):  # a line that stands by says the same
        found.append(nobody)
    found += [
        Finding(
            of_another_layout(layout),
            "if no program uses it any more, remove it",
            "upgrading.md#remove-what-another-layout-left",
        )
        for layout in redis.other_layouts
    ]
    if redis.dead_letters:
        found.append(
            Finding(
                f"dead letters: {redis.dead_letters:,}",
                "`dead-letters list` says why these records are bad (docs/dead-letters.md)",
                "dead-letters.md",
            )
        )
    alive = living(redis)  # if there is none, the problem says which ones there were
    silent = [writer for writer in redis.writers if not writer.alive and (alive or writer.heartbeat.role != "run")]
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
        case ProjectorError() as error:
            yield Finding(
                "Redis cannot be read",
                f"{str(error).rstrip('.')}. Correct LEADVIEW_REDIS_URL or the user, or repair Redis; "
                "`doctor` finds out more",
                "runbook.md#redis_unknown",
                where=("redis", "projectors", "api"),
                stops="all",
            )
        case redis:
            yield from _redis(redis)
    match survey.kafka:
        case ProjectorError() as error:
            yield Finding(
                "Kafka cannot be read",
                f"{str(error).rstrip('.')}. `doctor` finds out more",
                "runbook.md#kafka_unknown",
                where=("kafka",),
            )
        case kafka:
            yield from of_topics(kafka)
    if not isinstance(survey.redis, ProjectorError) and survey.redis.record:
        yield from of_history(survey.redis.record, None if isinstance(survey.kafka, ProjectorError) else survey.kafka)


def _redis(redis: RedisPart) -> Iterator[Finding]:
    for policy in sorted({memory.policy for memory in redis.memories if memory.policy.startswith("allkeys-")}):
        yield Finding(
            f"Redis evicts keys when its memory is full (maxmemory-policy is {policy})",
            "documents would vanish: set its maxmemory-policy to noeviction",
            "runbook.md#redis_evicts",
            where=("redis",),
        )
    if _used(redis) >= FULL:
        yield Finding(
            "Redis is full",
            "it refuses writes, so nothing is applied: raise its maxmemory (docs/capacity.md)",
            "runbook.md#redis_full",
            where=("redis", "projectors"),
            stops="all",
        )


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
            where=("projectors",),
            stops="all",
        )
    effects = _effects(redis)
    for writer in alive:
        yield from _lines(writer, effects)


def _silent(redis: RedisPart) -> str:
    """Returns which projectors there were a moment ago."""
    silent = [writer.id for writer in redis.writers if not writer.alive and writer.heartbeat.role == "run"]
    return f", after a look at why {', '.join(silent)} no longer stores heartbeats" if silent else ""


def _effects(redis: RedisPart) -> frozenset[str]:
    """Returns the kinds of problems that only follow from another one, which has a finding of its own."""
    effects = _OF_STOPPED_LINES if _used(redis) >= FULL else frozenset()
    return effects | ({"no_partitions"} if _stands_by(redis) else frozenset())


def _stands_by(redis: RedisPart) -> bool:
    return any(
        trouble.state == StandingBy.state
        for writer in living(redis)
        for line in writer.heartbeat.lines
        if (trouble := writer.heartbeat.trouble(line))
    )


def _lines(writer: Writer, effects: frozenset[str]) -> Iterator[Finding]:
    said = set()
    troubles = {line: it for line in writer.heartbeat.lines if (it := writer.heartbeat.trouble(line))}
    halted = {line for line, trouble in troubles.items() if trouble.state == Halted.state}
    for line, trouble in troubles.items():
        text = words.trouble(trouble)
        said |= {f"{line}: {text}", f"{line}: {trouble.state}: {text}"}
        yield _stopped(line, trouble, writer.id)
    for problem, kind in zip_longest(writer.heartbeat.problems, writer.heartbeat.kinds, fillvalue=""):
        follows = kind in effects or (kind in _OF_STOPPED_LINES and problem.partition(":")[0] in halted)
        if problem not in said and not problem.startswith(_MEASURED_HERE) and not follows:
            page = f"runbook.md#{kind or 'leadviewproblem'}"
            stops: Literal["", "line"] = "line" if kind in _OF_STOPPED_LINES else ""
            advice = f"read the log of {writer.id}"
            yield Finding(problem.rstrip("."), advice, page, where=("projectors",), stops=stops)


def _stopped(line: str, trouble: LineTrouble, writer: str) -> Finding:
    """Returns the finding about a line that does not work. The verdict says how many bad records there are."""
    detail, command, text = "", "", words.trouble(trouble)
    match trouble:
        case Halted():
            text, detail = words.halt(trouble), f"The last one is {words.last(trouble)}."
            if trouble.ranges:
                detail, command = f"{detail} {words.acceptable(trouble)}:", words.accept_command(trouble)
        case Failing() | StandingBy() | Former():
            pass
        case unknown:
            assert_never(unknown)
    match trouble.state:
        case Halted.state:
            verb, page = "stopped", "dead-letters.md#a-halted-line"
            advice = "fix the producer, or deploy a projector that can read them (docs/dead-letters.md)"
        case StandingBy.state:
            verb, page = "standing by", "runbook.md#leadviewstandingby"
            advice = f"deploy the newer program on {writer} again, or drop the newer generation (docs/upgrading.md)"
        case state:
            verb, page, advice = state, "runbook.md#failing", f"read the log of {writer}"
    what = f"line {line} is {verb}: {text}"
    return Finding(what, advice, page, where=("projectors",), stops="line", detail=detail, command=command)


def _empty(survey: Survey) -> Iterator[Finding]:
    redis = survey.redis
    if isinstance(redis, ProjectorError) or redis.record is not None:
        return
    filled = (
        "a projector fills it from the topics, and the API answers 503 until then"
        if living(redis)
        else "the API answers 503 until a projector has filled it from the topics. If projectors are running, "
        "LEADVIEW_REDIS_URL here names another Redis than theirs"
    )
    yield Finding("Redis is empty, so nothing is served", filled, _NOT_COMPLETE, where=("redis", "api"))


def _incomplete(survey: Survey) -> Iterator[Finding]:
    """Yields that a shard is being filled, so that records wait."""
    redis, page = survey.redis, _NOT_COMPLETE
    if isinstance(redis, ProjectorError) or redis.record is None:
        return
    incomplete = incomplete_shards(redis)
    shards = len(redis.record.copies)
    if incomplete and shards == 1:
        advice = "the API answers 503 until a projector has read all topics to their end"
        yield Finding("not complete: Redis", advice, page, where=("redis", "api"))
    elif incomplete:
        names = [redis.servers[tag] for tag in incomplete if tag in redis.servers]
        at = f", {', '.join(names)}" if names else ""
        parts = f"all {shards} parts" if len(incomplete) == shards else f"{len(incomplete)} of the {shards} parts"
        for_whom = "all organizations" if len(incomplete) == shards else "the organizations there, and no others"
        advice = f"for {for_whom}, the API answers 503 until a projector has filled them"
        yield Finding(f"not complete: {parts} (shards) of Redis{at}", advice, page, where=("redis", "api"))


def of_another_layout(layout: int) -> str:
    """Returns what it means that Redis also holds data of another version of Leadview."""
    return f"Redis also holds data of layout {layout} (this program: {LAYOUT}), which uses memory"


def incomplete_shards(redis: RedisPart) -> list[bytes]:
    """Returns the tags of the shards that do not hold everything of the live generation."""
    copies = redis.record.copies if redis.record else {}
    return [tag for tag, copy in copies.items() if not (copy and copy.serves)]


def unattended(redis: RedisPart) -> Finding | None:
    """Returns what to do about a newer generation that nobody fills, or that nobody writes any more."""
    state = redis.record.state if redis.record else None
    newest = state.next if state else None
    known = state.generations.get(newest) if state and newest else None
    if redis.record is None or newest is None or known is None:
        return None
    alive = [writer.heartbeat for writer in redis.writers if writer.alive]
    number, complete = number_of(newest), redis.record.is_complete(newest)
    if not complete and not any(writer.role == "rebuild" for writer in alive):
        what, advice = f"generation {number} is not complete, and no rebuild is running", "run `rebuild` to continue it"
    elif complete and living(redis) and not any(w.role == "run" and w.mapping >= known.mapping for w in alive):
        what = f"generation {number} is not written any more: no projector has mapping version {known.mapping}"
        advice = "deploy that program again before you promote it"
    else:
        return None
    return Finding(what, f"{advice}, or run `drop {number}`", "rebuild.md", where=("projectors",))


def _age(survey: Survey) -> Iterator[Finding]:
    age = max((survey.ages() or {}).values(), default=0.0)
    if age > STALE_SECONDS:
        waiting = sum(last - first for first, last in (survey.waiting() or {}).values())
        wait = "record waits" if waiting == 1 else "records wait"
        yield Finding(
            f"stale: {waiting:,} {wait} to be applied, the oldest for {duration(age)}",
            "the projectors are too slow: start more of them (docs/capacity.md)",
            "runbook.md#leadviewstale",
            where=("projectors",),
        )


def duration(seconds: float) -> str:
    """Returns a duration for people to read, such as `3 min`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _used(redis: RedisPart) -> float:
    return max((memory.used / memory.limit for memory in redis.memories if memory.limit), default=0.0)
