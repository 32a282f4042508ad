"""Finds records in Kafka for the box: one by its coordinates, or the newest ones of an entity. Reads a limited part."""

import asyncio
from collections.abc import Sequence

import msgspec

from projector.errors import Unavailable
from projector.kafka.client import topic
from projector.kafka.reader import open_reader
from projector.record import Partition, Record
from schemas.resources import KINDS, Kind
from schemas.settings import ProjectorSettings

NEWEST = 2_000
"""So many of the newest offsets of each partition are looked through for an entity."""
_SECONDS = 4.0
_FETCH_BYTES = 1_048_576


class Found(msgspec.Struct, frozen=True):
    """The records that were found, and whether all of the newest ones could be looked through in time. `whole`: they
    are all that were ever published.
    """

    records: list[Record]
    all: bool
    whole: bool = False


class Place(msgspec.Struct, frozen=True):
    """What is at some coordinates. `span` are the first offset and the end offset of the partition; None if there is no
    such partition. `record` is None if the record is not there.
    """

    span: tuple[int, int] | None
    record: Record | None


async def newest(settings: ProjectorSettings, kinds: Sequence[Kind], ending: bytes) -> Found:
    """Look for the newest records whose message key ends like this. Raises Unavailable."""
    found: list[Record] = []
    try:
        async with asyncio.timeout(_SECONDS), open_reader(settings, kinds, _FETCH_BYTES) as reader:
            ranges = await reader.range(await reader.partitions())
            newest = {at: (max(first, last - NEWEST), last) for at, (first, last) in ranges.items()}
            read = 0
            async for records in reader.read(newest):
                read += sum(record.offsets for record in records)
                found += [record for record in records if (record.key or b"").endswith(ending)]
    except TimeoutError:
        return Found(found, all=False)
    # Each offset from 0 on had a record: compaction has removed none.
    return Found(found, all=True, whole=read == sum(last for _, last in ranges.values()))


async def at(settings: ProjectorSettings, partition: Partition, offset: int) -> Place:
    """Read the record at these coordinates. Raises Unavailable."""
    kinds = [kind for kind in KINDS if topic(settings, kind) == partition.topic]
    if not kinds:
        return Place(None, None)
    try:
        async with asyncio.timeout(_SECONDS), open_reader(settings, kinds, _FETCH_BYTES) as reader:
            if partition not in await reader.partitions():
                return Place(None, None)
            [span] = (await reader.range([partition])).values()
            if span[0] <= offset < span[1]:
                async for records in reader.read({partition: (offset, offset + 1)}, 1):
                    for record in records:
                        if record.offset <= offset < record.next_offset:
                            return Place(span, record)
            return Place(span, None)
    except TimeoutError:
        raise Unavailable(f"Kafka does not answer within {_SECONDS:g} s") from None
