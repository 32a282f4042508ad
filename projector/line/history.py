"""Checks whether the topics still have the history that the stored positions refer to.

A topic may have been created again, its log may differ from what was read, and Kafka may have deleted records before
they were read. Each of these is a break (`projector/ledger/breaks.py`).
"""

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from projector.errors import Unavailable
from projector.kafka.reader import Source
from projector.ledger import breaks
from projector.ledger.control import Break
from projector.ledger.ledger import Ledger, Session
from projector.reason import TopicReason
from projector.record import Partition
from projector.redis.scripts import RewindRow

_BEHIND_SECONDS = 60.0
"""A broker learns within seconds that a topic was created again. After this time, one that still names the former topic
is right: the cluster was perhaps restored from a backup."""

logger = logging.getLogger(__name__)


class Lost(NamedTuple):
    """The breaks to note, the positions to take back, and the first offset of each partition whose records Kafka has
    deleted before they were read.
    """

    breaks: list[Break]
    rewinds: list[RewindRow]
    missed: dict[Partition, int]


class History:
    """The history of the topics of a line, as it is now."""

    def __init__(self, line: str, source: Source, ledger: Ledger) -> None:
        self._line = line
        self._source = source
        self._ledger = ledger
        self._missed: dict[Partition, int] = {}
        """The first offset of each partition for which it was noted that earlier records were never read."""
        self.topic_ids: dict[str, str] = {}

    def has_changed(self, session: Session | None, topic_ids: Mapping[str, str]) -> bool:
        """Returns whether the id of a topic has changed since the last look, or the cluster is not the stored one."""
        if session and self._source.cluster not in ("", session.record.state.cluster):
            return True
        return any(topic_ids.get(topic, known) != known for topic, known in self.topic_ids.items())

    async def learn_cluster(self, session: Session) -> bool:
        """Reads the topic ids of the cluster that answers, and stores the id of the cluster if none is stored. Returns
        whether it was stored: then open a session. Raises Unavailable, also if it is another cluster.
        """
        self.topic_ids = await self._source.topic_ids()
        state = session.record.state
        self._source.read_as(state.histories, state.cluster)  # nothing of another cluster is applied
        if not self._source.cluster or state.cluster:
            return False
        await self._ledger.learn_cluster(session, self._source.cluster)
        return True

    async def lost(self, session: Session) -> Lost:
        """Returns what the topics have lost below the stored positions of the partitions that wait for `seek`. Raises
        Unavailable.
        """
        state = session.record.state
        former = {it.former_id for it in state.breaks if it.kind == "topic_recreated" and it.age < _BEHIND_SECONDS}
        if behind := [name for name, id_ in self.topic_ids.items() if id_ in former]:
            raise Unavailable(TopicReason("deleted_topic_named", tuple(behind)))
        stored = await self._ledger.stored(session, self._source.unpositioned())
        recreated = breaks.recreated(session.record, stored, self.topic_ids)
        again = {one.topic: one.topic_id for one in recreated}
        # A position that is already one of the present topic stays.
        rewinds = [breaks.rewind(partition, again[partition.topic]) for partition in stored if partition.topic in again]
        cut_off, more = await self._cut_off(session, stored, again.keys())
        missed = await self._never_read(session, stored, again.keys())
        topics = sorted({at.topic for at in missed})
        of_missed = [breaks.new_break(session.record, "records_missed", topic) for topic in topics]
        lost = Lost([*recreated, *cut_off, *of_missed], rewinds + more, missed)
        for one in lost.breaks:
            logger.error(
                "a topic has lost records, so something may be served that Kafka no longer has: see `status`",
                extra={"line": self._line, "topic": one.topic, "problem": one.kind},
            )
        return lost

    async def note(self, session: Session, lost: Lost) -> bool:
        """Stores these breaks, which ends the session. Returns False if another projector has changed the control
        record. Raises Unavailable.
        """
        if not await self._ledger.note(session, lost.breaks):
            return False
        self._missed |= lost.missed
        return True

    async def _never_read(
        self, session: Session, stored: breaks.AllPositions, recreated: Collection[str]
    ) -> dict[Partition, int]:
        """Returns the first offset of each partition whose records Kafka has deleted before this line read them.

        A shard that is being filled holds nothing of a partition without a position, so it misses nothing of it. No
        position is changed: the next records move it.
        """
        unpositioned = [at for at in self._source.unpositioned() if at.topic not in recreated]
        lowest = dict.fromkeys(self._ledger.unread(session, unpositioned), 0)
        lowest |= {
            partition: min(position.offset for position in stored[partition])
            for partition in unpositioned
            if stored.get(partition) and partition not in lowest
        }
        firsts = await self._source.first_offsets(lowest) if lowest else {}
        return {at: first for at, first in firsts.items() if lowest[at] < first != self._missed.get(at)}

    async def _cut_off(
        self, session: Session, stored: breaks.AllPositions, recreated: Collection[str]
    ) -> tuple[list[Break], list[RewindRow]]:
        """Returns the breaks and rewinds of the partitions whose log differs from what was read, below a stored
        position.
        """
        highest = {
            partition: max(stored[partition], key=lambda position: position.offset)
            for partition in self._source.unpositioned()
            if partition in stored and partition.topic not in recreated
        }
        forks = await self._source.forks({p: at.leader_epoch for p, at in highest.items() if at.leader_epoch >= 0})
        found, rewinds = {}, []
        for partition, fork in forks.items():
            at = highest[partition]
            if fork.offset < at.offset:
                id_ = self.topic_ids.get(partition.topic, "")
                found[partition.topic] = breaks.new_break(
                    session.record, "topic_truncated", partition.topic, at.topic_id, id_
                )
                to = replace(at, offset=fork.offset, leader_epoch=fork.epoch, topic_id=id_)
                rewinds.append(breaks.rewind(partition, id_, fork.offset, to))
        return list(found.values()), rewinds
