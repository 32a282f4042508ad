"""The control record as the projector reads it: its state, the copies that shards have of it, and positions.

`schemas/control.py` describes the fields, `docs/how-it-works.md` the rules. Nothing in the record has a default:
either a copy says it, or Redis is empty everywhere and the first record begins. A checkpoint stores the positions of
partitions in it, after the writes that they cover (`projector/redis/lua/checkpoint.lua`).
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from secrets import token_hex
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from projector.mapping import VERSION
from projector.record import Partition
from projector.redis.calls import Generations
from schemas import control, names
from schemas.control import (
    GenerationId,
    Stamp,
    format_generations,
    format_slots,
    in_order,
    new_generation,
    number_of,
    parse_generations,
    parse_slots,
)
from schemas.layouts import CONTROL_CHANGED

_OWN_FIELDS = frozenset(
    (
        *(control.LAYOUT_FIELD, control.STAMP, control.COPIES, control.LIVE, control.KNOWN, control.SLOTS),
        *(control.STATE, control.INCARNATION, control.FILLING, control.FILLED, control.SWEPT),
    )
)


NOTHING_STORED = -1
"""The offset that an advance expects if no position has been stored yet."""

_STORED = 1
_REMEMBERED, _REMEMBERED_STATES = 4_096, 16
"""The numbers of positions and partitions, and of states, that are parsed only once: most stay the same."""

NO_ID = "-"
"""In place of the id of a topic that is not known."""


class Position(msgspec.Struct, frozen=True):
    """The position up to which a partition has been applied.

    `offset` is that of the next record, `event_time` the time of the last event, `stored_at` that of the checkpoint;
    both in milliseconds since 1970. `leader_epoch` is that of the last record batch before the offset; -1 if it is not
    known. The offset says nothing about a topic with the same name and another `topic_id`; that is empty if it is not
    known.
    """

    offset: int
    event_time: int
    stored_at: int
    leader_epoch: int = -1
    topic_id: str = ""

    @classmethod
    @lru_cache(maxsize=_REMEMBERED)
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


class Advance(msgspec.Struct, frozen=True):
    """Moves a partition from the offset that this projector stored last, to a new position."""

    expected: int
    position: Position


class Covered(msgspec.Struct, frozen=True):
    """The positions were stored, and the dead letters with them."""


class WentBack(msgspec.Struct, frozen=True):
    """Redis holds lower positions, in these fields, than this projector stored: it lost writes. Nothing was stored."""

    fields: list[str]


class ControlChanged(msgspec.Struct, frozen=True):
    """The control record has changed since the session was opened: other generations may have to be written, or a shard
    was emptied. Nothing was stored: begin the batch again in a new session.
    """


Checkpointed = Covered | WentBack | ControlChanged


def checkpointed(reply: Any) -> Checkpointed:
    """Decode the reply of the script."""
    if reply == _STORED:
        return Covered()
    if reply == [CONTROL_CHANGED.encode()]:
        return ControlChanged()
    return WentBack([field.decode() for field in reply])


class Generation(msgspec.Struct, frozen=True):
    """The mapping version that a generation was started with, and its times as RFC 3339."""

    mapping: int
    created_at: str
    verified_at: str | None = None


ACCESS = GenerationId("access")
"""Stands for organizations and API keys in place of a generation: they belong to none."""


BreakKind = Literal[
    "topic_recreated",
    "topic_truncated",
    "records_missed",
    "deletes_missed",
    "partitions_raised",
    "other_cluster",
    "evicted",
]

WHOLE_HISTORY: frozenset[BreakKind] = frozenset(("deletes_missed", "evicted"))
"""After these breaks, the topics still say what is right. So projectors compare with them, and end the break
themselves; the other breaks need an operator."""

NEW_HISTORY: frozenset[BreakKind] = frozenset(("topic_recreated", "topic_truncated", "other_cluster"))
"""After these breaks, offsets say nothing about records that were applied before (`Record.history`)."""


class Break(msgspec.Struct, frozen=True):
    """An event after which what is served may be wrong. `kind` is also the name of the problem.

    `topic` is empty if it concerns all of them. `former_id` and `topic_id` are those of the topic before and since; of
    `other_cluster`, those of the Kafka clusters. `noticed_at` and `since` are RFC 3339: until `since`, all was well,
    as far as that is known. The generations in `unverified` (or `ACCESS`) are not yet confirmed to agree with Kafka.
    `nonce` is random: a break that is noticed again, maybe in the same second, is another one.
    """

    kind: BreakKind
    topic: str
    former_id: str
    topic_id: str
    noticed_at: str
    unverified: Generations
    since: str = ""
    nonce: str = ""

    @property
    def age(self) -> float:
        """The seconds since it was noticed, by the clocks of the machines."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.noticed_at)).total_seconds()

    @property
    def is_of_history(self) -> bool:
        """True if the topic has lost records that its documents were made of."""
        return self.kind not in WHOLE_HISTORY and self.kind != "partitions_raised"

    def is_same(self, other: "Break") -> bool:
        """Returns whether both are the same break, whatever was verified since."""
        return replace(self, unverified=()) == replace(other, unverified=())

    def without(self, generation: GenerationId) -> "Break":
        """Returns the break without this generation, which was verified or dropped."""
        return replace(self, unverified=tuple(other for other in self.unverified if other != generation))


