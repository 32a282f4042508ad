"""Dead letters: records that could not be applied, kept until an operator redrives or drops them.

A dead letter holds coordinates, key and reason, but never the payload: a redrive reads the record from Kafka again.
Those that an operator accepts do not count against the limits that halt a line. This holds for the live lines, also
when they read everything again after Redis was emptied, and for rebuilds: it is stored in Kafka
(`projector/kafka/accepted.py`), and the dead letters in Redis get a copy of it, for operators to read.

Every projector deletes those that nobody needs any more, because a newer event of the same entity was applied since:
the stored value of an entity names that event, so the dead letters are compared with these values. Nothing is read from
Kafka for that.
"""

import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple

import msgspec

from projector.dead_letter import DeadLetter
from projector.errors import BadRecord, Refused
from projector.interpret import in_turns
from projector.kafka.accepted import Accepted, AcceptedRecords
from projector.kafka.client import topic
from projector.kafka.reader import Reader, open_reader
from projector.ledger import copies, late_versions
from projector.ledger.writers import Writing
from projector.line.apply import apply
from projector.offsets import OffsetRange, Ranges, by_partition
from projector.reason import DeadLetterReason
from projector.record import Partition, Record
from projector.redis.scripts import LetterRow, delete_dead_letters, replace_dead_letters
from projector.redis.store import SLICE, Store
from projector.stop import Stop, repeat
from schemas import names
from schemas.control import GenerationId
from schemas.faults import Fault
from schemas.fields import UUID_AS_0, are_lower_uuids
from schemas.layouts import HEAD, Head, read_head
from schemas.resources import ACCESS_KINDS, API_KEY, KINDS, ORGANIZATION, RESOURCES, Kind, Resource
from schemas.settings import ProjectorSettings

_MAX_GAP = 5000
_MAX_GROUP = 1000
_LOOK_SECONDS = 10.0
_AT_ONCE = 1_000
"""The number of dead letters that Redis compares with a pattern in a call, in less than half a millisecond."""
_MANY = 10_000
"""With more dead letters, not every observation looks through all of them."""
MOST_TO_JUDGE = 1_000
_SHARE = 0.02
"""The share of the time that a look at very many dead letters may take."""

logger = logging.getLogger(__name__)


class Redriven(StrEnum):
    """The outcome of redriving one dead letter."""

    APPLIED = "applied"
    STALE = "stale: a newer event was already applied"
    GONE = "gone from the topic: compaction has removed it, so a newer record was published"
    STILL_BAD = "still bad"


async def all_dead_letters(store: Store) -> list[DeadLetter]:
    """Read all dead letters, sorted by topic, partition and offset. Raises Unavailable."""
    values = await store.ask_one(b"HVALS", names.DEAD_LETTERS)
    dead_letters = [msgspec.json.decode(value, type=DeadLetter) for value in values]
    return sorted(dead_letters, key=lambda dead_letter: (dead_letter.topic, dead_letter.partition, dead_letter.offset))


class OfAccess:
    """Finds the dead letters of organizations and API keys that nobody has accepted, however many others there are. The
    changes in their records have not taken effect.

    Redis looks through the names of all dead letters for that, a thousand at a time. If there are more than `_MANY`, it
    does so less often.
    """

    def __init__(self, store: Store, settings: ProjectorSettings) -> None:
        self._store = store
        self._patterns = [f"{topic(settings, kind)}:*".encode() for kind in ACCESS_KINDS]
        self._letters: list[DeadLetter] = []
        self._look_at = -inf

    async def look(self, count: int) -> list[DeadLetter]:
        """Returns them, perhaps those of an earlier look. `count` is how many dead letters there are. Raises
        Unavailable.
        """
        began = time.monotonic()
        if began < self._look_at:
            return self._letters
        slices = [in_slices(self._store, pattern, _AT_ONCE) for pattern in self._patterns if count]
        letters = {letter.field: letter for some in slices async for found in some for letter in found}
        self._letters = [letter for letter in letters.values() if not letter.accepted]
        ended = time.monotonic()
        self._look_at = ended + (ended - began) / _SHARE if count > _MANY else -inf
        return self._letters


class NewestLetters(NamedTuple):
    """The dead letters of documents whose newest record is the bad one, as far as that is known: `unknown` others were
    not looked at.
    """

    letters: list[DeadLetter]
    unknown: int


