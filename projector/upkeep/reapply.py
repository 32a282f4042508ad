"""Reads records again, beside the line, and writes what they say: of one organization, one entity, or one record.

Stale ones are no-ops, as everywhere. Bad ones were parked as dead letters when the line met them, and are passed over.
"""

from collections.abc import Callable, Mapping

from projector import mapping
from projector.change import read
from projector.errors import BadRecord
from projector.kafka.reader import Reader
from projector.ledger.ledger import read_written_generations
from projector.record import Partition, Record
from projector.redis.applier import Applied, Applier
from projector.redis.calls import Generations
from projector.redis.store import Store

_SLICE = 200
Wanted = Callable[[Record], bool]


def of_organization(organization_id: str) -> Wanted:
    """Records of one organization."""
    start = f"{organization_id}:".encode()
    return lambda record: record.key is not None and record.key.startswith(start)


def of_entity(organization_id: str, entity_id: str) -> Wanted:
    """Records of one entity."""
    key = f"{organization_id}:{entity_id}".encode()
    return lambda record: record.key == key


async def replay(
    store: Store,
    reader: Reader,
    ranges: Mapping[Partition, tuple[int, int]],
    wanted: Wanted,
    *,
    again: bool = False,
) -> int:
    """Write the wanted records of these ranges once more; how many there were. Raises Unavailable."""
    count = 0
    async for records in reader.read(ranges):
        found = [record for record in records if wanted(record)]
        count += len(found)
        if found:
            generations = await read_written_generations(store)
            for start in range(0, len(found), _SLICE):
                await write(store, found[start : start + _SLICE], generations, again=again)
    return count


async def write(store: Store, records: list[Record], generations: Generations, *, again: bool = False) -> Applied:
    """Write what these records say, bad ones left out. Raises Unavailable."""
    intents = []
    for record in records:
        try:
            intents.append(mapping.intent(read(record), record))
        except BadRecord:
            continue
    return await Applier(store).apply(intents, generations, again=again)