class PartitionCount(msgspec.Struct, frozen=True):
    """The number of partitions of a topic. Its id is empty if the brokers do not say it."""

    count: int
    topic_id: str = ""

    def is_raised_from(self, before: "PartitionCount") -> bool:
        """Returns whether partitions were added to the same topic."""
        return self.count > before.count and not self._is_of_another(before)

    def differs(self, before: "PartitionCount") -> bool:
        """Returns whether this is more than before, or another topic. Kafka never takes partitions away: a broker that
        names fewer is behind.
        """
        return self.count > before.count or self._is_of_another(before)

    def _is_of_another(self, before: "PartitionCount") -> bool:
        return bool(self.topic_id and before.topic_id) and self.topic_id != before.topic_id


class State(msgspec.Struct, frozen=True):
    """The part of the control record that is the same in all copies.

    Projectors write the generations in `written`. `previous` is the generation that `rollback` returns to. `last` is
    the highest number that was ever assigned. The keys of the generations in `dropping` are being deleted. `histories`
    counts the breaks of each topic (modulo 16, `schemas.layouts`), and `breaks` are those that are not confirmed yet.
    `slots` says which copies answer for which slots (`schemas.control.parse_slots`); it is a field of its own in Redis.
    `cluster` is the id of the Kafka cluster whose records are applied; empty if it is not known yet. `partitions` says
    how many each topic has, as far as projectors have noticed it.
    """

    live: GenerationId
    written: Generations
    generations: dict[GenerationId, Generation]
    copies: tuple[str, ...]
    previous: GenerationId | None = None
    last: int = 1
    dropping: Generations = ()
    histories: dict[str, int] = {}
    breaks: tuple[Break, ...] = ()
    slots: str = ""
    cluster: str = ""
    partitions: dict[str, PartitionCount] = {}

    @property
    def known(self) -> set[GenerationId]:
        """All generations that may have keys in Redis."""
        return {self.live, *self.written, *self.generations, *self.dropping}

    @property
    def next(self) -> GenerationId | None:
        """The generation that is being filled or is ready to be promoted."""
        served = max(number_of(generation) for generation in (self.live, self.previous) if generation)
        newer = [generation for generation in self.written if number_of(generation) > served]
        return max(newer, key=number_of, default=None)

    @property
    def next_number(self) -> int:
        """The number of the generation that would be added now."""
        return max(self.last, *map(number_of, self.known)) + 1

    def without(self, generation: GenerationId) -> "State":
        """Returns the state in which this generation is not written any more, and is being dropped."""
        return replace(
            self,
            written=tuple(other for other in self.written if other != generation),
            previous=None if self.previous == generation else self.previous,
            generations={other: known for other, known in self.generations.items() if other != generation},
            dropping=in_order({*self.dropping, generation}),
            breaks=tuple(left for it in self.breaks if (left := it.without(generation)).unverified),
        )


