"""A checkpoint stores the positions of partitions after the writes that they cover (`redis/lua/checkpoint.lua`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from projector.dead_letter import DeadLetter
from projector.record import Partition
from projector.redis.calls import Command
from schemas import names

NOTHING_STORED = -1
"""Expected where nothing has been stored yet."""


class Position(msgspec.Struct, frozen=True):
    """How far a partition has been read."""

    offset: int
    event_time: int
    stored_at: int

    @classmethod
    def parse(cls, value: bytes | str) -> "Position":
        return cls(*(int(number) for number in value.split()))


class Step(msgspec.Struct, frozen=True):
    """A partition moves from the offset that this projector wrote last to a new position."""

    expected: int
    position: Position


def command(key: bytes, writing: bytes, steps: Mapping[Partition, Step], letters: Sequence[DeadLetter]) -> Command:
    """The call that stores these steps in a ledger, and the dead letters that they pass."""
    arguments = _arguments(writing, steps)
    for letter in letters:
        arguments += [letter.field.encode(), msgspec.json.encode(letter)]
    return Command("checkpoint", [key, names.DEAD_LETTERS], arguments)


def command_of_copy(key: bytes, steps: Mapping[Partition, Step]) -> Command:
    """The call that stores these steps in another shard's copy of a ledger."""
    return Command("checkpoint", [key], _arguments(b"", steps))


def _arguments(writing: bytes, steps: Mapping[Partition, Step]) -> list[bytes]:
    arguments = [writing, b"%d" % len(steps)]
    for partition, step in steps.items():
        at = step.position
        arguments += [
            names.position(*partition).encode(),
            b"%d" % step.expected,
            b"%d %d %d" % (at.offset, at.event_time, at.stored_at),
        ]
    return arguments


class Stored(msgspec.Struct, frozen=True):
    """The positions were stored; so many dead letters are waiting."""

    dead_letters: int


class WentBack(msgspec.Struct, frozen=True):
    """Redis holds lower positions than this projector wrote: it lost writes, and nothing was stored."""

    fields: list[str]


class GenerationsChanged(msgspec.Struct, frozen=True):
    """The batch missed a generation: nothing was stored, it is to be written again."""


Outcome = Stored | WentBack | GenerationsChanged


def outcome(reply: Any) -> Outcome:
    """Read the script's answer."""
    if isinstance(reply, int):
        return Stored(reply)
    if reply == [b"writing"]:
        return GenerationsChanged()
    return WentBack([field.decode() for field in reply])
