"""Reads the heads of the documents that a batch changes, to leave out the records that would change nothing.

A record that is already applied need not even be decoded. This doubles the rate at which a topic is read again, after a
rewind or by a resumed rebuild (the benchmark `projector` prints it). A record counts as applied only if its own
coordinates and its version are in the head of the document, in every generation: a topic that was deleted and recreated
uses its offsets again, for other events.

Any other record is decoded, because it may be bad. If it is stale, such as one that its producer has published again,
it need not be sent: to read a head costs Redis less than half of what a stale record costs.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice

from leadview.redis.scripts import Command
from projector.change import version_of
from projector.errors import BadRecord
from projector.intent import DeleteDocument, Intent, PutDocument, PutLead
from projector.record import EntityKey, Partition, Record, entity_key
from projector.redis import calls
from projector.redis.calls import Generations, groups
from projector.redis.store import Store
from schemas.layouts import HEAD, HISTORY_BIT, NO_HEAD, STATE_TOMBSTONE, VERSION, head_numbers
from schemas.resources import RESOURCES, Resource

# Reading a head takes Redis much less time than writing a document, so a call may hold more of them.
_MAX_HEADS = 100
_CALLS = 10

_Query = tuple[EntityKey, list[bytes], int]
"""A document whose head is read, and where the head goes: a list of heads, and the index there."""
_Call = tuple[Command, list[_Query]]


async def stored_heads(
    store: Store, polled: Mapping[Partition, Sequence[Record]], generations: Generations
) -> dict[Partition, list[bytes]]:
    """Returns for each record the head of its document; zeros if there is none, if the generations differ, if the leads
    of a contact contain an old summary, or if the record is not one of a document. Raises Unavailable.
    """
    found: dict[Partition, list[bytes]] = {partition: [NO_HEAD] * len(records) for partition, records in polled.items()}
    wanted = _calls(polled, found, generations, clustered=await store.clustered())
    asking: list[tuple[list[_Call], asyncio.Task[list[bytes]]]] = []
    try:
        while some := list(islice(wanted, _CALLS)):
            asking.append((some, asyncio.create_task(store.run([command for command, _ in some]))))
            await asyncio.sleep(0)  # sends them: Redis reads these heads while the next calls are built
        for some, task in asking:
            for (_, queries), reply in zip(some, await task, strict=True):
                for start, (_, heads, index) in zip(count(0, HEAD), queries, strict=False):
                    heads[index] = reply[start : start + HEAD]
    finally:
        await asyncio.gather(*(task for _, task in asking), return_exceptions=True)
    return found


def event_time(record: Record, head: bytes) -> int | None:
    """Returns the time of the record's event if a document with this head shows it; otherwise None."""
    number, at, time = head_numbers(head)
    if record.problem or at != record.offset | (record.partition | record.history << HISTORY_BIT) << 48:
        return None
    state, version = number & 0xFF, number >> 8
    if state == STATE_TOMBSTONE:  # its head keeps the version of the event before it
        return time if record.value is None else None
    # Zeros have no state, and would also be the coordinates of the very first record.
    return time if state and version_of(record) == version else None


def is_stale(intent: Intent, head: bytes) -> bool:
    """Returns whether the intent is certainly not newer than the document with this head, as the scripts compare them.

    It never will be: the version of a document only grows, and if an organization is recreated, all of its records are
    applied again.
    """
    match intent:
        case PutLead(head=new):
            pass
        case PutDocument(value=new) | DeleteDocument(value=new):
            pass
        case _:
            return False
    if head[:1] not in (b"L", b"D") or new[:1] == b"T":
        return False  # nothing is stored; with tombstones, the offsets and times decide
    return int.from_bytes(new[VERSION], "little") <= int.from_bytes(head[VERSION], "little")


def _calls(
    polled: Mapping[Partition, Sequence[Record]],
    found: Mapping[Partition, list[bytes]],
    generations: Generations,
    *,
    clustered: bool,
) -> Iterator[_Call]:
    by_resource: dict[Resource, list[_Query]] = {resource: [] for resource in RESOURCES}
    for partition, records in polled.items():
        if isinstance(resource := records[0].kind, Resource):
            by_resource[resource] += _queries(records, found[partition])
    for resource, all_queries in by_resource.items():
        for queries in groups(
            all_queries, lambda query: query[0].organization_id, clustered=clustered, max_items=_MAX_HEADS
        ):
            entities = ((key.organization_id, key.id) for key, _, _ in queries)
            yield calls.heads(resource, entities, generations), queries


def _queries(records: Sequence[Record], heads: list[bytes]) -> Iterator[_Query]:
    for index, record in enumerate(records):
        try:
            yield entity_key(record), heads, index
        except BadRecord:
            continue  # the batch parks it