async def of_newest(store: Store, settings: ProjectorSettings, generation: GenerationId, count: int) -> NewestLetters:
    """Returns those of documents that nobody has accepted, and whose entity shows no later record in this generation:
    the newest record of the entity is bad. About `MOST_TO_JUDGE` dead letters are looked at.

    `count` is how many dead letters there are. Raises Unavailable.
    """
    if not count:
        return NewestLetters([], 0)
    kinds: dict[str, Kind] = {topic(settings, kind): kind for kind in RESOURCES}
    seen, judged, newest, unknown = set[str](), set[str](), list[DeadLetter](), 0
    async for letters in in_slices(store):
        seen.update(letter.field for letter in letters)
        waiting = [letter for letter in letters if not letter.accepted and letter.field not in judged]
        judged.update(letter.field for letter in waiting)
        newest += [
            letter
            for letter, value in await _with_heads(store, waiting, kinds, generation)
            if len(value) < HEAD or is_newest(letter, read_head(value))
        ]
        if len(judged) >= MOST_TO_JUDGE:
            unknown = max(0, count - len(seen))
            break
    return NewestLetters(sorted(newest, key=lambda letter: (letter.topic, letter.partition, letter.offset)), unknown)


async def _with_heads(
    store: Store, letters: Sequence[DeadLetter], kinds: dict[str, Kind], generation: GenerationId
) -> list[tuple[DeadLetter, bytes]]:
    """Returns the dead letters whose message key names an entity, each with the head of its value."""
    found = [(letter, name) for letter in letters if (name := _value_of(letter, kinds, generation))]
    values = await store.ask([(b"GETRANGE", name, 0, HEAD - 1) for _, name in found]) if found else []
    return [(letter, value) for (letter, _), value in zip(found, values, strict=True)]


class Filter(msgspec.Struct, frozen=True):
    """Which dead letters are meant: those of a topic, those of an organization, and those whose reason contains a text.

    What is None matches every dead letter.
    """

    topic: str | None = None
    organization: str | None = None
    reason: str | None = None

    def matches(self, letter: DeadLetter) -> bool:
        """Returns whether a dead letter is one of these."""
        return (
            self.topic in (None, letter.topic)
            and self.organization in (None, letter.organization_id)
            and (self.reason or "") in letter.reason
        )


async def choose(store: Store, named: Sequence[OffsetRange], filtered: Filter) -> list[DeadLetter]:
    """Read the dead letters in these ranges, or those that match the filter if there are no ranges.

    Raises Unavailable, or Refused if a range contains no dead letter.
    """
    chosen = await present(store, named, filtered)
    check_named(chosen, named)
    return chosen


async def present(store: Store, named: Sequence[OffsetRange], filtered: Filter) -> list[DeadLetter]:
    """Read the same dead letters, as far as they are stored. Raises Unavailable."""
    dead_letters = await all_dead_letters(store)
    if not named:
        return [letter for letter in dead_letters if filtered.matches(letter)]
    chosen = by_partition(named)
    return [letter for letter in dead_letters if _is_in(letter, chosen)]


def check_named(dead_letters: Sequence[DeadLetter], named: Sequence[OffsetRange]) -> None:
    """Raises Refused if a range contains none of these dead letters."""
    offsets = {each: by_partition([each]) for each in named}
    if unknown := [str(each) for each in named if not any(_is_in(letter, offsets[each]) for letter in dead_letters)]:
        raise Refused(DeadLetterReason("no_dead_letter", others=tuple(unknown)))


def _place(letter: DeadLetter) -> OffsetRange:
    return OffsetRange(Partition(letter.topic, letter.partition), (letter.offset, letter.offset))


def _is_in(letter: DeadLetter, offsets: Mapping[Partition, Ranges]) -> bool:
    return letter.offset in offsets.get(Partition(letter.topic, letter.partition), Ranges())


async def drop(store: Store, settings: ProjectorSettings, named: Sequence[OffsetRange], filtered: Filter) -> int:
    """Delete the dead letters in these ranges, or matching, as in `choose`. Returns how many were still stored.

    Those of accepted records are not stored again, even after Redis was emptied. Raises Refused or Unavailable.
    """
    dead_letters = await choose(store, named, filtered)
    accepted = {(letter.topic, letter.partition) for letter in dead_letters if letter.accepted}
    offsets = by_partition(named or [_place(letter) for letter in dead_letters])
    book = AcceptedRecords(settings, store)
    await book.change({at: ranges for at, ranges in offsets.items() if at in accepted}, Accepted.drop)
    return await delete(store, dead_letters)


async def matching(store: Store, settings: ProjectorSettings, filtered: Filter) -> list[OffsetRange]:
    """Returns where the dead letters are that match. Raises Unavailable, or Refused if there are none."""
    if filtered.topic is not None:
        _check_topic(settings, filtered.topic)
    found = [_place(letter) for letter in await choose(store, (), filtered)]
    if not found:
        raise Refused(DeadLetterReason("no_dead_letter_matches"))
    return found


