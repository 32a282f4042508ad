"""A checkpoint stores the positions of partitions after the writes that they cover (`redis/lua/checkpoint.lua`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from projector.dead_letter import DeadLetter
from projector.record import Partition
from projector.redis.calls import Command
from schemas import names

NOTHING_STORED = -1
"""The offset that a step expects if no position has been stored yet."""


class Position(msgspec.Struct, frozen=True):
    """How far a partition has been applied.

    `offset` is that of the next record, `event_time` the time of the newest event, `stored_at` that of the checkpoint;
    both in milliseconds since 1970.
    """

    offset: int
    event_time: int
    stored_at: int

    @classmethod
    def parse(cls, value: bytes | str) -> "Position":
        return cls(*(int(number) for number in value.split()))


class Step(msgspec.Struct, frozen=True):
    """Moves a partition from the offset that this projector stored last, to a new position."""

    expected: int
    position: Position


def command(
    key: bytes, written_generations: bytes, steps: Mapping[Partition, Step], dead_letters: Sequence[DeadLetter]
) -> Command:
    """Returns the call that stores these steps in a ledger, with the dead letters among the records that they cover."""
    arguments = _arguments(written_generations, steps)
    for letter in dead_letters:
        arguments += [letter.field.encode(), msgspec.json.encode(letter)]
    return Command("checkpoint", [key, names.DEAD_LETTERS], arguments)


def command_of_copy(key: bytes, steps: Mapping[Partition, Step]) -> Command:
    """Returns the call that stores these steps in another shard's copy of a ledger."""
    return Command("checkpoint", [key], _arguments(b"", steps))


def _arguments(written_generations: bytes, steps: Mapping[Partition, Step]) -> list[bytes]:
    arguments = [written_generations, b"%d" % len(steps)]
    for partition, step in steps.items():
        at = step.position
        arguments += [
            names.position(*partition).encode(),
            b"%d" % step.expected,
            b"%d %d %d" % (at.offset, at.event_time, at.stored_at),
        ]
    return arguments


class Stored(msgspec.Struct, frozen=True):
    """The positions were stored. `dead_letters` is the number of dead letters that are stored now."""

    dead_letters: int


class WentBack(msgspec.Struct, frozen=True):
    """Redis holds lower positions, in these fields, than this projector stored: it lost writes. Nothing was stored."""

    fields: list[str]


class GenerationsChanged(msgspec.Struct, frozen=True):
    """The written generations have changed since the batch was written. Nothing was stored: write the batch again."""


Outcome = Stored | WentBack | GenerationsChanged


def outcome(reply: Any) -> Outcome:
    """Decode the reply of the script."""
    if isinstance(reply, int):
        return Stored(reply)
    if reply == [b"writing"]:
        return GenerationsChanged()
    return WentBack([field.decode() for field in reply])
