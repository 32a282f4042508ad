"""Audits Redis continuously, in small steps, within a small share of a core (`verify --continuous`).

One turn reads some records of one partition and asks Redis for their entities. Nothing else has to be known:

- A stored value names the newest event that was applied. If it is this record, the value must follow from it.
- If it is an older event, or nothing is stored, a write was lost.
- If it is a newer event, this record says nothing about the value. The record of that event does.

The next turn reads some names in Redis, which finds what is superfluous. A stored value names its record. If Kafka does
not have this record any more, a newer one has taken its place, or the entity was deleted. A newer one is applied soon,
so the value changes. Of the values that do not change, the topics are searched for the message keys.

What differs is read again several times. It counts only if nothing was written to it meanwhile, and if nothing in it
comes from an event that the positions do not cover yet.
"""

import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from operate.verify.superfluous import superfluous
from projector.ledger import copies
from projector.record import Partition, Record
from projector.redis.store import Store
from projector.reference import Entity, Reference
from projector.stop import Stop
from projector.verify.report import Difference
from projector.verify.stored import Stored, contradicts, hashes, read
from projector.verify.topics import Topics, open_topics, settle
from schemas import names
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings

SHARE = 0.01
"""The share of a core that the audit uses at most."""
_RECORDS = 200
_CHECKS = 5
_CHECK_SECONDS = 1.0
_LEAST_PAUSE_SECONDS = 0.2


class Turn(NamedTuple):
    """What one turn has found in a topic. `passed` says whether it was the last one of a pass over a partition."""

    topic: str
    checked: int
    differences: list[Difference]
    passed: bool = False


class Budget:
    """Keeps the time of this thread on the processor below a share, whatever each turn costs."""

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._began, self._used = time.monotonic(), time.thread_time()

    def pause(self) -> float:
        """Returns the seconds to wait until the next turn."""
        now, used = time.monotonic(), time.thread_time()
        # So long that what this turn has used is the share of all the time since the turn before it.
        seconds = max(0.0, (used - self._used) / self._share - (now - self._began))
        self._began, self._used = now + seconds, used
        return max(_LEAST_PAUSE_SECONDS, seconds)


async def audit(store: Store, settings: ProjectorSettings, stop: Stop) -> AsyncIterator[Turn]:
    """Yields the results of each turn, until `stop` is set. It passes over all records and all names again and again.

    Raises Refused if Redis is empty or a topic is missing, and Unavailable.
    """
    budget = Budget()
    async with open_topics(store, settings, KINDS) as topics:
        of_records, of_names = _over_records(store, topics, stop), _over_names(store, topics, stop)
        async with aclosing(of_records), aclosing(of_names):
            while not stop.is_set():
                for work in (of_records, of_names):
                    for turn in await anext(work):
                        yield turn
                    await stop.sleep(budget.pause())
                    if stop.is_set():
                        return


async def _over_records(store: Store, topics: Topics, stop: Stop) -> AsyncGenerator[list[Turn], None]:
    """Passes over the records of all partitions, each from an offset chosen at random, so that a restart does not
    always begin with the same records.
    """
    while True:
        await topics.reader.existing_partitions()
        partitions = [partition for partition, (first, last) in (await topics.look()).items() if first < last]
        for partition in random.sample(partitions, len(partitions)):
            async for turn in _pass(store, topics, partition, stop):
                yield [turn]
        if not partitions:
            yield []


async def _over_names(store: Store, topics: Topics, stop: Stop) -> AsyncGenerator[list[Turn], None]:
    """Passes over all names in Redis."""
    while True:
        async for some in store.scan(names.ALL):
            found = await superfluous(store, topics, some, stop)
            of_topics = {difference.kind for difference in found}
            yield [Turn(topic, 0, [it for it in found if it.kind == topic]) for topic in sorted(of_topics)]
        yield []


async def _pass(store: Store, topics: Topics, partition: Partition, stop: Stop) -> AsyncIterator[Turn]:
    first, last = (await topics.look([partition]))[partition]
    start = random.randrange(first, last) if first < last else first  # noqa: S311 - nothing secret
    for offsets in ((start, last), (first, start)):
        async for records in topics.reader.read({partition: offsets}, most=_RECORDS):
            yield await _turn(store, topics, partition.topic, records, stop)
    yield Turn(partition.topic, 0, [], passed=True)


async def _turn(store: Store, topics: Topics, topic: str, records: Sequence[Record], stop: Stop) -> Turn:
    expected = Reference(hashes)
    for record in records:
        expected.add(record)
    generation = (await copies.require(store)).state.live
    entities = list(expected.newest)
    first = await read(store, generation, entities, expected)

    async def look(suspects: dict[Entity, Stored]) -> dict[Entity, Stored]:
        """Returns those that still differ, and that nothing was written to since they were read before."""
        if stop.is_set() or (await copies.require(store)).state.live != generation:
            return {}
        await topics.look()
        found = await read(store, generation, list(suspects), expected)
        await topics.look_again()  # whatever was written is before these offsets
        return {
            entity: stored
            for entity, stored in found.items()
            if stored == suspects[entity]
            and not _is_changing(entity, stored, topics)
            and contradicts(entity, stored, expected)
        }

    suspects = {entity: stored for entity, stored in first.items() if contradicts(entity, stored, expected)}
    left = await settle(suspects, look, rounds=_CHECKS, pause=_CHECK_SECONDS, sleep=stop.sleep)
    return Turn(
        topic,
        len(entities),
        [
            Difference(kind.topic, organization_id, id_, contradicts((kind, organization_id, id_), stored, expected))
            for (kind, organization_id, id_), stored in left.items()
            if not stop.is_set()
        ],
    )


def _is_changing(entity: Entity, stored: Stored, topics: Topics) -> bool:
    """Returns whether a value has a newer event than was covered, or whether its organization has a job due."""
    ends = {partition: end for partition, (_, end) in topics.covered.items()}
    return stored.waits_for_job or topics.is_newer(entity, stored, ends)
