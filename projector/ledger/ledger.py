"""The ledger of a line: the sessions in which it writes, and the positions that it stores.

Nothing writes documents without a session. It is opened with the control record, and holds what the writes depend on:
the generations to write, the stamp, and the incarnation of every copy. A program that may not write a generation,
because its mapping is too old, gets an error instead of a session, whatever it wanted to write.

A line remembers which positions it read, and compares with them when it stores new ones. The live lines store their
positions in the control record; each rebuild has a hash of its own beside each copy of it. On a cluster every shard has
a copy of the positions, so that a shard that loses writes loses its positions too.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from projector.dead_letter import DeadLetter
from projector.errors import Refused, SessionEnded, Superseded
from projector.ledger import breaks, control, copies
from projector.ledger.control import (
    NEW_HISTORY,
    NOTHING_STORED,
    WHOLE_HISTORY,
    Advance,
    Break,
    Checkpointed,
    ControlChanged,
    ControlRecord,
    Covered,
    Position,
)
from projector.mapping import VERSION
from projector.reason import GenerationReason, RedisReason
from projector.record import Partition
from projector.redis import scripts
from projector.redis.calls import Generations
from projector.redis.scripts import AdvanceRow, RewindRow
from projector.redis.store import Store
from runtime.redis.scripts import Command
from schemas import names
from schemas.control import INCARNATION, STAMP, GenerationId, Stamp, number_of
from schemas.heartbeat import StandingByLine


class Session(AbstractContextManager["Session"]):
    """The control record and generations that writes depend on. It is the `Fence` of the connections that they use.

    After its block, or after `close`, this program may acknowledge later control records. A closed session prevents no
    writes, so its owner has to wait for all of them before it closes it.
    """

    def __init__(
        self,
        store: Store,
        opened: int,
        record: ControlRecord,
        generations: Generations,
        all_open: dict[object, Stamp],
    ) -> None:
        self._store = store
        self._all_open = all_open
        self.opened = opened
        self.confirmed: dict[int, int] = {}
        self.record = record
        self.generations = generations
        self.incarnations = record.incarnations()
        self.replication_epoch = record.replication_epoch
        self._confirming = asyncio.Lock()
        self._readings = 0
        self._confirmed_by = 0

    def close(self) -> None:
        """Note that nothing is written in this session any more."""
        self._all_open.pop(self, None)

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_of(self, record: ControlRecord) -> bool:
        """Returns whether the control record is the one that this session was opened with."""
        return record.stamp == self.stamp and record.incarnations() == self.incarnations

    @property
    def stamp(self) -> Stamp:
        return self.record.stamp

    async def confirm(self) -> None:
        """Raises SessionEnded if the control record is no longer the one that this session was opened with.

        Callers that come while the record is being read share the next reading: on a cluster, a reading may open a
        connection to each shard, and a session may open many connections at once.
        """
        readings = self._readings
        async with self._confirming:
            if self._confirmed_by > readings:
                return
            self._readings += 1
            record = await copies.read(self._store)
            if record is None or not record.agrees or not self.is_of(record):
                raise SessionEnded(RedisReason("session_ended"))
            self._confirmed_by = self._readings


class Sessions:
    """Opens the sessions of a program, and knows which ones are open.

    Every coroutine raises Unavailable.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen = Stamp("")
        self._latest: ControlRecord | None = None
        self._looked_at = 0.0
        self._open: dict[object, Stamp] = {}

    @property
    def acknowledged(self) -> Stamp:
        """The oldest control record that this program may still write under."""
        return min(self._open.values(), default=self._seen)

    async def look(self, within: float = 0.0) -> ControlRecord:
        """Returns the control record, repaired if its copies disagree. Every program that writes looks once a second.
        The positions may be those of an earlier look. If the last look was less than `within` seconds ago, its record
        is returned.
        """
        if self._latest and time.monotonic() - self._looked_at < within:
            return self._latest
        known = self._latest and await copies.glance(self._store, self._latest)
        return self._looked(known or await copies.current(self._store))

    def _looked(self, record: ControlRecord) -> ControlRecord:
        self._latest, self._looked_at = record, time.monotonic()
        # A new lineage begins a new history: what was seen of the former one says nothing about it.
        is_same = self._seen.lineage == record.stamp.lineage
        self._seen = max(self._seen, record.stamp) if is_same else record.stamp
        return record

    async def open(self, *, documents: bool = True) -> Session:
        """Open a session for the generations that projectors write. The caller has to close it.

        Raises Superseded if one of the generations requires a newer mapping. Without `documents`, only access is
        written: it depends on no generation and on no mapping.
        """
        return await self._opened(_check_mapping if documents else None)

    async def open_rebuild(self, generation: GenerationId) -> Session:
        """Open a session for the replay that fills one generation. Raises Refused if it is gone."""

        def check(record: ControlRecord) -> None:
            check_written(record, generation)
            lost = [it for it in record.state.breaks if it.kind not in (*WHOLE_HISTORY, "partitions_raised")]
            if broken := [it.topic for it in lost if generation in it.unverified]:
                raise Refused(GenerationReason("generation_lost_history", number_of(generation), tuple(broken)))

        return await self._opened(check, (generation,))

    async def _opened(
        self, check: Callable[[ControlRecord], None] | None, generations: Generations | None = None
    ) -> Session:
        """Open a session for these generations, by default those that projectors write. Raises what `check` raises."""
        opening = object()
        # Until the record is read, this program does not acknowledge a newer one.
        self._open[opening] = self.acknowledged
        try:
            opened = self._store.connections_opened
            record = self._looked(await copies.current(self._store))
            if check:
                check(record)
            session = Session(self._store, opened, record, generations or record.state.written, self._open)
            self._open[session] = session.stamp
            return session
        finally:
            del self._open[opening]


