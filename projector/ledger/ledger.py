"""The positions of a line, in one hash of Redis, with the generations that its writes must reach.

    <topic>:<partition>   "<next offset> <time of the newest event> <time of the checkpoint>", times in ms since 1970
    writing               the generations, "1" or "1,2"; their numbers are never used twice. Every checkpoint compares
                          it with what the batch was written to: one that missed a generation is not covered

The line that follows the topics has `lv:{ledger}:positions`; each rebuild has a hash of its own. On a cluster
each shard has a copy of the positions (`projector/ledger/copies.py`).
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


class Ledger:
    """Every method raises Unavailable while Redis cannot be reached.

    One that does not park dead letters is for replays: the live line has parked them already.
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
        """The generations to write; `first` where nothing is stored."""
        [found] = await self._store.ask([(b"HGET", self._key, b"writing")])
        return parse_generations(found) if found else self._first

    async def positions(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        """The next offset of each partition; None where nothing is stored."""
        found = await self.stored(partitions)
        return {partition: position.offset if position else None for partition, position in found.items()}

    async def stored(self, partitions: Sequence[Partition]) -> dict[Partition, Position | None]:
        """All that is stored of each partition; on a cluster by the shard that is furthest behind."""
        if not partitions:
            return {}
        if self._store.sharded:
            self._copies = await copies.find(self._store, self._key, self._copies.fields)
            positions = [self._copies.position(partition) for partition in partitions]
        else:
            fields = [names.position(*partition) for partition in partitions]
            [values] = await self._store.ask([(b"HMGET", self._key, *fields)])
            positions = [Position.parse(value) if value else None for value in values]
        # What is written from now on is compared with what was read just now.
        self._replication_epoch = self._store.replication_epoch
        return dict(zip(partitions, positions, strict=True))

    async def cover(
        self, writing: Generations, steps: Mapping[Partition, Step], letters: Sequence[DeadLetter]
    ) -> Outcome:
        """Store these steps and dead letters, after the writes to these generations that they cover.

        On a cluster in every shard; last of all where `writing` is compared, so that no position anywhere is taken
        for one that was covered. Raises Unavailable as well where Redis restarted or failed over since the positions
        were read: writes may be missing that no position tells of.
        """
        if self._store.sharded and not await self._is_gone():
            await self._complete()
            others = [names.copy(self._key, tag) for tag in self._copies.fields if tag != names.HOME]
            commands = [checkpoint.command_of_copy(copy, steps) for copy in others]
            for reply in await self._store.run(commands, replication_epoch=self._replication_epoch):
                if not isinstance(outcome := checkpoint.outcome(reply), Stored):
                    return outcome
        parked = letters if self._parks else []
        command = checkpoint.command(self._key, format_generations(writing), steps, parked)
        [reply] = await self._store.run([command], replication_epoch=self._replication_epoch)
        return checkpoint.outcome(reply)

    async def forget(self, offsets: Mapping[Partition, int]) -> None:
        """Start these partitions from the beginning, unless their positions have moved on from these."""
        arguments = []
        for partition, offset in offsets.items():
            arguments += [names.position(*partition).encode(), b"%d" % offset]
        others = [names.copy(self._key, tag) for tag in self._copies.fields if tag != names.HOME]
        await self._store.run([Command("forget", [key], arguments) for key in (*others, self._key)])

    async def drop(self) -> None:
        """Delete it."""
        others = (await copies.find(self._store, self._key)).fields if self._store.sharded else ()
        # The home of `writing` first: without it nobody makes the others again.
        keys = [self._key, *(names.copy(self._key, tag) for tag in others)]
        for key in keys:
            await self._store.ask([(b"DEL", key)])

    async def _complete(self) -> None:
        """See to it that each shard has a copy; looked at anew whenever slots have moved."""
        version = self._store.map_version
        if version != self._map_version or not self._copies.is_whole:
            found = await copies.find(self._store, self._key, self._copies.fields)
            if not found.is_whole:
                found = await copies.complete(self._store, self._key, found)
            self._copies, self._map_version = found, version

    async def _is_gone(self) -> bool:
        """A rebuild's ledger that was dropped is not to be made again."""
        return not self._first and not await self.written_generations()


async def lag(store: Store, ranges: Mapping[Partition, tuple[int, int]]) -> int:
    """Records of these ranges [first, last) that the live line has not applied yet. Raises Unavailable."""
    positions = await Ledger(store).positions(list(ranges))
    return sum(max(0, last - max(positions[p] or 0, first)) for p, (first, last) in ranges.items())


def parse_generations(text: bytes | str) -> Generations:
    """Read `1,2`."""
    return tuple(int(number) for number in (text.decode() if isinstance(text, bytes) else text).split(","))


def format_generations(generations: Generations) -> bytes:
    """Write `1,2`."""
    return b",".join(b"%d" % number for number in generations)
