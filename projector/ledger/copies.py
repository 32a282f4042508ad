"""The copies of a ledger on a cluster: one in each shard, so that a shard that loses writes loses its positions too.

A copy is a hash like the ledger itself. Its name has a hash tag whose slot the shard serves, so a copy moves with its
slot. Each copy lists all of them in its field `copies`, so that finding one is enough to find all:

    listed, and present    It counts: the position of a partition is the lowest one that any copy holds.
    listed, and missing    Its shard was emptied: no position is valid.
    a shard without one    The shard is new, or the slot of its copy was moved away. The other copies are valid for it
                           as well until it gets one: the shard that had its slots before acknowledged all batches
                           that they cover.
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
    """The copies of a ledger: the fields of each by hash tag, or None if a listed copy is missing."""

    fields: Mapping[bytes, Fields | None]
    shards_without: tuple[int, ...]
    """The highest slot of each shard that has no copy."""

    def position(self, partition: Partition) -> Position | None:
        """Returns the lowest position that a copy holds; None if one of them holds none."""
        field = names.position(*partition)
        values = [fields.get(field) if fields else None for fields in self.fields.values()]
        found = [Position.parse(value) for value in values if value]
        if not found or len(found) < len(values):
            return None
        return min(found, key=lambda position: position.offset)

    @property
    def partitions(self) -> set[Partition]:
        """All partitions whose position is in any copy."""
        return {
            Partition(topic, int(number))
            for fields in self.fields.values()
            for topic, _, number in (field.rpartition(":") for field in fields or ())
            if topic and ":" not in topic  # excludes `writing` and `target:<topic>:<partition>`
        }

    @property
    def complete(self) -> bool:
        """Whether every shard has a copy, and each copy lists all of them."""
        text = _text(self.fields)
        return not self.shards_without and all(
            fields and fields.get(names.COPIES) == text for fields in self.fields.values()
        )


async def find(store: Store, ledger: bytes, known: Iterable[bytes] = ()) -> Copies:
    """Returns the copies of a ledger. Raises Unavailable.

    Reads the copies at the usual hash tags and at those in `known`, then all that the copies found so far list.
    """
    shards = {max(slots): slots for slots in await store.shards()}
    found: dict[bytes, Fields] = {}
    read: set[bytes] = set()
    listed = {names.HOME, *known, *map(names.slot_tag, shards)}
    while listed - read:
        found |= await _read(store, ledger, sorted(listed - read))
        read |= listed
        listed = {tag for fields in found.values() for tag in fields.get(names.COPIES, b"").split()} | found.keys()
    if listed:
        listed.add(names.HOME)
    slots_of_copies = {names.tag_slot(tag) for tag in listed}
    shards_without = tuple(highest for highest, slots in shards.items() if not slots_of_copies & slots)
    return Copies({tag: found.get(tag) for tag in sorted(listed)}, shards_without)


async def add_missing(store: Store, ledger: bytes, copies: Copies) -> Copies:
    """Create the copies that are missing, and let each copy list all of them. Returns them all. Raises Unavailable.

    Safe to repeat, to interrupt and to run concurrently: positions in a copy only move forward.
    """
    home = names.tag_slot(names.HOME)
    shard_of_home = {max(slots) for slots in await store.shards() if home in slots}
    added = [names.slot_tag(highest) for highest in copies.shards_without if highest not in shard_of_home]
    positions = {partition: copies.position(partition) for partition in copies.partitions}
    steps = {partition: Step(NOTHING_STORED, position) for partition, position in positions.items() if position}
    await store.run([checkpoint.command_of_copy(names.copy(ledger, tag), steps) for tag in added])
    tags = {names.HOME, *copies.fields, *added}
    await store.ask([(b"HSET", names.copy(ledger, tag), names.COPIES, _text(tags)) for tag in sorted(tags)])
    return await find(store, ledger, tags)


async def _read(store: Store, ledger: bytes, tags: Sequence[bytes]) -> dict[bytes, Fields]:
    """Returns the copies that exist among these."""
    replies = await store.ask([(b"HGETALL", names.copy(ledger, tag)) for tag in tags])
    return {
        tag: {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}
        for tag, reply in zip(tags, replies, strict=True)
        if reply
    }


def _text(tags: Iterable[bytes]) -> bytes:
    return b" ".join(sorted(tags))
