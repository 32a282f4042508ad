"""The copies of a ledger on a cluster: one in each shard, so that a shard that loses writes loses its positions, too.

A copy is a hash like the ledger itself, under a hash tag whose slot the shard serves; it moves with its slot. Each
names all of them in its field `copies`. So whoever finds one finds all:

    named, and there       it counts: a position is what the copy that is furthest behind says
    named, and not there   its shard was emptied: no position holds
    a shard without one    is new here, or the slot of its copy was moved away: until it gets one, the others speak
                           for it, since all batches before their positions were acknowledged by whoever had its slots
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from projector.ledger import checkpoint
from projector.ledger.checkpoint import NOTHING_STORED, Position, Step
from projector.record import Partition
from projector.redis.store import Store
from schemas import names

Fields = dict[str, bytes]


class Copies(msgspec.Struct, frozen=True):
    """The copies of a ledger as they were found: fields by hash tag; None where a named one was not there."""

    fields: Mapping[bytes, Fields | None]
    bare: tuple[int, ...]
    """For each shard without a copy, the highest slot that it serves."""

    def position(self, partition: Partition) -> Position | None:
        """What all shards have; None where one of them has nothing."""
        field = names.position(*partition)
        values = [fields.get(field) if fields else None for fields in self.fields.values()]
        found = [Position.parse(value) for value in values if value]
        if not found or len(found) < len(values):
            return None
        return min(found, key=lambda position: position.offset)

    @property
    def partitions(self) -> set[Partition]:
        """Those that any copy speaks of."""
        return {
            Partition(topic, int(number))
            for fields in self.fields.values()
            for topic, _, number in (field.rpartition(":") for field in fields or ())
            if topic and ":" not in topic  # `writing`, and a rebuild's `target:<topic>:<partition>`, are none
        }

    @property
    def is_whole(self) -> bool:
        """Does every shard have a copy that names all of them?"""
        text = _text(self.fields)
        return not self.bare and all(fields and fields.get(names.COPIES) == text for fields in self.fields.values())


async def find(store: Store, ledger: bytes, known: Iterable[bytes] = ()) -> Copies:
    """Look for the copies of a ledger: where they would be, and where those that are found say. Raises Unavailable."""
    shards = {max(slots): slots for slots in await store.shards()}
    found: dict[bytes, Fields] = {}
    looked: set[bytes] = set()
    named = {names.HOME, *known, *map(names.slot_tag, shards)}
    while named - looked:
        found |= await _read(store, ledger, sorted(named - looked))
        looked |= named
        named = {tag for fields in found.values() for tag in fields.get(names.COPIES, b"").split()} | found.keys()
    if named:
        named.add(names.HOME)
    there = {names.tag_slot(tag) for tag in named}
    bare = tuple(top for top, slots in shards.items() if not there & slots)
    return Copies({tag: found.get(tag) for tag in sorted(named)}, bare)


async def complete(store: Store, ledger: bytes, copies: Copies) -> Copies:
    """Give each shard a copy, make those again that are gone, and let each name all. Raises Unavailable.

    Safe to repeat, to break off, and to do by several at once: a copy is never set back.
    """
    home = names.tag_slot(names.HOME)
    at_home = {max(slots) for slots in await store.shards() if home in slots}
    added = [names.slot_tag(top) for top in copies.bare if top not in at_home]
    spoken_for = {partition: copies.position(partition) for partition in copies.partitions}
    steps = {partition: Step(NOTHING_STORED, position) for partition, position in spoken_for.items() if position}
    await store.run([checkpoint.command_of_copy(names.copy(ledger, tag), steps) for tag in added])
    tags = {names.HOME, *copies.fields, *added}
    await store.ask([(b"HSET", names.copy(ledger, tag), names.COPIES, _text(tags)) for tag in sorted(tags)])
    return await find(store, ledger, tags)


async def _read(store: Store, ledger: bytes, tags: Sequence[bytes]) -> dict[bytes, Fields]:
    """Those that are there."""
    replies = await store.ask([(b"HGETALL", names.copy(ledger, tag)) for tag in tags])
    return {
        tag: {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}
        for tag, reply in zip(tags, replies, strict=True)
        if reply
    }


def _text(tags: Iterable[bytes]) -> bytes:
    return b" ".join(sorted(tags))