async def accept(store: Store, settings: ProjectorSettings, offsets: Mapping[Partition, Ranges], note: str) -> int:
    """Accept these records, with the operator's note. Repeating it is harmless. Returns how many of them are stored as
    dead letters.

    Raises Unavailable, or Refused if a record does not exist, or if Kafka cannot store that many separate ranges.
    """
    async with open_reader(settings, KINDS) as reader:
        await _check_existing(reader, settings, offsets)
    now = int(time.time() * 1000)
    await AcceptedRecords(settings, store).change(offsets, lambda accepted, ranges: accepted.accept(ranges, now, note))
    return await replace(
        store, [letter.accept(note, now) for letter in await all_dead_letters(store) if _is_in(letter, offsets)]
    )


def _check_topic(settings: ProjectorSettings, name: str) -> None:
    topics = [topic(settings, kind) for kind in KINDS]
    if name not in topics:
        raise Refused(DeadLetterReason("no_topic", name, tuple(topics)))


async def _check_existing(reader: Reader, settings: ProjectorSettings, offsets: Mapping[Partition, Ranges]) -> None:
    existing = await reader.partitions()
    for partition in offsets:
        _check_topic(settings, partition.topic)
        if partition not in existing:
            raise Refused(DeadLetterReason("no_partition", partition.topic, number=partition.partition))
    for partition, end in (await reader.end_offsets(list(offsets))).items():
        if (last := offsets[partition].span[1]) >= end:
            raise Refused(
                DeadLetterReason(
                    "no_offset" if end else "no_records", names.dead_letter(*partition, last), number=end - 1
                )
            )


async def in_slices(store: Store, pattern: bytes = b"*", count: int = SLICE) -> AsyncIterator[list[DeadLetter]]:
    """Yields dead letters, some at a time: all, or those whose coordinates match a pattern. Redis looks at about
    `count` of them in a call. One may come twice. Raises Unavailable.
    """
    cursor = b"0"
    while True:
        words = (b"HSCAN", names.DEAD_LETTERS, cursor, b"MATCH", pattern, b"COUNT", count)
        cursor, found = await store.ask_one(*words)
        if found:
            yield [msgspec.json.decode(value, type=DeadLetter) for value in found[1::2]]
        if cursor == b"0":
            return


async def park(store: Store, dead_letters: Iterable[DeadLetter]) -> None:
    """Store dead letters. The line stores its own with the checkpoint. Raises Unavailable."""
    values = [word for letter in dead_letters for word in (letter.field, letter.stored)]
    if values:
        await store.ask_one(b"HSET", names.DEAD_LETTERS, *values)


async def delete(store: Store, dead_letters: Iterable[DeadLetter]) -> int:
    """Delete these dead letters, unless others with the same coordinates have taken their place: of a topic that was
    deleted and created again. Returns how many were deleted. Raises Unavailable.
    """
    times = {letter.field: letter.time for letter in dead_letters}
    if not times:
        return 0
    [deleted] = await store.run([delete_dead_letters(dead_letters=names.DEAD_LETTERS, letters=times)])
    return int(deleted)


async def replace(store: Store, dead_letters: Sequence[DeadLetter]) -> int:
    """Store these dead letters in place of those with the same coordinates and time, unless they were deleted
    meanwhile. Returns how many. Raises Unavailable.
    """
    rows = [LetterRow(letter.field, letter.time, letter.stored) for letter in dead_letters]
    commands = [
        replace_dead_letters(dead_letters=names.DEAD_LETTERS, letters=rows[start : start + SLICE])
        for start in range(0, len(rows), SLICE)
    ]
    return sum(await store.run(commands)) if commands else 0


async def redrive(
    writing: Writing, settings: ProjectorSettings, dead_letters: list[DeadLetter]
) -> AsyncIterator[tuple[DeadLetter, Redriven]]:
    """Read these records from Kafka again and apply them, in order. Yields the outcome of each.

    A dead letter is deleted, unless its record is still bad: then it stays, with the new reason. Raises Superseded if
    this program may not write one of the generations, and Unavailable.
    """
    async with open_reader(settings, KINDS) as reader:
        for neighbours in _neighbours(dead_letters):
            async for dead_letter, result, fault in _redrive(writing, reader, neighbours):
                if result is Redriven.STILL_BAD:
                    dead_letter = msgspec.structs.replace(dead_letter, fault=fault)  # noqa: PLW2901
                    await replace(writing.store, [dead_letter])
                else:
                    await delete(writing.store, [dead_letter])
                yield dead_letter, result


