"""The positions of a line, in one hash of Redis, with the generations that its writes must reach.

    <topic>:<partition>   "<next offset> <time of the newest event> <time of the checkpoint>", times in ms since 1970
    writing               the generations, "1" or "1,2"; a number is never used twice. Every checkpoint compares this
                          field with the generations that the batch was written to. If they differ, it stores nothing

The live lines share `lv:{ledger}:positions`; each rebuild has a hash of its own. On a cluster each shard has a copy of
the positions (`projector/ledger/copies.py`).
"""

from collections.abc import Mapping, Sequence

from projector.dead_letter import DeadLetter
from projector.ledger import checkpoint, copies
from projector.ledger.checkpoint import Outcome, Position, Step, Stored
from projector.ledger.copies import Copies
from projector.record import Partition
from projector.redis.calls import Command, Generations
from projector.redis.store import Store
from schemas import names

FIRST: Generations = (1,)


async def read_positions(
    store: Store, partitions: Sequence[Partition], ledger: bytes = names.POSITIONS
) -> dict[Partition, int | None]:
    """Returns the next offset of each partition; None if nothing is stored. Raises Unavailable."""
    return _offsets(await read_stored(store, partitions, ledger))


async def read_stored(
    store: Store, partitions: Sequence[Partition], ledger: bytes = names.POSITIONS
) -> dict[Partition, Position | None]:
    """Returns all that is stored of each partition; None if nothing is. Raises Unavailable.

    On a cluster, a position is the lowest one that any copy of the ledger holds.
    """
    if not partitions:
        return {}
    if store.sharded:
        found = await copies.find(store, ledger)
        return {partition: found.position(partition) for partition in partitions}
    fields = [names.position(*partition) for partition in partitions]
    [values] = await store.ask([(b"HMGET", ledger, *fields)])
    return {
        partition: Position.parse(value) if value else None for partition, value in zip(partitions, values, strict=True)
    }


async def read_written_generations(
    store: Store, ledger: bytes = names.POSITIONS, default: Generations = FIRST
) -> Generations:
    """Returns the generations to write; `default` if nothing is stored. Raises Unavailable."""
    [found] = await store.ask([(b"HGET", ledger, b"writing")])
    return parse_generations(found) if found else default


async def lag(store: Store, ranges: Mapping[Partition, tuple[int, int]]) -> int:
    """Returns how many records of these ranges [first, last) the live line has not applied. Raises Unavailable."""
    positions = await read_positions(store, list(ranges))
    return sum(max(0, last - max(positions[p] or 0, first)) for p, (first, last) in ranges.items())


class Ledger:
    """The ledger of one line: it remembers what it read, and compares with that when it stores new positions.

    With `parks=False` no dead letters are stored. That is for replays: the live line has parked them already.
    Every method raises Unavailable.
    """

    def __init__(
        self, store: Store, key: bytes = names.POSITIONS, *, first: Generations = FIRST, parks: bool = True
    ) -> None:
        self._store = store
        self._key = key
        self._first = first
        self._parks = parks
        self._replication_epoch: int | None = None
        self._copies = Copies({}, ())
        self._map_version = -1

    async def written_generations(self) -> Generations:
        """Returns the generations to write; `first` if nothing is stored."""
        return await read_written_generations(self._store, self._key, self._first)

    async def positions(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        """Returns the next offset of each partition; None if nothing is stored."""
        return _offsets(await self._stored(partitions))

    async def _stored(self, partitions: Sequence[Partition]) -> dict[Partition, Position | None]:
        if not partitions:
            return {}
        if self._store.sharded:
            self._copies = await copies.find(self._store, self._key, self._copies.fields)
            found = {partition: self._copies.position(partition) for partition in partitions}
        else:
            found = await read_stored(self._store, partitions, self._key)
        # `cover` is refused if Redis has restarted or failed over since this read.
        self._replication_epoch = self._store.replication_epoch
        return found

    async def cover(
        self, written_generations: Generations, steps: Mapping[Partition, Step], dead_letters: Sequence[DeadLetter]
    ) -> Outcome:
        """Store these steps and dead letters, after the writes to these generations that they cover.

        On a cluster the steps are stored in every shard. The shard that compares the generations comes last: a position
        is the lowest one of all copies, so none moves before the comparison has succeeded. Raises Unavailable also if
        Redis restarted or failed over since the positions were read: writes before that may be missing, although the
        positions are not lower.
        """
        if self._store.sharded and not await self._was_dropped():
            await self._add_missing_copies()
            others = [names.copy(self._key, tag) for tag in self._copies.fields if tag != names.HOME]
            commands = [checkpoint.command_of_copy(copy, steps) for copy in others]
            for reply in await self._store.run(commands, replication_epoch=self._replication_epoch):
                if not isinstance(outcome := checkpoint.outcome(reply), Stored):
                    return outcome
        parked = dead_letters if self._parks else []
        command = checkpoint.command(self._key, format_generations(written_generations), steps, parked)
        [reply] = await self._store.run([command], replication_epoch=self._replication_epoch)
        return checkpoint.outcome(reply)

    async def forget(self, offsets: Mapping[Partition, int]) -> None:
        """Discard the positions of these partitions, unless they differ from these offsets by now."""
        arguments = []
        for partition, offset in offsets.items():
            arguments += [names.position(*partition).encode(), b"%d" % offset]
        others = [names.copy(self._key, tag) for tag in self._copies.fields if tag != names.HOME]
        await self._store.run([Command("forget", [key], arguments) for key in (*others, self._key)])

    async def drop(self) -> None:
        """Delete this ledger, with all its copies."""
        others = (await copies.find(self._store, self._key)).fields if self._store.sharded else ()
        # The key that holds `writing` is deleted first: without it, no process creates the other copies again.
        keys = [self._key, *(names.copy(self._key, tag) for tag in others)]
        for key in keys:
            await self._store.ask([(b"DEL", key)])

    async def _add_missing_copies(self) -> None:
        """Make sure that each shard has a copy. Reads them again only if slots have moved or a copy was missing."""
        version = self._store.map_version
        if version != self._map_version or not self._copies.complete:
            found = await copies.find(self._store, self._key, self._copies.fields)
            if not found.complete:
                found = await copies.add_missing(self._store, self._key, found)
            self._copies, self._map_version = found, version

    async def _was_dropped(self) -> bool:
        """Whether this is the ledger of a rebuild that was dropped: its copies must not be created again."""
        return not self._first and not await self.written_generations()


def parse_generations(text: bytes | str) -> Generations:
    """Parse generations as they are stored: `1,2`."""
    return tuple(int(number) for number in (text.decode() if isinstance(text, bytes) else text).split(","))


def format_generations(generations: Generations) -> bytes:
    """Format generations as they are stored: `1,2`."""
    return b",".join(b"%d" % number for number in generations)


def _offsets(stored: Mapping[Partition, Position | None]) -> dict[Partition, int | None]:
    return {partition: position.offset if position else None for partition, position in stored.items()}
