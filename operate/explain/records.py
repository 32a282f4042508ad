"""The records of an entity in Kafka, and what became of each of them. A limited part of the topics is read."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from projector.change import read, version_of
from projector.dead_letter import DeadLetter
from projector.errors import BadRecord, Unavailable
from projector.interpret import interpret
from projector.kafka.client import topic
from projector.kafka.reader import open_reader
from projector.record import MAGIC, Partition, Record, unframed
from schemas import names
from schemas.events import Deleted
from schemas.layouts import Head
from schemas.resources import KINDS, Kind
from schemas.settings import ProjectorSettings

NEWEST = 2_000
"""The number of the newest offsets of each partition that are looked through for an entity."""
_SECONDS = 4.0
_FETCH_BYTES = 1_048_576
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


class Published(msgspec.Struct, frozen=True):
    """The records that were found, and whether all of the newest ones could be looked through in time. `whole`: they
    are all that were ever published. `unread` is how many offsets are behind open transactions, where nobody can read.
    `from_first`: each partition was read from its first record on, not only its newest offsets.
    """

    records: list[Record]
    all: bool
    whole: bool = False
    unread: int = 0
    from_first: bool = False


class Projected(msgspec.Struct, frozen=True):
    """How far the projection is: the next offset of each partition, the dead letters by their coordinates, and the head
    of what is stored of the entity; None if nothing is.
    """

    positions: Mapping[Partition, int]
    dead_letters: Mapping[str, DeadLetter]
    head: Head | None


Fate = Literal[
    "waits",
    "parked",
    "bad",
    "shown",
    "deleted",
    "outranked",
    "older",
    "replaced",
    "replaced or older",
    "not shown",
    "not stored",
    "tombstone ignored",
]
"""What became of a record.

