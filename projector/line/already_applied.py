"""Which records of a batch are shown by documents already: those need not be decoded, mapped and sent once more.

A topic that is read again (after a rewind, or by a rebuild that goes on) is passed over at twice the rate so (the
benchmark `projector` prints it). A record counts as shown only where its very coordinates stand in the document, in
every generation, and its value holds the version that stands there too: a topic that was deleted and made again uses
its offsets for other events.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from projector.errors import BadRecord
from projector.record import DOCUMENT_KINDS, EntityKey, Kind, Partition, Record, entity_key
from projector.redis.calls import Command, Generations, contact_keys, groups
from projector.redis.store import Store
from schemas import names
from schemas.layouts import HEAD

# A look at the head of a document is short work for Redis.
_TOGETHER = 100
_CALLS = 10


class _Asked(msgspec.Struct, frozen=True, gc=False):
    """A record that is asked for, and where its answer belongs."""

    record: Record
    key: EntityKey
    times: list[int | None]
    place: int


_Call = tuple[Command, list[_Asked]]


async def shown_times(
    store: Store, polled: Mapping[Partition, Sequence[Record]], generations: Generations
) -> dict[Partition, list[int | None]]:
    """For each record the time of its event (ms since 1970), where documents show that event; else None.

    Raises Unavailable.
    """
    times: dict[Partition, list[int | None]] = {
        partition: [None] * len(records) for partition, records in polled.items()
    }
    calls = _calls(polled, times, generations, clustered=await store.clustered())
    asking: list[tuple[list[_Call], asyncio.Task[list[bytes]]]] = []
    try:
        while some := list(islice(calls, _CALLS)):
            asking.append((some, asyncio.create_task(store.run([command for command, _ in some]))))
            await asyncio.sleep(0)  # lets it out: Redis looks these up while the next are made
        for some, task in asking:
            for (_, asked), heads in zip(some, await task, strict=True):
                _note(asked, heads)
    finally:
        await asyncio.gather(*(task for _, task in asking), return_exceptions=True)
    return times


def _note(asked: list[_Asked], heads: bytes) -> None:
    """What the script answered for these."""
    for number, one in enumerate(asked):
        one.times[one.place] = event_time(one.record, heads[number * HEAD : number * HEAD + HEAD])


def event_time(record: Record, head: bytes) -> int | None:
    """When the event of this record happened, where a document that begins so shows it; else None."""
    if not head[0]:
        return None  # NOT_SHOWN: zeros, which are the coordinates of the very first record
    if head[8:16] != (record.offset | record.partition << 48).to_bytes(8, "little"):
        return None
    if record.value is None:
        same = head[:1] == b"T"
    else:
        # As compact JSON has it. Where it is written in another way, the record is only read once more.
        version = b'"version":%d' % int.from_bytes(head[1:8], "little")
        same = head[:1] != b"T" and (version + b"," in record.value or version + b"}" in record.value)
    return int.from_bytes(head[16:22], "little") if same else None


def _calls(
    polled: Mapping[Partition, Sequence[Record]],
    times: Mapping[Partition, list[int | None]],
    generations: Generations,
    *,
    clustered: bool,
) -> Iterator[_Call]:
    by_kind: dict[Kind, list[_Asked]] = {kind: [] for kind in DOCUMENT_KINDS}
    for partition, records in polled.items():
        if records[0].kind in by_kind:
            by_kind[records[0].kind] += _asked(records, times[partition])
    for kind, everything in by_kind.items():
        for asked in groups(everything, _organization, clustered=clustered, most=_TOGETHER):
            yield _command(kind, asked, generations), asked


def _asked(records: Sequence[Record], times: list[int | None]) -> Iterator[_Asked]:
    for index, record in enumerate(records):
        try:
            yield _Asked(record, entity_key(record), times, index)
        except BadRecord:
            continue  # it is parked when it is read


def _command(kind: Kind, asked: Sequence[_Asked], generations: Generations) -> Command:
    keys: list[bytes] = []
    for one in asked:
        owner = names.organization(one.key.organization_id)
        if kind is Kind.CONTACT:
            keys += contact_keys(owner, one.key.id, generations)
        else:
            keys += [names.lead(owner, generation, one.key.id) for generation in generations]
    return Command("heads", keys, [b"%d" % len(generations), b"1" if kind is Kind.CONTACT else b""])


def _organization(asked: _Asked) -> str:
    return asked.key.organization_id