StateChange = Callable[[State], State]
"""Computes the new state from the present one. It may raise Refused."""


class Copy(msgspec.Struct, frozen=True):
    """A copy of the control record. `positions`, `filled` and `swept` describe the shard that holds this copy."""

    stamp: Stamp
    state: State
    incarnation: str
    filling: Generations
    filled: Generations
    swept: Generations
    positions: dict[Partition, Position]

    @classmethod
    def parse(cls, fields: Mapping[str, bytes]) -> "Copy":
        """Returns the copy that a hash contains."""
        positions = {}
        for name, value in fields.items():
            if name not in _OWN_FIELDS:
                positions[partition_named(name)] = Position.parse(value)
        return cls(
            stamp=Stamp(fields[control.STAMP].decode()),
            state=_state(fields[control.STATE], fields[control.SLOTS].decode()),
            incarnation=fields[control.INCARNATION].decode(),
            filling=parse_generations(fields[control.FILLING]),
            filled=parse_generations(fields[control.FILLED]),
            swept=parse_generations(fields[control.SWEPT]),
            positions=positions,
        )

    def changing_fields(self) -> list[bytes]:
        """Returns the stamp and the fields that describe the shard, in the order of this class, as Redis has them."""
        generations = (format_generations(each) for each in (self.filling, self.filled, self.swept))
        return [field.encode() for field in (self.stamp.text, self.incarnation, *generations)]

    @property
    def serves(self) -> bool:
        """True if the shard holds everything that the live generation has to contain."""
        return self.state.live in self.filled

    @property
    def unfilled(self) -> Generations:
        """The generations that the lines are filling in this shard."""
        return tuple(each for each in self.filling if each in self.state.written and each not in self.filled)


@lru_cache(maxsize=_REMEMBERED)
def partition_named(name: str) -> Partition:
    """Returns the partition whose position has this name."""
    topic, _, number = name.rpartition(":")
    return Partition(topic, int(number))


@lru_cache(maxsize=_REMEMBERED_STATES)
def _state(stored: bytes, slots: str) -> State:
    return replace(msgspec.json.decode(stored, type=State), slots=slots)


class ControlRecord(msgspec.Struct, frozen=True):
    """The copies that the newest one lists, by hash tag; None if a copy is missing, because its shard was emptied.

    `shards_without` has the highest slot of each shard that no listed copy belongs to: slots were moved there.
    `unlisted` are the copies that were found although no other one lists them. `served` has the slots that the server
    of each listed copy serves now; it is empty if Redis is not a cluster.
    """

    stamp: Stamp
    state: State
    copies: Mapping[bytes, Copy | None]
    shards_without: tuple[int, ...] = ()
    unlisted: Mapping[bytes, Copy] = {}
    served: Mapping[bytes, frozenset[int]] = {}
    replication_epoch: int = 0
    """The epoch of the store when the record was read. Changes are refused if Redis restarted or failed over since."""

    @property
    def present(self) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy]

    @property
    def agrees(self) -> bool:
        """True if every shard has a copy, and all copies have the same state."""
        return not self.shards_without and all(copy and copy.stamp == self.stamp for copy in self.copies.values())

    @property
    def serves(self) -> bool:
        """True if every shard holds everything of the live generation."""
        return self.is_complete(self.state.live)

    def is_complete(self, generation: GenerationId) -> bool:
        """Returns whether every shard holds the whole generation."""
        return all(copy and generation in copy.filled for copy in self.copies.values())

    def slots(self) -> str:
        """Returns which copies answer for which slots from now on, as `State.slots`.

        A slot that has moved is taken from the copies of its former server at once. It is given to those of its new one
        only while all copies are complete. Otherwise it may have come from a shard that is being filled, or it may be
        empty because its former server was lost.
        """
        if self.serves:
            return format_slots(self.served)
        before = parse_slots(self.state.slots.encode())
        kept = {tag: slots & set(chain(*before.get(tag, ()))) for tag, slots in self.served.items()}
        return format_slots(kept)

    def position(self, partition: Partition) -> Position | None:
        """Returns the lowest position of a partition in all copies; None if one of them has none."""
        found = [copy.positions.get(partition) if copy else None for copy in self.copies.values()]
        positions = [position for position in found if position]
        if len(positions) < len(found):
            return None
        return min(positions, key=lambda position: position.offset)

    def stored(self) -> dict[Partition, list[Position]]:
        """Returns the positions of each partition in all copies that have one."""
        found: dict[Partition, list[Position]] = {}
        for copy in self.present:
            for partition, position in copy.positions.items():
                found.setdefault(partition, []).append(position)
        return found

    def is_unread(self, partition: Partition) -> bool:
        """Returns whether a shard that holds everything has no position of this partition, although it has positions of
        the topic: the partition is new, or had no record when the shard was filled.
        """
        complete = [copy.positions for copy in self.present if copy.serves]
        without = [positions for positions in complete if partition not in positions]
        return any(known.topic == partition.topic for positions in without for known in positions)

    def highest_offset(self, partition: Partition) -> int:
        """Returns the highest position of a partition in any copy; 0 if none has one."""
        found = [copy.positions[partition].offset for copy in self.present if partition in copy.positions]
        return max(found, default=0)

    def incarnations(self) -> dict[bytes, str]:
        """Returns the incarnation of each copy that is present."""
        return {tag: copy.incarnation for tag, copy in self.copies.items() if copy}

    def rebuild_due(self) -> bool:
        """Returns whether the live generation was mapped by an older mapping version than this program's.

        If it was mapped by a newer one, the lines stand by for the newer program.
        """
        live = self.state.generations.get(self.state.live)
        return live is not None and live.mapping < VERSION


