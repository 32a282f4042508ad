"""The position of a line in each partition that is assigned to it.

A position is the offset of the next record. It is stored in Redis, after the writes that it covers, and only moves
forward there. Kafka's consumer group gets a copy of it for lag tools; a line never resumes from that copy.
"""

import logging
import time
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from projector.dead_letter import DeadLetter
from projector.errors import Unavailable
from projector.kafka.reader import Source
from projector.ledger import breaks
from projector.ledger.control import (
    NOTHING_STORED,
    Advance,
    Checkpointed,
    ControlRecord,
    Covered,
    Position,
    Revision,
    revision,
)
from projector.ledger.ledger import Ledger, Session
from projector.line.history import History
from projector.line.policy import Clock
from projector.reason import RedisReason
from projector.record import Partition, Record, count_by_topic

Ends = tuple[dict[Partition, int], dict[str, str]]
"""The readable ends of partitions, and the ids of the topics."""

logger = logging.getLogger(__name__)


class Positions:
    """The positions of one line: `offsets` are what this line read from the ledger, or stored there last.

    Every coroutine raises Unavailable, except `commit` and `release`.
    """

    def __init__(self, line: str, source: Source, ledger: Ledger, clock: Clock = time) -> None:
        self._line = line
        self._source = source
        self._ledger = ledger
        self._clock = clock
        self._session: Session | None = None
        self._record: ControlRecord | None = None
        self._uncommitted: dict[Partition, int] = {}
        self._history = History(line, source, ledger)
        self.offsets: dict[Partition, int] = {}
        self.round = 0
        """Increases with each return to the stored positions: records that were written before, and are not covered,
        are read again."""

    @property
    def session(self) -> Session:
        """The session in which batches are written. There is one after `ensure_positioned`, until `reset`."""
        if self._session is None:
            raise Unavailable(RedisReason("positions_reset"))
        return self._session

    async def ensure_positioned(self) -> Revision | None:
        """Open a session if there is none, or if partitions are new to this line, and seek these to their stored
        positions. Positions in topics that have lost their history are taken back first. Usually there is nothing to
        do.

        Returns how the control record differs from that of the session before; None if it does not. Raises Superseded,
        and Refused if there is nothing to write any more.
        """
        if self._session and not self._source.unpositioned():
            return None
        await self._open()
        while self._source.unpositioned() and await self._take_back():
            await self._open()  # the control record has changed, and so have the positions
        before, self._record = self._record, self.session.record
        await self._seek_unpositioned()
        return revision(before, self._record) if before else None

    async def _seek_unpositioned(self) -> None:
        unpositioned = self._source.unpositioned()
        if not unpositioned:
            return
        # What was written of other partitions, and is not covered, is read again as well.
        self._source.reset(self._source.assigned())
        self._forget()
        unpositioned = self._source.unpositioned()
        session = self.session
        stored = await self._ledger.positions(session.record, unpositioned)
        stored_offsets = {partition: at.offset if at else NOTHING_STORED for partition, at in stored.items()}
        leader_epochs = {partition: at.leader_epoch for partition, at in stored.items() if at and at.leader_epoch >= 0}
        self._source.read_as(session.record.state.histories, session.record.state.cluster)
        sought = await self._source.seek(
            {partition: at.offset if at else None for partition, at in stored.items()}, leader_epochs
        )
        # If the line begins below a stored position, the partition ends before it: that position is discarded.
        discarded = {p: stored_offsets[p] for p, offset in sought.items() if offset < stored_offsets[p]}
        stored_offsets |= await self.discard_stored(discarded)
        self.offsets |= stored_offsets  # the next checkpoint expects what Redis holds, even if Kafka begins later
        self.keep_assigned()
        logger.info("resumed at the stored positions", extra={"line": self._line, "partitions": count_by_topic(sought)})

    async def _open(self) -> None:
        """Opens a session, and closes the former one. If the control record has changed since that one was opened, all
        partitions have to be positioned again.
        """
        before, session = self._session, await self._ledger.open()
        if before:
            before.close()
            if not before.is_of(session.record):
                self._forget()
                self._source.reset(self._source.assigned())
        self._session = session

    def keep_assigned(self) -> None:
        """Forgets partitions that are no longer assigned. During a rebalance, revoked partitions still count as
        assigned.
        """
        assigned = self._source.assigned()
        self.offsets = {partition: offset for partition, offset in self.offsets.items() if partition in assigned}

    def ahead_of(
        self, polled: Mapping[Partition, Sequence[Record]], ends: dict[Partition, int]
    ) -> dict[Partition, int]:
        """Returns the position of each partition whose first polled record lies before that position: the partition
        ended before it, so an earlier offset was read. `ends` are positions that are not stored yet.
        """
        at = self.offsets | ends
        return {
            partition: at[partition]
            for partition, records in polled.items()
            if records[0].offset < at.get(partition, NOTHING_STORED)
        }

    async def start_over(self, before: Mapping[Partition, int]) -> None:
        """Read again, because Kafka has returned records from before these positions.

        If no break explains that, these positions are discarded.
        """
        self._source.reset(before)
        await self._open()  # the present session has the positions with which it began
        if not await self._take_back():
            await self.discard_stored(before)
        self.reset()

    async def _take_back(self) -> bool:
        """Notes breaks in the control record, then takes back the stored positions that say nothing about their topic
        any more. Returns whether the control record has changed: then open a session.
        """
        if await self._history.learn_cluster(self.session):
            return True
        lost = await self._history.lost(self.session)
        if not lost.breaks:
            return False
        if await self._history.note(self.session, lost):
            await self._open()  # the note has ended the session: a new connection would refuse it
            await self._ledger.rewind(self.session, lost.rewinds)
        return True

    def are_of_former_topics(self, topic_ids: Mapping[str, str]) -> bool:
        """Returns whether the id of a topic or of the cluster has changed since this line sought its positions."""
        return self._history.has_changed(self._session, topic_ids)

    async def discard_stored(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Discards, in Redis, positions that lie behind the end of their partition, although no break explains it.

        Returns `NOTHING_STORED` for each of these partitions.

        Stored positions only move forward. If a stale one stayed, all records before it would count as applied.
        """
        if offsets:
            logger.warning(
                "partitions end before their stored positions: they are read from the beginning",
                extra={"line": self._line, "partitions": count_by_topic(offsets)},
            )
            await self._ledger.rewind(self.session, [breaks.rewind(p, "", at - 1) for p, at in offsets.items()])
        return dict.fromkeys(offsets, NOTHING_STORED)

    async def cover(
        self, advances: Mapping[Partition, Advance], dead_letters: Sequence[DeadLetter] = ()
    ) -> Checkpointed:
        """Stores new positions, with topic ids and leader epochs, together with these dead letters."""
        advances = {at: Advance(it.expected, self._whole(at, it.position)) for at, it in advances.items()}
        outcome = await self._ledger.cover(self.session, advances, dead_letters)
        if isinstance(outcome, Covered):
            moved = {partition: advance.position.offset for partition, advance in advances.items()}
            self.offsets |= {partition: offset for partition, offset in moved.items() if partition in self.offsets}
            self._uncommitted |= moved
        return outcome

    def _whole(self, partition: Partition, position: Position) -> Position:
        topic_id = self._history.topic_ids.get(partition.topic, "")
        return replace(position, leader_epoch=self._source.leader_epoch(partition), topic_id=topic_id)

    async def check(self) -> Checkpointed | None:
        """Compares the positions with what Redis holds. Returns None if nothing has changed, or if there is another
        session by then: it has read the control record itself.

        Without this, a line that has no new records would not notice a rebuild, a drop, or lost writes.
        """
        session = self._session
        outcome = await self._ledger.check(session, dict(self.offsets)) if session else None
        return outcome if session is self._session else None

    async def exchange(self) -> Ends:
        """Commit the positions to Kafka, and ask it for the readable ends and the ids of the topics."""
        partitions = list(self.offsets)
        await self.commit()
        return await self._source.readable_ends(partitions), await self._source.topic_ids()

    async def pass_markers(self, readable_ends: Mapping[Partition, int]) -> Checkpointed | None:
        """Move past transaction markers and compacted records at the readable end of a partition, which no record
        follows.

        Returns None if there is nothing to pass.
        """
        advances = {}
        for partition, end in readable_ends.items():
            position = self._source.position(partition)
            at = self.offsets.get(partition)  # None if the partition was revoked meanwhile
            if at is not None and at < end == position:
                advances[partition] = Advance(at, Position(end, 0, int(self._clock.time() * 1000)))
        return await self.cover(advances) if advances else None

    def are_at(self, ends: Mapping[Partition, int]) -> bool:
        """Returns whether everything before these offsets is applied."""
        return all(self.offsets.get(partition, 0) >= end for partition, end in ends.items())

    async def commit(self) -> None:
        """Commit the positions to Kafka's consumer group. A failure is only logged: only lag tools read them."""
        wanted, self._uncommitted = self._uncommitted, {}
        try:
            await self._source.commit(wanted)
        except Unavailable as error:
            # The next attempt commits these, too: a partition without new records gets no newer position.
            self._uncommitted = wanted | self._uncommitted
            logger.warning(
                "the offsets for lag tools were not committed to Kafka, and will be later",
                extra={"line": self._line, "error": str(error)},
            )

    async def release(self) -> None:
        """Commit, then forget all partitions: they are about to be revoked."""
        await self.commit()
        self._forget()
        self._uncommitted.clear()

    def reset(self) -> None:
        """Read nothing more until the next `ensure_positioned`, which returns to the stored positions."""
        self._forget()
        self.end()
        self._source.reset(self._source.assigned())

    def _forget(self) -> None:
        self.offsets.clear()
        self.round += 1

    def end(self) -> None:
        """Close the session: nothing more is written in it."""
        if self._session:
            self._session.close()
            self._session = None
