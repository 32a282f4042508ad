"""What became of the records of an entity. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from projector.change import version_of
from projector.commands.show_view import utc
from projector.console.answer import Event, State
from projector.dead_letter import DeadLetter
from projector.errors import BadRecord
from projector.interpret import interpret
from projector.record import Partition, Record
from schemas.layouts import Head


class Applied(msgspec.Struct, frozen=True):
    """How far the projection is: the next offset of each partition, the dead letters by their coordinates, and the head
    of what is stored of the entity; None if nothing is.
    """

    positions: Mapping[Partition, int]
    dead_letters: Mapping[str, DeadLetter]
    head: Head | None


def event(record: Record, applied: Applied, before: int | None = None) -> Event:
    """Returns what became of a record. `before` is the highest version that came before it in its partition, 0 if there
    is none; None if it is not known."""
    place = f"{record.topic}:{record.partition}:{record.offset}"
    version, time = _read(record)
    outcome, state = _outcome(record, version, place, applied, before)
    return Event(place, version, utc(time), outcome, state)


def events(records: Sequence[Record], applied: Applied, *, whole: bool = False) -> list[Event]:
    """Returns what became of these records of an entity, the newest first. `whole`: there were no others."""
    before: dict[int, int | None] = {}
    highest: dict[tuple[str, int], int] = {}
    for record in sorted(records, key=lambda record: record.offset):
        at = record.topic, record.partition
        version = _good_version(record)
        known = highest.get(at, 0)
        before[id(record)] = known if whole or known >= (version or 0) else None
        highest[at] = max(known, version or 0)
    newest_first = sorted(records, key=lambda record: (record.timestamp, record.offset), reverse=True)
    return [event(record, applied, before[id(record)]) for record in newest_first]


def _good_version(record: Record) -> int | None:
    """Returns the version of a record; None if it is bad or a tombstone."""
    try:
        interpret(record)
    except BadRecord:
        return None
    return version_of(record)


def _read(record: Record) -> tuple[int | None, int]:
    """Returns the version and the time of the event, in ms since 1970; of a bad one those that can be read."""
    try:
        _, time = interpret(record)
    except BadRecord as error:
        return error.version, record.timestamp
    return version_of(record), time


def _outcome(
    record: Record, version: int | None, place: str, applied: Applied, before: int | None
) -> tuple[str, State]:
    partition = Partition(record.topic, record.partition)
    position = applied.positions.get(partition, 0)
    if record.offset >= position:
        before = record.offset - position
        return f"waits to be applied: {before:,} offsets of its partition come before it", "waits"
    if letter := applied.dead_letters.get(place):
        known = " (an operator has accepted it)" if letter.accepted else ""
        return f"is bad, and became a dead letter{known}: {letter.reason}", "wrong"
    try:
        interpret(record)
    except BadRecord as error:
        return f"is bad: {error.reason}. It has no dead letter any more", "wrong"
    return _compared(record, version, applied.head, before)


def _compared(record: Record, version: int | None, head: Head | None, before: int | None) -> tuple[str, State]:
    """Returns what became of a good record that has been read."""
    if head is None:
        return "was read, and nothing is stored of it: its organization is deleted, or Redis has lost it", "wrong"
    if (head.partition, head.offset) == (record.partition, record.offset):
        return "was applied, and is what readers see" if head.live else "was applied: it deleted the entity", "well"
    if version is None:
        return "a delete (tombstone) that a later event has replaced", "plain"
    shown = f"version {head.version} at {record.topic}:{head.partition}:{head.offset}"
    if head.partition == record.partition and record.offset > head.offset:
        than = "of the same version as" if version == head.version else "older than"
        return f"was ignored: it is {than} {shown}, which was there before it", "wrong"
    if version <= head.version and before is not None:
        if before >= version:
            return f"was ignored: version {before} was there before it", "plain"
        return f"was replaced since by version {head.version}", "plain"
    if version <= head.version:
        return f"was replaced since by version {head.version}, or ignored as older", "plain"
    return f"is not shown, although it is newer than {shown}: run `verify`", "wrong"
