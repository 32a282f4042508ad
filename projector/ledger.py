"""The positions of a line, in one hash of Redis, with the generations that its writes must reach.

    <topic>:<partition>   "<next offset> <time of the newest event> <time of the checkpoint>", times in ms since 1970
    writing               the generations, "1" or "1,2"; their numbers are never used twice. Every checkpoint compares
                          it with what the batch was written to: one that missed a generation is not covered

The line that follows the topics has `lv:{ledger}:positions`; each rebuild has a hash of its own.
"""

from collections.abc import Mapping, Sequence

from projector import checkpoint
from projector.checkpoint import DeadLetter, Outcome, Position, Step
from projector.command import Command, Generations
from projector.record import Partition
from projector.store import Store
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

    async def writing(self) -> Generations:
        """The generations to write; `first` where nothing is stored."""
        async with self._store.errors():
            found = await self._store.redis.hget(self._key, "writing")
        return parse_generations(found) if found else self._first

    async def positions(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        """The next offset of each partition; None where nothing is stored."""
        if not partitions:
            return {}
        fields = [names.position(*partition) for partition in partitions]
        async with self._store.errors():
            values = await self._store.redis.hmget(self._key, fields)
        return {
            partition: Position.parse(value).offset if value else None
            for partition, value in zip(partitions, values, strict=True)
        }

    async def cover(
        self, writing: Generations, steps: Mapping[Partition, Step], letters: Sequence[DeadLetter]
    ) -> Outcome:
        """Store these steps and dead letters, after the writes to these generations that they cover."""
        parked = letters if self._parks else []
        command = checkpoint.command(self._key, format_generations(writing), steps, parked)
        [reply] = await self._store.run([command])
        return checkpoint.outcome(reply)

    async def forget(self, offsets: Mapping[Partition, int]) -> None:
        """Start these partitions from the beginning, unless their positions have moved on from these."""
        arguments = []
        for partition, offset in offsets.items():
            arguments += [names.position(*partition).encode(), b"%d" % offset]
        await self._store.run([Command("forget", [self._key], arguments)])


def parse_generations(text: bytes | str) -> Generations:
    """Read `1,2`."""
    return tuple(int(number) for number in (text.decode() if isinstance(text, bytes) else text).split(","))


def format_generations(generations: Generations) -> bytes:
    """Write `1,2`."""
    return b",".join(b"%d" % number for number in generations)