def _check_mapping(record: ControlRecord) -> None:
    """Raises Superseded if a generation that projectors write requires a newer mapping."""
    for generation in record.state.written:
        known = record.state.generations.get(generation)
        if known and known.mapping > VERSION:
            raise Superseded(StandingByLine(number_of(generation), known.mapping, VERSION))


def check_written(record: ControlRecord, generation: GenerationId) -> None:
    """Raises Refused if projectors do not write this generation any more."""
    if generation not in record.state.written:
        raise Refused(GenerationReason("generation_gone", number_of(generation)))


class Ledger:
    """The positions of one line. Every method raises Unavailable.

    With `rebuild`, the line replays the topics into this generation, and parks no dead letters: the live line has
    parked them already. Without `documents`, the line writes access only.
    """

    def __init__(
        self, store: Store, sessions: Sessions, *, rebuild: GenerationId | None = None, documents: bool = True
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._rebuild = rebuild
        self._documents = documents

    async def open(self) -> Session:
        """Open a session. Raises Superseded, and Refused if the generation of a rebuild is gone."""
        if self._rebuild is None:
            return await self._sessions.open(documents=self._documents)
        return await self._sessions.open_rebuild(self._rebuild)

    async def positions(
        self, record: ControlRecord, partitions: Sequence[Partition]
    ) -> dict[Partition, Position | None]:
        """Returns the position of each partition when this record was read; None if nothing is stored. Those of a
        rebuild are not in the record: they are read now.
        """
        if self._rebuild is None:
            return {partition: record.position(partition) for partition in partitions}
        return await read_rebuild(self._store, record, self._rebuild, partitions)

    async def stored(self, session: Session, partitions: Sequence[Partition]) -> dict[Partition, list[Position]]:
        """Returns the positions of all partitions in all copies; for a rebuild, only the lowest one of each of these
        partitions.
        """
        if self._rebuild is None:
            return session.record.stored()
        found = await self.positions(session.record, partitions)
        return {partition: [position] for partition, position in found.items() if position}

    def unread(self, session: Session, partitions: Sequence[Partition]) -> list[Partition]:
        """Returns those of these partitions of which no record was ever read: if Kafka's first offset is not 0, records
        were missed. Empty for a rebuild, which begins with what Kafka has.
        """
        if self._rebuild is not None:
            return []
        state = session.record.state
        doubted = {noted.topic for noted in state.breaks if noted.kind in NEW_HISTORY}
        return [at for at in partitions if at.topic not in doubted and session.record.is_unread(at)]

    async def learn_cluster(self, session: Session, cluster: str) -> None:
        """Store the id of the Kafka cluster whose records are applied, unless one is stored."""
        await breaks.learn_cluster(self._store, session.record, cluster)

    async def note(self, session: Session, found: Sequence[Break]) -> bool:
        """Note breaks in the history of topics. Returns False if the control record has changed since."""
        return await breaks.note(self._store, session.record, found)

    async def cover(
        self, session: Session, advances: Mapping[Partition, Advance], dead_letters: Sequence[DeadLetter] = ()
    ) -> Checkpointed:
        """Store the advanced positions and these dead letters, after the writes that they cover.

        On a cluster they are stored in all other copies, then, with the dead letters, in the home copy. A position is
        the lowest one of all copies, so none moves before all of them have accepted it. Raises Unavailable also if
        Redis restarted or failed over since the session was opened: writes before that may be missing, although the
        positions are not lower.
        """
        others = session.incarnations.keys() - {names.HOME}
        commands = [self._checkpoint(session, tag, advances) for tag in others]
        for reply in await self._run(session, commands) if commands else ():
            if not isinstance(outcome := control.checkpointed(reply), Covered):
                return outcome
        letters = dead_letters if self._rebuild is None else ()
        [reply] = await self._run(session, [self._checkpoint(session, names.HOME, advances, letters)])
        return control.checkpointed(reply)

    def _checkpoint(
        self,
        session: Session,
        tag: bytes,
        advances: Mapping[Partition, Advance],
        dead_letters: Sequence[DeadLetter] | None = None,
    ) -> Command:
        """Returns the call that stores the advanced positions beside a copy. `dead_letters` are those among the records
        that they cover; None if this copy does not have them.
        """
        return scripts.checkpoint(
            copy=names.copy(names.CONTROL, tag),
            positions=self._positions_key(tag),
            dead_letters=None if dead_letters is None else names.DEAD_LETTERS,
            stamp=session.stamp.text,
            incarnation=session.incarnations[tag],
            number=len(advances),
            advances=[
                AdvanceRow(names.position(*partition), advance.expected, advance.position.format())
                for partition, advance in advances.items()
            ],
            letters={letter.field: letter.stored for letter in dead_letters or ()},
        )

    async def check(self, session: Session, known: Mapping[Partition, int]) -> Checkpointed | None:
        """Compares these offsets with what Redis holds. Returns None if nothing has changed since the session was
        opened, except that positions may be higher.
        """
        fields = [names.position(*partition) for partition in known]
        of_copies, positions = [], []
        for tag in session.incarnations:
            copy, ledger = names.copy(names.CONTROL, tag), self._positions_key(tag)
            of_copies.append((b"HMGET", copy, STAMP, INCARNATION, *(fields if ledger == copy else ())))
            positions += [(b"HMGET", ledger, *fields)] if fields and ledger != copy else []
        replies = await self._store.ask([*of_copies, *positions])
        expected = [[session.stamp.text.encode(), it.encode()] for it in session.incarnations.values()]
        if [reply[:2] for reply in replies[: len(of_copies)]] != expected:
            return ControlChanged()
        rows = replies[len(of_copies) :] or [reply[2:] for reply in replies]
        lower = [
            field
            for field, offset, *stored in zip(fields, known.values(), *rows, strict=True)
            if any((Position.parse(value).offset if value else NOTHING_STORED) < offset for value in stored)
        ]
        return control.WentBack(lower) if lower else None

    async def rewind(self, session: Session, rewinds: Sequence[RewindRow]) -> None:
        """Take back positions of topics that have lost their history, in all copies."""
        commands = [scripts.rewind(positions=self._positions_key(tag), rewinds=rewinds) for tag in session.incarnations]
        await self._run(session, commands)

    def _positions_key(self, tag: bytes) -> bytes:
        """Returns the name of the hash that has the positions of the shard with this copy."""
        return names.copy(names.CONTROL if self._rebuild is None else names.rebuild(self._rebuild), tag)

    async def _run(self, session: Session, commands: Sequence[Command]) -> list[object]:
        return await self._store.run(commands, replication_epoch=session.replication_epoch, fence=session)


async def read_rebuild(
    store: Store, record: ControlRecord, generation: GenerationId, partitions: Sequence[Partition]
) -> dict[Partition, Position | None]:
    """Returns the lowest position of each partition in the ledgers of a rebuild; None if one of them has none.

    Raises Unavailable.
    """
    if not partitions:
        return {}
    fields = [names.position(*partition) for partition in partitions]
    ledgers = [names.copy(names.rebuild(generation), tag) for tag in record.copies]
    rows = await store.ask([(b"HMGET", ledger, *fields) for ledger in ledgers])
    found: dict[Partition, Position | None] = {}
    for partition, values in zip(partitions, zip(*rows, strict=True), strict=True):
        positions = [Position.parse(value) for value in values if value]
        lowest = min(positions, key=lambda position: position.offset, default=None)
        found[partition] = lowest if len(positions) == len(values) else None
    return found


async def lag(store: Store, ranges: Mapping[Partition, tuple[int, int]]) -> int:
    """Returns how many records of these ranges [first, last) the live line has not applied.

    Raises Refused if Redis is empty, and Unavailable.
    """
    record = await copies.require(store)
    positions = {partition: at.offset for partition in ranges if (at := record.position(partition))}
    return sum(max(0, last - max(positions.get(p, 0), first)) for p, (first, last) in ranges.items())
