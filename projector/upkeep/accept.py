"""Accepts bad records: from then on they do not count against the limits that halt a line.

This holds for the live lines, also when they read everything again after Redis was emptied, and for rebuilds. It is
stored in Kafka (`projector/accepted.py`); the dead letters in Redis get a copy of it, for operators to read.
"""

import time
from collections.abc import Mapping

from projector.accepted import AcceptedRecords
from projector.errors import Refused
from projector.kafka.client import topic
from projector.kafka.reader import Reader, open_reader
from projector.offsets import OffsetRange, Ranges
from projector.record import Partition
from projector.redis.store import Store
from projector.upkeep import redrive
from projector.upkeep.redrive import Filter, all_dead_letters
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings


async def find(store: Store, settings: ProjectorSettings, filtered: Filter) -> list[OffsetRange]:
    """Returns the dead letters that match. Raises Unavailable, or Refused if there are none."""
    if filtered.topic is not None:
        _check_topic(settings, filtered.topic)
    found = [
        OffsetRange(Partition(dead_letter.topic, dead_letter.partition), (dead_letter.offset, dead_letter.offset))
        for dead_letter in await redrive.choose(store, (), filtered)
    ]
    if not found:
        raise Refused(
            "No dead letter matches. `dead-letters list` shows all of them. The records that have halted a line are "
            "not stored as dead letters yet: name the range that its message shows."
        )
    return found


async def accept(store: Store, settings: ProjectorSettings, offsets: Mapping[Partition, Ranges], note: str) -> int:
    """Accept these records, with the operator's note. Repeating it is harmless. Returns how many of them are stored as
    dead letters.

    Raises Unavailable, or Refused if a record does not exist, or if Kafka cannot store so many separate ranges.
    """
    async with open_reader(settings, KINDS) as reader:
        await _check_existing(reader, settings, offsets)
    now = int(time.time() * 1000)
    await AcceptedRecords(settings, store).change(offsets, lambda accepted, ranges: accepted.accept(ranges, now, note))
    return await _mark(store, offsets, note, now)


def _check_topic(settings: ProjectorSettings, name: str) -> None:
    topics = [topic(settings, kind) for kind in KINDS]
    if name not in topics:
        raise Refused(f"{name} is not a topic of Leadview. Its topics are {', '.join(topics)}.")


async def _check_existing(reader: Reader, settings: ProjectorSettings, offsets: Mapping[Partition, Ranges]) -> None:
    existing = await reader.partitions()
    for partition in offsets:
        _check_topic(settings, partition.topic)
        if partition not in existing:
            raise Refused(f"The topic {partition.topic} has no partition {partition.partition}.")
    for partition, (_, end) in (await reader.range(list(offsets))).items():
        if (last := offsets[partition].span[1]) >= end:
            raise Refused(
                f"{partition.topic}:{partition.partition}:{last} does not exist: the partition has "
                + (f"no records after the offset {end - 1}." if end else "no records.")
            )


async def _mark(store: Store, offsets: Mapping[Partition, Ranges], note: str, now: int) -> int:
    """Store with the dead letters that they are accepted. Returns how many of these are stored."""
    accepted = [
        dead_letter.accept(note, now)
        for dead_letter in await all_dead_letters(store)
        if dead_letter.offset in offsets.get(Partition(dead_letter.topic, dead_letter.partition), Ranges())
    ]
    return await redrive.replace(store, accepted)