It waits, or it is bad: then it is parked as a dead letter, or has none any more. Or it is good: readers see it (or that
it deleted the entity), or it was ignored, because what readers see now outranks it or because a version that was
replaced since was newer, or it was replaced itself; sometimes it is not known which of the last two. A
tombstone of another partition is ignored if its time is before that of what readers see. It should never
happen that a record is not shown although it is newer, or that nothing is stored of its entity.
"""


class Told(msgspec.Struct, frozen=True):
    """A record, by its coordinates, and what became of it. `version` is None for a tombstone, and if it cannot be read;
    `time` is that of the event, in milliseconds since 1970.

    `before` is how many offsets come before it if it waits, or the version that was there before it if it was older.
    `shown` is what readers see, `reason` why it is bad, and `accepted` whether an operator has accepted it. `data`: it
    says more of its entity than that it is deleted, or is bad and may do so.
    """

    record: str
    version: int | None
    time: int
    fate: Fate
    before: int = 0
    shown: Head | None = None
    reason: str = ""
    accepted: bool = False
    data: bool = True


class BadField(msgspec.Struct, frozen=True):
    """The field that makes a record bad: which one, what was expected, and its value, which may be personal; None if it
    has none.
    """

    path: str
    expected: str
    value: bytes | None


async def published(
    settings: ProjectorSettings, kinds: Sequence[Kind], message_key: bytes, *, from_first: bool = False
) -> Published:
    """Look for records with this message key: among the newest offsets, for some seconds; `from_first`, among all
    records that Kafka still holds, however long it takes. Raises Unavailable.
    """
    found: list[Record] = []
    try:
        async with (
            asyncio.timeout(None if from_first else _SECONDS),
            open_reader(settings, kinds, _FETCH_BYTES) as reader,
        ):
            ends = await reader.end_offsets(await reader.partitions())
            ranges = await reader.range(list(ends))
            unread = sum(max(0, end - ranges[at][1]) for at, end in ends.items())
            newest = {at: (max(first, last - NEWEST), last) for at, (first, last) in ranges.items()}
            offsets = 0
            async for records in reader.read(ranges if from_first else newest):
                offsets += sum(record.offsets for record in records)
                found += [record for record in records if record.key == message_key]
    except TimeoutError:
        return Published(found, all=False)
    # Each offset from 0 on had a record: compaction has removed none.
    whole = offsets == sum(last for _, last in ranges.values()) and not unread
    return Published(found, all=True, whole=whole, unread=unread, from_first=from_first)


async def at(
    settings: ProjectorSettings, partition: Partition, offset: int
) -> tuple[tuple[int, int, int] | None, Record | None]:
    """Read the record at these coordinates. Returns the first offset, the readable end and the end offset of the
    partition, None if there is no such partition; and the record, None if it is not there. Raises Unavailable.
    """
    kinds = [kind for kind in KINDS if topic(settings, kind) == partition.topic]
    if not kinds:
        return None, None
    try:
        async with asyncio.timeout(_SECONDS), open_reader(settings, kinds, _FETCH_BYTES) as reader:
            if partition not in await reader.partitions():
                return None, None
            [end] = (await reader.end_offsets([partition])).values()
            [(first, last)] = (await reader.range([partition])).values()
            span = first, last, max(last, end)
            if first <= offset < last:
                async for records in reader.read({partition: (offset, offset + 1)}, 1):
                    for record in records:
                        if record.offset <= offset < record.next_offset:
                            return span, record
            return span, None
    except TimeoutError:
        raise Unavailable(f"Kafka does not answer within {_SECONDS:g} s") from None


def told(records: Sequence[Record], projected: Projected, *, whole: bool = False) -> list[Told]:
    """Returns what became of these records of an entity, the newest first. `whole`: there were no others. Pure."""
    before: dict[int, int | None] = {}
    highest: dict[tuple[str, int], int] = {}
    for record in sorted(records, key=lambda record: record.offset):
        at = record.topic, record.partition
        version = None if bad(record) else version_of(record)
        known = highest.get(at, 0)
        before[id(record)] = known if whole or known >= (version or 0) else None
        highest[at] = max(known, version or 0)
    newest_first = sorted(records, key=lambda record: (record.timestamp, record.offset), reverse=True)
    return [_told(record, projected, before[id(record)]) for record in newest_first]


def bad(record: Record) -> BadRecord | None:
    """Returns what makes a record bad; None if it is good."""
    try:
        interpret(record)
    except BadRecord as error:
        return error
    return None


def bad_field(record: Record) -> BadField | None:
    """Returns the field that makes a record bad; None if it is good, or bad as a whole."""
    error = bad(record)
    if error is None or not error.fault.path.startswith("$."):
        return None
    fault = error.fault
    try:
        value = record.value or b""
        # Not orjson: what is wrong with a field may be an integer of more than 64 bits, and the answer quotes it.
        found: Any = msgspec.json.decode(unframed(value) if value[:1] == bytes([MAGIC]) else value)
        for step in _STEP.finditer(fault.path):
            found = found[step[1]] if step[1] else found[int(step[2])]
    except (msgspec.DecodeError, LookupError, TypeError):
        return BadField(fault.path, fault.expected, None)
    return BadField(fault.path, fault.expected, msgspec.json.encode(found))


def _told(record: Record, projected: Projected, before: int | None) -> Told:
    """`before` is the highest version that came before it in its partition, 0 if there is none; None if it is not
    known."""
    try:
        version, time = version_of(record), interpret(record)[1]
        reason, data = "", not isinstance(read(record).entity, Deleted | None)
    except BadRecord as error:
        version, time, reason, data = error.version, record.timestamp, error.reason, True
    place = names.dead_letter(record.topic, record.partition, record.offset)
    told = partial(Told, place, version, time, data=data)
    position = projected.positions.get(Partition(record.topic, record.partition), 0)
    if record.offset >= position:
        return told("waits", before=record.offset - position)
    if letter := projected.dead_letters.get(place):
        return told("parked", reason=letter.reason, accepted=letter.accepted)
    if reason:
        return told("bad", reason=reason)
    if projected.head is None:
        return told("not stored")
    fate = _compared(record, version, projected.head, before)
    return told(fate, before=before or 0, shown=projected.head)


def _compared(record: Record, version: int | None, head: Head, before: int | None) -> Fate:
    """Returns what became of a good record that has been read."""
    if (head.partition, head.offset) == (record.partition, record.offset):
        return "shown" if head.live else "deleted"
    if version is None:
        of_one = (head.partition, head.history) == (record.partition, record.history)
        return "replaced" if of_one else "tombstone ignored"
    if head.partition == record.partition and record.offset > head.offset:
        return "outranked"
    if version > head.version:
        return "not shown"
    if before is None:
        return "replaced or older"
    return "older" if before >= version else "replaced"
