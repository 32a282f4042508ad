"""A checkpoint stores the positions of partitions after the writes that they cover (`redis/lua/checkpoint.lua`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from projector.dead_letter import DeadLetter
from projector.record import Partition
from projector.redis import scripts
from projector.redis.scripts import StepRow
from schemas import names
from schemas.layouts import CONTROL_CHANGED
from schemas.scripts import Command

NOTHING_STORED = -1
"""The offset that a step expects if no position has been stored yet."""

NO_ID = "-"
"""In place of the id of a topic that is not known."""


class Position(msgspec.Struct, frozen=True):
    """How far a partition has been applied.

    `offset` is that of the next record, `event_time` the time of the newest event, `stored_at` that of the checkpoint;
    both in milliseconds since 1970. `leader_epoch` is that of the last batch before the offset; -1 if it is not known.
    The offset says nothing about a topic with the same name and another `topic_id`; that is empty if it is not known.
    """

    offset: int
    event_time: int
    stored_at: int
    leader_epoch: int = -1
    topic_id: str = ""

    @classmethod
    def parse(cls, value: bytes) -> "Position":
        """Raises ValueError if the value is none of this layout."""
        match value.decode().split(" "):
            case [offset, event_time, stored_at, epoch, topic_id]:
                id_ = "" if topic_id == NO_ID else topic_id
                return cls(int(offset), int(event_time), int(stored_at), int(epoch), id_)
        raise ValueError("Redis holds positions of another layout")

    def format(self) -> bytes:
        numbers = b"%d %d %d %d " % (self.offset, self.event_time, self.stored_at, self.leader_epoch)
        return numbers + (self.topic_id or NO_ID).encode()


class Step(msgspec.Struct, frozen=True):
    """Moves a partition from the offset that this projector stored last, to a new position."""

    expected: int
    position: Position


class Place(msgspec.Struct, frozen=True):
    """Where a shard stores positions, and what its copy of the control record must say: stamp and incarnation."""

    control: bytes
    positions: bytes
    stamp: str
    incarnation: str


def command(place: Place, steps: Mapping[Partition, Step], dead_letters: Sequence[DeadLetter] | None = None) -> Command:
    """Returns the call that stores these steps in a shard.

    `dead_letters` are those among the records that the steps cover; None in shards that do not store them.
    """
    return scripts.checkpoint(
        copy=place.control,
        positions=place.positions,
        dead_letters=None if dead_letters is None else names.DEAD_LETTERS,
        stamp=place.stamp,
        incarnation=place.incarnation,
        number=len(steps),
        steps=[
            StepRow(names.position(*partition), step.expected, step.position.format())
            for partition, step in steps.items()
        ],
        letters={letter.field: letter.stored for letter in dead_letters or ()},
    )


class Stored(msgspec.Struct, frozen=True):
    """The positions were stored. `dead_letters` is the number of dead letters that are stored now."""

    dead_letters: int


class WentBack(msgspec.Struct, frozen=True):
    """Redis holds lower positions, in these fields, than this projector stored: it lost writes. Nothing was stored."""

    fields: list[str]


class ControlChanged(msgspec.Struct, frozen=True):
    """The control record has changed since the batch was begun: other generations may have to be written, or a shard
    was emptied. Nothing was stored: begin the batch again.
    """


Outcome = Stored | WentBack | ControlChanged


def outcome(reply: Any) -> Outcome:
    """Decode the reply of the script."""
    if isinstance(reply, int):
        return Stored(reply)
    if reply == [CONTROL_CHANGED.encode()]:
        return ControlChanged()
    return WentBack([field.decode() for field in reply])
