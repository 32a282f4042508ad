"""Reads records of some organizations or of one entity from the topics again, and applies them while the lines run.

Stale records change nothing, as everywhere. Bad records are usually skipped: the line has parked them as dead letters.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from projector.dead_letter import DeadLetter
from projector.errors import BadRecord
from projector.interpret import in_turns
from projector.kafka.reader import open_reader
from projector.ledger import copies
from projector.ledger.writers import Writing
from projector.line.apply import Applied, apply
from projector.record import Record
from projector.redis.calls import Generations
from projector.redis.node import Fence
from projector.redis.store import Store
from projector.upkeep import dead_letters
from schemas.fields import UUID_AS_0
from schemas.resources import ORGANIZATION, Kind
from schemas.settings import ProjectorSettings

_BATCH, _BATCH_BYTES = 200, 262_144
Wanted = Callable[[Record], bool]

logger = logging.getLogger(__name__)


def of_organizations(organization_ids: Iterable[str]) -> Wanted:
    """Selects the records whose message key begins with the id of one of these organizations, except their own records.

    A key with the id in upper case is bad, but it is one of this organization as well.
    """
    starts, length = {id_.encode() for id_ in organization_ids}, len(UUID_AS_0)

    def is_wanted(record: Record) -> bool:
        return record.key is not None and record.key[:length].lower() in starts and record.kind is not ORGANIZATION

    return is_wanted


def of_entity(organization_id: str, entity_id: str) -> Wanted:
    """Selects the records of one entity."""
    key = f"{organization_id}:{entity_id}".encode()
    return lambda record: record.key == key


async def in_place(
    writing: Writing,
    settings: ProjectorSettings,
    wanted: Wanted,
    kinds: Sequence[Kind],
    *,
    parks: bool = False,
) -> int:
    """Apply these records again, in every generation that is written.

    Documents that already show the same event are written as well, which repairs corrupted ones. With `parks`, bad
    records become dead letters. Returns how many of these records the topics contain. Raises Superseded or Unavailable.
    """
    read = count = 0
    async with open_reader(settings, kinds) as reader:
        ranges = await reader.range(await reader.partitions())
        state = (await copies.current(writing.store)).state
        reader.read_as(state.histories, state.cluster)
        async for records in reader.read(ranges):
            read += len(records)
            selected = [record for record in records if wanted(record)]
            count += len(selected)
            if not selected:
                continue
            with await writing.sessions.open() as session:
                for batch in _batches(selected):
                    await write(writing.store, batch, session.generations, fence=session, parks=parks)
    logger.info("the topics were read again", extra={"read": read, "records": count})
    return count


def _batches(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Yields a few records at a time, fewer if they are large."""
    batch: list[Record] = []
    left = _BATCH_BYTES
    for record in records:
        batch.append(record)
        left -= len(record.value or b"")
        if len(batch) == _BATCH or left <= 0:
            yield batch
            batch, left = [], _BATCH_BYTES
    if batch:
        yield batch


async def write(
    store: Store,
    records: list[Record],
    generations: Generations,
    *,
    fence: Fence | None = None,
    parks: bool = False,
) -> Applied:
    """Apply these records, except bad ones, which become dead letters with `parks`. Documents that show the same event
    already are written as well. Raises Unavailable.

    The `fence` is the session of the generations.
    """
    intents, bad = [], []
    for record in records:
        try:
            intents.append((await in_turns(record))[0])
        except BadRecord as error:
            bad.append(DeadLetter.of(record, error.fault, error.version))
    if parks:
        await dead_letters.park(store, bad)
    return await apply(store, intents, generations, fence=fence, overwrite_equal=True)
