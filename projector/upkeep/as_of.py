"""Finds out up to which moment everything that Kafka held is visible: what the API says in `Data-As-Of`.

A sample is a moment, and the end offsets that Kafka had after it. As soon as the positions of a shard have reached
them, every change that Kafka held at that moment is visible there.

Each clock may be wrong, and may be set at any time. So two of them have to agree: that of the Redis server with the
home copy of the control record, and that of this program. The moment is the earlier time of both. While they differ,
there is no sample.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from projector.errors import Unavailable
from projector.kafka.reader import Reader
from projector.ledger.control import NO_ID
from projector.ledger.writers import Writing
from projector.redis import scripts
from projector.redis.scripts import EndRow
from projector.stop import Stop, repeat
from schemas import names
from schemas.heartbeat import APART_MS, Clocks
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings

_PAUSE_SECONDS = 0.5
_LASTS_MS = 20_000
"""What is stored expires if no projector has taken a sample for so long."""

logger = logging.getLogger(__name__)


class _Sample(Struct, frozen=True):
    """`moment` is in ms since 1970."""

    moment: int
    ends: list[EndRow]


class DataAsOf:
    """Takes samples in a projector, and stores each one in the shards that have reached it."""

    def __init__(self, settings: ProjectorSettings, writing: Writing, clock: Callable[[], float] = time.time) -> None:
        """`clock` is that of this program, in seconds since 1970."""
        self._clock = clock
        self._settings = settings
        self._writing = writing
        self._reader: Reader | None = None
        self._latest: _Sample | None = None
        self._waiting: dict[bytes, _Sample] = {}
        """The sample that each shard has not reached yet. A later one would move away from it while changes arrive."""

    async def run(self, stop: Stop) -> None:
        """Take samples until `stop` is set. Retries while Redis or Kafka is unavailable."""
        try:
            await repeat("the measurement of Data-As-Of", self._turn, stop, lambda: _PAUSE_SECONDS)
        finally:
            await self._close()

    async def _turn(self) -> None:
        moment = await self._store()
        self._latest = None
        if moment is None:
            return
        try:
            ends = await self._ends()
        except Unavailable:
            await self._close()  # its connections may be broken
            raise
        if ends is not None:
            self._latest = _Sample(moment, ends)

    async def _store(self) -> int | None:
        """Store the samples in the shards that have reached them. Returns the time, in ms since 1970; None if the
        clocks differ.
        """
        record = await self._writing.sessions.look()
        latest = self._latest
        self._waiting = {tag: old for tag in record.copies if (old := self._waiting.get(tag) or latest)}
        commands = []
        for tag in record.copies:
            sample = self._waiting.get(tag) if latest else None
            commands.append(
                scripts.store_as_of(
                    copy=names.copy(names.CONTROL, tag),
                    as_of=names.copy(names.AS_OF, tag),
                    moment=sample.moment if sample else 0,
                    lasts=_LASTS_MS if sample else 0,
                    apart=APART_MS,
                    needed=sample.ends if sample else (),
                )
            )
        before = int(self._clock() * 1000)
        replies = dict(zip(record.copies, await self._writing.store.run(commands), strict=True))
        for tag, (_, stored) in replies.items():
            if tag in self._waiting and stored >= self._waiting[tag].moment:
                del self._waiting[tag]
        after = int(self._clock() * 1000)
        clocks = Clocks.read(before, int(replies[names.HOME][0]), after)
        return None if clocks.differ else min(clocks.redis, after)

    async def _ends(self) -> list[EndRow] | None:
        """Returns the end offsets of all partitions that had records; None if a partition cannot be read."""
        if self._reader is None:
            self._reader = Reader(self._settings, KINDS)
            await self._reader.start()
        topics = await self._reader.present()
        if any(topic.leaderless or not topic.partitions for topic in topics):
            return None
        ends = await self._reader.end_offsets([partition for topic in topics for partition in topic.partitions])
        ids = {topic.name: topic.id or NO_ID for topic in topics}
        return [EndRow(names.position(*at), end, ids[at.topic]) for at, end in ends.items() if end]

    async def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader:
            with suppress(Unavailable):
                await reader.stop()
