"""What every page shows: the status, and how it changes. Pure."""

from collections.abc import Mapping

import msgspec

from operate.commands import status
from operate.commands.status import Status
from operate.console.replay import Replayed
from projector.health.observe import ApiPart, Observation
from projector.ledger.acts import Act
from projector.words import Said, say

Totals = Mapping[str, tuple[int, int]]
"""The sums of the end offsets and of the positions of each topic."""


class TopicFigures(msgspec.Struct, frozen=True):
    """A topic. `published` and `applied` are records per second; what is not known is None."""

    name: str
    partitions: int
    problem: str
    published: float | None
    applied: float | None


class Picture(msgspec.Struct, frozen=True):
    """One moment of the service. `at` is in ms since 1970. `status` is what `status --json` prints.

    `api` is None if the console was not told where the metrics of the API are, `replay` if nothing is being replayed.
    """

    at: int
    status: Status
    problems: list[Said]
    notes: list[Said]
    topics: list[TopicFigures]
    shards: int | None
    api: ApiPart | None
    replay: Replayed | None
    history: list[Act]
    """The latest acts of operators, the newest one first."""


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A moment on the lines of the page; its fields are those of `Picture`, in short. What is not known is None."""

    at: int
    published: float | None
    applied: float | None
    lag: int | None
    age: float | None
    requests: float | None
    refused: float | None
    failed: float | None
    p50: float | None
    p99: float | None
    memory: int | None


def picture(
    found: Observation,
    before: tuple[float, Totals] | None,
    replay: Replayed | None,
    acts: list[Act],
) -> Picture:
    """Returns the picture of an observation. `before` is when another one was made, in s, and its `totals`."""
    problems, notes = status.judged(found)
    record = found.redis.record if found.redis else None
    return Picture(
        at=int(found.at),
        status=status.of(found),
        problems=[say(it) for it in problems],
        notes=[say(it) for it in notes],
        topics=_topics(found, before),
        shards=len(record.copies) if record else None,
        api=found.api,
        replay=replay,
        history=acts,
    )


def totals(found: Observation) -> Totals | None:
    """Returns the sums of the end offsets and of the positions of each topic; None if they are not known."""
    if found.redis is None or found.kafka is None:
        return None
    sums: dict[str, tuple[int, int]] = {topic.name: (0, 0) for topic in found.kafka.topics}
    for partition, (first, last) in found.kafka.ranges.items():
        position = found.redis.position(partition)
        published, applied = sums[partition.topic]
        sums[partition.topic] = published + last, applied + (position.offset if position else first)
    return sums


def point(shown: Picture) -> Point:
    """Returns what the lines show of a picture."""
    api = shown.api or ApiPart()
    return Point(
        at=shown.at,
        published=_sum([topic.published for topic in shown.topics]),
        applied=_sum([topic.applied for topic in shown.topics]),
        lag=shown.status.lag,
        age=shown.status.freshness,
        requests=api.requests,
        refused=_rate(api, "4"),
        failed=_rate(api, "5"),
        p50=api.p50,
        p99=api.p99,
        memory=shown.status.redis_used_memory,
    )


def _topics(found: Observation, before: tuple[float, Totals] | None) -> list[TopicFigures]:
    if found.kafka is None:
        return []
    now = totals(found) or {}
    seconds = found.at / 1000 - before[0] if before else 0.0
    shown = []
    for topic in found.kafka.topics:
        rates: list[float | None] = [None, None]
        if before and seconds > 0 and topic.name in now and topic.name in before[1]:
            pairs = zip(now[topic.name], before[1][topic.name], strict=True)
            rates = [max(0.0, (after - earlier) / seconds) for after, earlier in pairs]
        problem = "" if topic.exists and topic.allowed else "missing" if topic.allowed else "not allowed"
        shown.append(TopicFigures(topic.name, len(topic.partitions), problem, *rates))
    return shown


def _rate(api: ApiPart, first: str) -> float | None:
    """Returns the rate of the answers whose status begins with this digit."""
    if api.requests is None:
        return None
    return sum(rate for answer, rate in api.answers.items() if answer.startswith(first))


def _sum(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
