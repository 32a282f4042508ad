"""Dead letters: records that could not be applied, kept until a person has decided.

A letter holds coordinates, key and reason, never the payload: redrive reads the record from Kafka again.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from enum import StrEnum

import msgspec

from projector import mapping
from projector.change import read
from projector.dead_letter import DeadLetter
from projector.errors import BadRecord, Refused
from projector.kafka.reader import Reader, open_reader
from projector.ledger import generations
from projector.record import Kind, Partition, Record
from projector.redis.applier import Applier
from projector.redis.store import Store
from schemas import names
from schemas.settings import ProjectorSettings

_GAP = 5000
_MOST_TOGETHER = 1000


class Redriven(StrEnum):
    """What became of a letter that was driven again."""

    APPLIED = "applied"
    STALE = "stale: something newer was applied already"
    GONE = "gone from the topic: it was compacted away, so something newer was published"
    STILL_BAD = "still bad"


async def all_letters(store: Store) -> list[DeadLetter]:
    """All letters, in the order of their topics. Raises Unavailable."""
    found = await store.ask_one(b"HVALS", names.DEAD_LETTERS)
    letters = [msgspec.json.decode(value, type=DeadLetter) for value in found]
    return sorted(letters, key=lambda letter: (letter.topic, letter.partition, letter.offset))


async def choose(store: Store, fields: Iterable[str]) -> list[DeadLetter]:
    """The letters of these `<topic>:<partition>:<offset>`, or all where none is named. Raises Refused."""
    letters = {letter.field: letter for letter in await all_letters(store)}
    wanted = list(fields) or list(letters)
    unknown = [field for field in wanted if field not in letters]
    if unknown:
        raise Refused(f"no such dead letter: {', '.join(unknown)}. `dead-letters list` shows all of them.")
    return [letter for field, letter in letters.items() if field in wanted]


async def drop(store: Store, letters: Iterable[DeadLetter]) -> int:
    """Forget these letters; how many there were. Raises Unavailable."""
    fields = [letter.field for letter in letters]
    if not fields:
        return 0
    return int(await store.ask_one(b"HDEL", names.DEAD_LETTERS, *fields))


async def redrive(
    store: Store, settings: ProjectorSettings, letters: list[DeadLetter]
) -> AsyncIterator[tuple[DeadLetter, Redriven, str]]:
    """Read these records again and apply them, in order; each with what became of it. Raises Unavailable.

    Letters that are done with are forgotten; one that is still bad stays, with its new reason.
    """
    async with open_reader(settings, list(Kind)) as reader:
        for neighbours in _neighbours(letters):
            records = await _records(reader, neighbours)
            for letter in neighbours:
                result, reason = await _again(store, records.get(letter.offset))
                if result is Redriven.STILL_BAD:
                    await _keep(store, msgspec.structs.replace(letter, reason=reason))
                else:
                    await drop(store, [letter])
                yield letter, result, reason


def _neighbours(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Letters of one partition with not much between them: one read finds them all, where a read each takes long."""
    together: list[DeadLetter] = []
    for letter in letters:
        if together and not _is_near(together, letter):
            yield together
            together = []
        together.append(letter)
    if together:
        yield together


def _is_near(together: list[DeadLetter], letter: DeadLetter) -> bool:
    last = together[-1]
    same = (last.topic, last.partition) == (letter.topic, letter.partition)
    return same and letter.offset - last.offset <= _GAP and len(together) < _MOST_TOGETHER


async def _records(reader: Reader, letters: list[DeadLetter]) -> dict[int, Record]:
    """The records of these letters of one partition, by offset, where they are still there."""
    partition = Partition(letters[0].topic, letters[0].partition)
    [(first, last)] = (await reader.range([partition])).values()
    wanted = {letter.offset for letter in letters}
    found: dict[int, Record] = {}
    async for records in reader.read({partition: (max(first, min(wanted)), min(last, max(wanted) + 1))}):
        found |= {record.offset: record for record in records if record.offset in wanted}
    return found


async def _again(store: Store, record: Record | None) -> tuple[Redriven, str]:
    if record is None:
        return Redriven.GONE, ""
    try:
        intent = mapping.intent(read(record), record)
    except BadRecord as error:
        return Redriven.STILL_BAD, error.reason
    registry = await generations.read(store)
    applied = await Applier(store).apply([intent], registry.writing)
    return (Redriven.APPLIED if applied.written else Redriven.STALE), ""


async def _keep(store: Store, letter: DeadLetter) -> None:
    await store.ask_one(b"HSET", names.DEAD_LETTERS, letter.field, msgspec.json.encode(letter))