def _neighbours(dead_letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Group dead letters of one partition that are close to each other: a single read is faster than one for each."""
    group: list[DeadLetter] = []
    for dead_letter in dead_letters:
        if group:
            last = group[-1]
            is_same_partition = (last.topic, last.partition) == (dead_letter.topic, dead_letter.partition)
            gap = dead_letter.offset - last.next_offset
            if not is_same_partition or not 0 <= gap <= _MAX_GAP or len(group) == _MAX_GROUP:
                yield group
                group = []
        group.append(dead_letter)
    if group:
        yield group


async def _redrive(
    writing: Writing, reader: Reader, dead_letters: list[DeadLetter]
) -> AsyncIterator[tuple[DeadLetter, Redriven, Fault | None]]:
    """Apply the records of these dead letters of one partition, as far as the topic still has them."""
    partition = Partition(dead_letters[0].topic, dead_letters[0].partition)
    [(first, last)] = (await reader.range([partition])).values()
    wanted = max(first, dead_letters[0].offset), min(last, dead_letters[-1].next_offset)
    state = (await copies.require(writing.store)).state
    reader.read_as(state.histories, state.cluster)
    rest = iter(dead_letters)
    dead_letter = next(rest)
    result: Redriven
    fault: Fault | None
    result, fault = Redriven.GONE, None
    async for records in reader.read({partition: wanted}):
        for record in records:
            while dead_letter.next_offset <= record.offset:
                yield dead_letter, result, fault
                dead_letter, result, fault = next(rest), Redriven.GONE, None
            if dead_letter.offset <= record.offset and result is not Redriven.STILL_BAD:
                result, fault = await _apply(writing, record)
    yield dead_letter, result, fault
    for dead_letter in rest:
        yield dead_letter, Redriven.GONE, None


async def _apply(writing: Writing, record: Record) -> tuple[Redriven, Fault | None]:
    try:
        intent, _ = await in_turns(record)
    except BadRecord as error:
        return Redriven.STILL_BAD, error.fault
    documents = isinstance(record.kind, Resource)
    with await writing.sessions.open(documents=documents) as session:
        applied = await apply(writing.store, [intent], session.generations, fence=session)
    return (Redriven.APPLIED if applied.written else Redriven.STALE), None


async def keep_clear(store: Store, settings: ProjectorSettings, stop: Stop) -> None:
    """Delete the dead letters that nobody needs any more, until `stop` is set. Every projector does this."""
    seconds = 0.0

    async def turn() -> None:
        nonlocal seconds
        began = time.monotonic()
        deleted, over = await clear(store, settings), await _clear_late(store)
        seconds = time.monotonic() - began
        if deleted:
            logger.info("dead letters were deleted, because newer events were applied", extra={"dead_letters": deleted})
        if over:
            logger.info("entities whose last record was not their newest have a newer one", extra={"entities": over})

    await repeat("the look for superseded dead letters", turn, stop, lambda: max(_LOOK_SECONDS, seconds / _SHARE))


async def _clear_late(store: Store) -> int:
    record = await copies.read(store)
    return await late_versions.clear(store, record.state.live) if record else 0


async def clear(store: Store, settings: ProjectorSettings) -> int:
    """Delete the dead letters whose entity shows a newer event. Returns how many. Raises Unavailable."""
    record = await copies.read(store)
    if record is None:
        return 0
    kinds = {topic(settings, kind): kind for kind in KINDS}
    deleted = 0
    async for dead_letters in in_slices(store):
        waiting = [letter for letter in dead_letters if not letter.accepted]  # others stay until they are dropped
        deleted += await delete(
            store,
            [
                letter
                for letter, value in await _with_heads(store, waiting, kinds, record.state.live)
                if len(value) >= HEAD and is_superseded(letter, read_head(value))
            ],
        )
    return deleted


def _value_of(letter: DeadLetter, kinds: dict[str, Kind], generation: GenerationId) -> bytes | None:
    """Returns the name of the value of a dead letter's entity; None if its message key names none."""
    kind = kinds.get(letter.topic)
    organization_id, _, id_ = letter.key.partition(":")
    ids = [organization_id] if kind is ORGANIZATION else [organization_id, id_]
    if kind is None or any(len(each) != len(UUID_AS_0) for each in ids) or not are_lower_uuids("".join(ids).encode()):
        return None
    owner = names.organization(organization_id)
    if isinstance(kind, Resource):
        return names.document(kind, owner, generation, id_)
    return names.api_key_entity(owner, id_) if kind is API_KEY else owner


def is_superseded(letter: DeadLetter, head: Head) -> bool:
    """Returns whether the event that a value shows is newer than the bad record of a dead letter.

    Events of one entity are in one partition, in order, unless partitions were added. A newer event has a higher
    version; a record that is corrected and published again may have the same one. A bad record may name no version.
    """
    is_later = head.partition == letter.partition and head.offset > letter.offset
    if letter.version is None:
        return is_later
    return head.version > letter.version or (head.version == letter.version and is_later)


def is_newest(letter: DeadLetter, head: Head) -> bool:
    """Returns whether the bad record of a dead letter is the newest one of its entity, as far as that is known: it is
    not superseded by the event that a value shows, and does not come before it in the same partition.
    """
    return not is_superseded(letter, head) and not (head.partition == letter.partition and head.offset > letter.offset)
