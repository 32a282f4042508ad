"""Finds out up to which moment everything that Kafka held is visible: what the API says in `Data-As-Of`.

A sample is a moment, and the end offsets that Kafka had after it. As soon as the positions of a shard have reached
them, every change that Kafka held at that moment is visible there.

Each clock may be wrong, and may be set at any time. So two of them have to agree: that of the Redis server with the
home copy of the control record, and that of this program. The moment is the earlier time of both. While they differ,
there is no sample.

The same script keeps the moments of each topic (`projector/upkeep/complete.py`). While a break is not confirmed, nobody
knows whether everything is visible, and nothing is said.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from msgspec import Struct

from projector.errors import Unavailable
from projector.kafka.reader import Reader
from projector.kafka.topics import Topic
from projector.ledger import breaks
from projector.ledger.control import NO_ID, ControlRecord
from projector.ledger.writers import Writing
from projector.redis import scripts
from projector.redis.scripts import CompleteRow, EndRow
from projector.stop import Stop, repeat
from projector.upkeep.complete import Completeness
from runtime.redis.scripts import Command
from schemas import names
from schemas.heartbeat import APART_MS, Clocks
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings

_PAUSE_SECONDS = 0.5
_LASTS_MS = 20_000
"""The stored moments expire if no projector has taken a sample for this time."""

logger = logging.getLogger(__name__)


class _Sample(Struct, frozen=True):
    """`moment` is in ms since 1970, and `ends` are those of each topic."""

    moment: int
    ends: dict[str, list[EndRow]]

    @property
    def rows(self) -> list[EndRow]:
        return list(chain(*self.ends.values()))


class Seen(NamedTuple):
    """The last answer of Kafka: the id of the cluster, empty if it is not known, and the topics."""

    cluster: str
    topics: Sequence[Topic]


class DataAsOf:
    """Takes samples in a projector, and stores each one in the shards that have reached it."""

    def __init__(self, settings: ProjectorSettings, writing: Writing, clock: Callable[[], float] = time.time) -> None:
        """`clock` is that of this program, in seconds since 1970."""
        self._clock = clock
        self._settings = settings
        self._writing = writing
        self._reader: Reader | None = None
        self._complete = Completeness(settings, writing.store)
        self.seen: Seen | None = None
        """None if Kafka did not answer the last time."""
        self.able_at = time.monotonic()
        """When it was last known that samples can be taken here: the Kafka of this installation has answered, and the
        clocks agree; at first the moment of creation."""
        self._latest: _Sample | None = None
        self._waiting: dict[bytes, _Sample] = {}
        """The sample that each shard has not reached yet. A later one would move away from it while changes arrive."""
        self._of_topics: dict[tuple[bytes, str], _Sample] = {}
        """The same for each topic in a shard: it need not wait for other topics, which may be far behind."""

    async def run(self, stop: Stop) -> None:
        """Take samples until `stop` is set. Retries while Redis or Kafka is unavailable."""
        try:
            await repeat("the measurement of Data-As-Of", self._turn, stop, lambda: _PAUSE_SECONDS)
        finally:
            await self._close()

    async def _turn(self) -> None:
        record = await self._writing.sessions.look()
        moment = await self._store(record)
        self._latest = None
        try:
            reader = await self._started()
            topics = await reader.present()
            self.seen = Seen(reader.cluster, topics)
            if moment is None:
                return
            if _is_of_record(reader, record):
                self.able_at = time.monotonic()
            ends = await _ends(reader, topics, record)
            await self._complete.read_retention(reader)
        except Unavailable:
            await self._close()  # its connections may be broken
            raise
        if ends is not None:
            self._latest = _Sample(moment, ends)

    async def _store(self, record: ControlRecord) -> int | None:
        """Store the samples in the shards that have reached them. Returns the time, in ms since 1970; None if the
        clocks differ.
        """
        latest = self._latest
        self._waiting = {tag: old for tag in record.copies if (old := self._waiting.get(tag) or latest)}
        hidden, topics = breaks.hides(record), await self._complete.rows(record)
        commands = [self._command(tag, latest, topics[tag], hidden=hidden) for tag in record.copies]
        before = int(self._clock() * 1000)
        replies = dict(zip(record.copies, await self._writing.store.run(commands), strict=True))
        after = int(self._clock() * 1000)
        missed = {}
        for tag, (_, stored, moments, late) in replies.items():
            if tag in self._waiting and stored >= self._waiting[tag].moment:
                del self._waiting[tag]
            for row, moment in zip(topics[tag], moments, strict=True):
                if (of_topic := self._of_topics.get((tag, row.topic))) and moment >= of_topic.moment:
                    del self._of_topics[tag, row.topic]
            if late:
                missed[tag] = {name.decode(): int(moment) for name, moment in zip(late[::2], late[1::2], strict=True)}
        await self._complete.note(record, missed)
        clocks = Clocks.read(before, int(replies[names.HOME][0]), after)
        return None if clocks.differ else min(clocks.redis, after)

    def _command(self, tag: bytes, latest: _Sample | None, rows: Sequence[CompleteRow], *, hidden: bool) -> Command:
        """Returns the call that stores in a shard what it has reached. Without the `latest` sample it only compares."""
        sample = self._waiting.get(tag) if latest else None
        topics, later = [], []
        for row in rows:
            of_topic = self._of_topics.setdefault((tag, row.topic), latest) if latest else None
            if of_topic and of_topic is not sample:
                later += of_topic.ends.get(row.topic, [])
                row = row._replace(own=of_topic.moment)  # noqa: PLW2901 - the same row
            topics.append(row)
        needed = sample.rows if sample else []
        return scripts.store_as_of(
            copy=names.copy(names.CONTROL, tag),
            as_of=names.copy(names.AS_OF, tag),
            complete=names.copy(names.COMPLETE, tag),
            moment=sample.moment if sample else 0,
            lasts=_LASTS_MS if sample else 0,
            apart=APART_MS,
            hidden=hidden,
            number=len(topics),
            count=len(needed),
            topics=topics,
            ends=[*needed, *later],
        )

    async def _started(self) -> Reader:
        if self._reader is None:
            reader = Reader(self._settings, KINDS)
            await reader.start()
            self._reader = reader
        return self._reader

    async def _close(self) -> None:
        reader, self._reader, self.seen = self._reader, None, None
        if reader:
            with suppress(Unavailable):
                await reader.stop()


async def _ends(reader: Reader, topics: Sequence[Topic], record: ControlRecord) -> dict[str, list[EndRow]] | None:
    """Returns the end offsets of all partitions that had records, by topic; None if a partition cannot be read, or if
    another cluster answers.
    """
    if not _is_of_record(reader, record):
        return None
    if any(topic.leaderless or not topic.partitions for topic in topics):
        return None
    ends = await reader.end_offsets([partition for topic in topics for partition in topic.partitions])
    return {
        topic.name: [
            EndRow(names.position(*at), end, topic.id or NO_ID) for at in topic.partitions if (end := ends[at])
        ]
        for topic in topics
    }


def _is_of_record(reader: Reader, record: ControlRecord) -> bool:
    """Returns whether the cluster that answers is the one whose records are served, as far as both are known."""
    return not record.state.cluster or reader.cluster in ("", record.state.cluster)