def first_state(copies: tuple[str, ...], left: Generations = ()) -> State:
    """Returns the state of an empty Redis: the first generation is being filled.

    The generations in `left` still have keys in Redis, and are dropped. The first generation gets a higher number than
    they have, so that people can tell them apart.
    """
    number = max(map(number_of, left), default=0) + 1
    first = new_generation(number)
    known = {first: Generation(VERSION, now())}
    return State(live=first, written=(first,), generations=known, copies=copies, last=number, dropping=left)


def shared_fields(stamp: Stamp, state: State) -> dict[str, str | bytes]:
    """Returns the fields that all copies have in common."""
    return {
        control.LAYOUT_FIELD: str(control.LAYOUT),
        control.STAMP: stamp.text,
        control.COPIES: " ".join(state.copies),
        control.LIVE: state.live,
        control.KNOWN: format_generations(in_order(state.known)),
        control.SLOTS: state.slots,
        control.STATE: msgspec.json.encode(replace(state, slots="")),
    }


def new_copy_fields(
    state: State, filled: Generations = (), positions: Mapping[Partition, Position] | None = None
) -> dict[str, str | bytes]:
    """Returns the fields of a new copy that describe its shard, which by default holds nothing."""
    stored = {names.position(*partition): position.format() for partition, position in (positions or {}).items()}
    return {
        control.INCARNATION: token_hex(8),
        control.FILLING: format_generations(state.written),
        control.FILLED: format_generations(filled),
        control.SWEPT: "",
        **stored,
    }


def now() -> str:
    """Returns the current time as RFC 3339, in whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Revision(NamedTuple):
    """`emptied`: Redis, or a shard of it, was emptied in between."""

    text: str
    emptied: bool = False


def revision(before: ControlRecord, after: ControlRecord) -> Revision | None:
    """Returns how the record has changed; None if it has not."""
    old, new = before.incarnations(), after.incarnations()
    emptied = sum(new[tag] != incarnation for tag, incarnation in old.items() if tag in new)
    if before.stamp.lineage != after.stamp.lineage or (emptied and emptied == len(old)):
        return Revision("Redis was emptied", emptied=True)
    if emptied:
        return Revision(f"{emptied} of the {len(new)} parts (shards) of Redis were emptied", emptied=True)
    return None if before.stamp == after.stamp else Revision("the control record has changed")
