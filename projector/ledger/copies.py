"""Reads, creates, repairs and changes the copies of the control record (rules: `docs/how-it-works.md`).

A copy is a Redis hash. The hash tag in its name belongs to a slot that the shard serves, so the copy moves with this
slot. The copy with the tag `ledger`, the home copy, decides which of two concurrent changes comes first. Each copy
lists all of them:

    listed, and present    It counts: the position of a partition is the lowest one that any copy holds.
    listed, and missing    Its shard was emptied. The copy is created again without positions, so that the lines read
                           the topics from the beginning, and the API serves nothing from the shard meanwhile.
    a shard without one    The shard is new, or the slot of its copy was moved away. It gets a copy with what the others
                           have in common: the shard that had its slots before has acknowledged every write that the
                           positions of the others cover.

The other slots of a shard move without its copy. So the copies also say which of them answer for which slots.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from projector.errors import Conflict, Refused, Unavailable
from projector.ledger.control import (
    ControlRecord,
    Copy,
    State,
    StateChange,
    first_state,
    new_copy_fields,
    shared_fields,
)
from projector.problem import RedisEmpty
from projector.reason import RedisReason
from projector.record import Partition
from projector.redis import scripts
from projector.redis.calls import Generations
from projector.redis.store import Store
from schemas import names
from schemas.control import (
    FILLED,
    FILLING,
    INCARNATION,
    STAMP,
    SWEPT,
    GenerationId,
    Stamp,
    format_generations,
    in_order,
    number_of,
    parse_generations,
)

_HOME = names.HOME.decode()
_CHANGING = (STAMP, INCARNATION, FILLING, FILLED, SWEPT)
"""The stamp, and the fields that may change while it stays the same, except positions."""
_ATTEMPTS = 10
_CHANGED = 1


async def read(store: Store) -> ControlRecord | None:
    """Returns the record as it is, even if its copies disagree; None if no shard has a copy. Raises Unavailable."""
    for _ in range(_ATTEMPTS):
        replication_epoch = store.replication_epoch
        record = await _read_all(store)
        # What was read before a restart or failover of a server may be gone. The first connection to a server counts as
        # a restart.
        if store.replication_epoch == replication_epoch:
            if record:
                store.newest = max(store.newest, record.stamp)
            return record and replace(record, replication_epoch=replication_epoch)
    raise Unavailable(RedisReason("servers_restart"))


async def _read_all(store: Store) -> ControlRecord | None:
    found: dict[bytes, Copy] = {}
    asked: set[bytes] = set()
    shards = {max(slots): slots for slots in await store.shards()}
    wanted = {names.HOME, *map(names.slot_tag, shards)}
    while wanted - asked:
        found |= await _read(store, sorted(wanted - asked))
        asked |= wanted
        wanted = {tag.encode() for copy in found.values() for tag in copy.state.copies}
        if not found and store.sharded:
            wanted |= await _scanned(store)
    if not found:
        return None
    newest = max(found.values(), key=lambda copy: copy.stamp)
    tags = sorted(tag.encode() for tag in newest.state.copies)
    slots_of_copies = {names.tag_slot(tag) for tag in tags}
    shards_without = tuple(highest for highest, slots in shards.items() if not slots_of_copies & slots)
    copies = {tag: found.get(tag) for tag in tags}
    unlisted = {tag: copy for tag, copy in found.items() if tag not in copies}
    served = {tag: slots for tag in tags for slots in shards.values() if names.tag_slot(tag) in slots}
    return ControlRecord(newest.stamp, newest.state, copies, shards_without, unlisted, served)


async def require(store: Store) -> ControlRecord:
    """Returns the record for a command of an operator.

    Raises Refused if Redis is empty, and Unavailable.
    """
    record = await read(store)
    if record is None:
        raise Refused(RedisEmpty(filling=False))
    return record


async def current(store: Store) -> ControlRecord:
    """Returns the record after making sure that every shard has a copy, that all copies agree, and that they say where
    the slots are.

    Begins the first record if Redis is empty. Raises Unavailable.
    """
    record = await read(store)
    for _ in range(_ATTEMPTS):
        if record is None:
            await _begin(store)
        elif record.agrees:
            if (slots := record.slots()) == record.state.slots:
                return record
            state = replace(record.state, slots=slots)
            await _change_copy(store, names.HOME, record.stamp, record.stamp.next(), state, record.replication_epoch)
        else:
            await _repair(store, record)
        record = await read(store)
    raise Unavailable(RedisReason("copies_disagree"))


async def glance(store: Store, known: ControlRecord) -> ControlRecord | None:
    """Returns the `known` record, with its old positions, if nothing but positions has changed since it was read; None
    if it has to be read again. Reads five short fields of each copy, so the cost does not depend on the number of
    partitions. Raises Unavailable.
    """
    replication_epoch = store.replication_epoch
    if not known.agrees or {*await store.shards()} != {*known.served.values()}:
        return None
    replies = await store.ask([(b"HMGET", _name(tag), *_CHANGING) for tag in known.copies])
    before = [copy and copy.changing_fields() for copy in known.copies.values()]
    if replies != before or store.replication_epoch != replication_epoch:
        return None
    return replace(known, replication_epoch=replication_epoch)


async def change(store: Store, record: ControlRecord, compute: StateChange) -> ControlRecord:
    """Change the state of the record that the caller has read. Returns the record when every copy has the change.

    Raises Conflict if the record has changed since, what `compute` raises, and Unavailable.
    """
    stamp, state = record.stamp.next(), compute(record.state)
    changed_home = await _change_copy(store, names.HOME, record.stamp, stamp, state, record.replication_epoch)
    if changed_home != _CHANGED:
        raise Conflict(RedisReason("record_changed"))
    changed = await current(store)
    if changed.stamp != stamp and (changed.stamp.lineage, changed.stamp.epoch) <= (stamp.lineage, stamp.epoch):
        raise Conflict(RedisReason("record_changed"))
    return changed


async def mark_filled(
    store: Store,
    record: ControlRecord,
    tags: Iterable[bytes],
    generations: Generations,
    needed: Mapping[Partition, int],
    *,
    rebuild: GenerationId | None = None,
) -> bool:
    """Note that the shards of these copies hold these generations up to their positions.

    The script does it only in a copy that is still as the record has it, and whose positions have reached the offsets
    in `needed`. With `rebuild`, the positions of the replay that fills this generation have to reach them instead, and
    a copy that was created after the generation was added is not marked: its shard is left to the lines. Returns False
    if it was not done everywhere. Raises Unavailable, also if Redis restarted or failed over since the record was read.
    """
    commands = [
        scripts.mark_filled(
            copy=_name(tag),
            positions=names.copy(names.rebuild(rebuild), tag) if rebuild else _name(tag),
            stamp=copy.stamp.text,
            incarnation=copy.incarnation,
            generations=format_generations(generations),
            needed={names.position(*partition): offset for partition, offset in needed.items()},
        )
        for tag in tags
        if (copy := record.copies[tag])
    ]
    return all(await store.run(commands, replication_epoch=record.replication_epoch))


async def mark_swept(store: Store, record: ControlRecord, generation: GenerationId) -> None:
    """Note that no shard holds a key of a generation that is being dropped. Raises Unavailable, also if Redis restarted
    or failed over since the record was read: what was deleted may be back.
    """
    commands = [
        scripts.mark_swept(copy=_name(tag), stamp=copy.stamp.text, incarnation=copy.incarnation, generation=generation)
        for tag, copy in record.copies.items()
        if copy
    ]
    await store.run(commands, replication_epoch=record.replication_epoch)


async def delete_rebuild(store: Store, record: ControlRecord, generation: GenerationId) -> None:
    """Delete the positions of the rebuild that filled a generation of which nothing is left. Raises Unavailable."""
    ledger = names.rebuild(generation)
    commands = [
        scripts.delete_rebuild(
            copy=_name(tag),
            positions=names.copy(ledger, tag),
            stamp=copy.stamp.text,
            incarnation=copy.incarnation,
            generation=generation,
        )
        for tag, copy in record.copies.items()
        if copy
    ]
    await store.run(commands, replication_epoch=record.replication_epoch)


async def store_targets(
    store: Store, record: ControlRecord, generation: GenerationId, targets: Mapping[Partition, int]
) -> bool:
    """Stores the offsets up to which a generation is to be replayed. An offset that is already stored stays.

    Returns False if the record has changed since it was read: then it is possible again that a program
    writes the live generation alone, and the targets would be too low. Raises Unavailable.
    """
    home = record.copies[names.HOME]
    if home is None:
        return False
    command = scripts.store_targets(
        copy=_name(names.HOME),
        positions=names.rebuild(generation),
        stamp=home.stamp.text,
        incarnation=home.incarnation,
        targets={names.target(*partition): end for partition, end in targets.items()},
    )
    return all(await store.run([command], replication_epoch=record.replication_epoch))


async def as_of(store: Store, record: ControlRecord) -> int | None:
    """Returns the moment, in ms since 1970, up to which everything that Kafka held is visible in all shards; None if it
    is not known. Raises Unavailable.
    """
    found = await store.run([scripts.read_as_of(as_of=names.copy(names.AS_OF, tag)) for tag in record.copies])
    return None if None in found else min(map(int, found))


async def other_layouts(store: Store) -> list[int]:
    """Returns the layouts of other versions of Leadview that have data in this Redis, beside that of this program.

    Returns an empty list if this user of Redis may not read them, or Redis is not available. Raises nothing.
    """
    with suppress(Unavailable):
        found = await store.ask([(b"EXISTS", key) for key in names.OF_OTHER_LAYOUTS])
        return sorted({number for number, exists in zip(names.OF_OTHER_LAYOUTS.values(), found, strict=True) if exists})
    return []


async def _read(store: Store, tags: Sequence[bytes]) -> dict[bytes, Copy]:
    """Returns the copies that exist among these."""
    copies = {}
    for tag, reply in zip(tags, await store.ask([(b"HGETALL", _name(tag)) for tag in tags]), strict=True):
        if reply:
            fields = {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}
            copies[tag] = Copy.parse(fields)
    return copies


async def _scanned(store: Store) -> set[bytes]:
    """Returns the tags of all copies. This reads all names of keys: only for a cluster that seems to be empty."""
    pattern = names.copy(names.CONTROL, b"*")
    return {key[key.index(b"{") + 1 : key.index(b"}")] async for keys in store.scan(pattern) for key in keys}


async def _begin(store: Store) -> None:
    """Begin the first record, in the home copy. The other shards get their copies by `_repair`.

    All programs that wrote or deleted before Redis was emptied lose their connections first: a session that is still
    open would otherwise write, delete or cover something that this record does not know of. What such sessions have
    written into the empty Redis is dropped under the new record. It is not deleted here: another program may have begun
    a record meanwhile, and that record may serve it.
    """
    async with store.beginning:
        if await read(store):
            return  # another task of this program was faster
        await store.close_all_writers()
        found = [names.IN_GENERATION.fullmatch(key) async for keys in store.scan(names.ALL) for key in keys]
        left = {GenerationId(match[2].decode()) for match in found if match}
        await _create(store, names.HOME, Stamp.first(store.newest), first_state((_HOME,), in_order(left)))


async def _repair(store: Store, record: ControlRecord) -> None:
    """Take one step towards copies that agree. It is safe to repeat, to interrupt and to run concurrently."""
    for tag, copy in record.copies.items():
        if copy is None:
            await _create(store, tag, record.stamp, record.state)
        elif copy.stamp != record.stamp:
            unswept = await _change_copy(store, tag, copy.stamp, record.stamp, record.state)
            if isinstance(unswept, bytes):
                await _drop_again(store, record, parse_generations(unswept))
                return
    if record.shards_without and all(record.copies.values()):
        await _add_copies(store, record)


async def _drop_again(store: Store, record: ControlRecord, generations: Generations) -> None:
    """Let these generations be deleted again: a failover brought back their keys in a shard."""
    dropping = in_order({*record.state.dropping, *generations})
    state = replace(record.state, dropping=dropping, last=max(record.state.last, *map(number_of, generations)))
    # The copy that is the newest one decides; the home copy may be the one that went back.
    newest = next(tag for tag, copy in record.copies.items() if copy and copy.stamp == record.stamp)
    await _change_copy(store, newest, record.stamp, record.stamp.next(), state, record.replication_epoch)


async def _add_copies(store: Store, record: ControlRecord) -> None:
    """Gives a copy to each shard without one. The new copies are the newest ones, and the others follow them.

    This takes two calls. The first gives each of these shards a copy that claims nothing for it, and that no other copy
    lists. The second, after the record was read again, replaces exactly these copies by copies of what the others
    share. If a shard is emptied in between, it has no copy to replace, so nothing is claimed for it.
    """
    home = names.tag_slot(names.HOME)
    shard_of_home = {max(slots) for slots in await store.shards() if home in slots}
    tags = [names.slot_tag(highest) for highest in record.shards_without if highest not in shard_of_home]
    without = [tag for tag in tags if tag not in record.unlisted]
    for tag in without:
        await _create(store, tag, record.stamp, record.state)
    if without:
        return
    state = replace(record.state, copies=tuple(sorted({*record.state.copies, *(tag.decode() for tag in tags), _HOME})))
    stamp = record.stamp.next()
    partitions = {partition for copy in record.present for partition in copy.positions}
    positions = {partition: position for partition in partitions if (position := record.position(partition))}
    filled = tuple(generation for generation in in_order(state.known) if record.is_complete(generation))
    for tag in tags:
        fields = shared_fields(stamp, state) | new_copy_fields(state, filled, positions)
        found = record.unlisted[tag]
        command = scripts.replace_copy(
            copy=_name(tag), stamp=found.stamp.text, incarnation=found.incarnation, fields=fields
        )
        await store.run([command], replication_epoch=record.replication_epoch)


async def _create(store: Store, tag: bytes, stamp: Stamp, state: State) -> None:
    fields = shared_fields(stamp, state) | new_copy_fields(state)
    complete, evictions = names.copy(names.COMPLETE, tag), names.copy(names.EVICTIONS, tag)
    await store.run([scripts.create_copy(copy=_name(tag), complete=complete, evictions=evictions, fields=fields)])


async def _change_copy(
    store: Store, tag: bytes, expected: Stamp, stamp: Stamp, state: State, replication_epoch: int | None = None
) -> Any:
    """Returns the reply of the script: 1 if the copy was changed."""
    shared = shared_fields(stamp, state)
    command = scripts.change_control(
        copy=_name(tag),
        stamp=expected.text,
        live=state.live,
        written=format_generations(state.written),
        known=format_generations(in_order(state.known)),
        number=len(shared),
        shared=shared,
        own=new_copy_fields(state),
    )
    [reply] = await store.run([command], replication_epoch=replication_epoch)
    return reply


def _name(tag: bytes) -> bytes:
    return names.copy(names.CONTROL, tag)
