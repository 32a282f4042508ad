"""Notices deletions that Kafka may have removed before they were read: the break `deletes_missed`.

Each shard remembers, for each topic, the last moment at which it had everything that Kafka held
(`projector/redis/lua/store_as_of.lua`). Kafka keeps a deletion for `delete.retention.ms` at least. If the next such
moment comes later than that, deletions may be missing, whatever was in the way: no projector ran, a line was behind, or
Redis came back from an older copy. Then the break is noted, and after that the topic begins again.

A shard that was emptied begins when its copy of the control record is created, because everything is read after that.
So the break is also noted if it took too long to fill the shard, whichever projectors filled it.
"""

import logging
import time
from collections.abc import Mapping

from projector.kafka.client import topic
from projector.kafka.reader import Reader
from projector.kafka.topics import DELETIONS_MS
from projector.ledger import breaks
from projector.ledger.control import Break, ControlRecord
from projector.redis.scripts import CompleteRow
from projector.redis.store import Store
from schemas import names
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings
from schemas.words import utc

_READ_SECONDS = 10.0
"""The time between two reads of `delete.retention.ms`."""
_LEAST_MS = 5_000
"""A shorter gap does not count: samples are taken every half second, and Kafka takes seconds to compact."""
_MOMENT_SECONDS = 2.0
"""Projectors that notice the same break do so within this time."""

Missed = Mapping[bytes, Mapping[str, int]]
"""For each copy, the topics that were incomplete for too long, with the last moment at which they were complete."""

logger = logging.getLogger(__name__)


class Completeness:
    """Watches whether the deletions of each topic are read in time."""

    def __init__(self, settings: ProjectorSettings, store: Store) -> None:
        self._store = store
        self._topics = [topic(settings, kind) for kind in KINDS]
        self._kept: Mapping[str, int] | None = None
        self._read_at = 0.0
        self._incarnations: dict[bytes, str] = {}
        self._first: dict[str, int] = {}
        """The moments with which a shard without moments begins, by topic."""
        self._noted: Missed = {}

    async def read_retention(self, reader: Reader) -> None:
        """Read for how long Kafka keeps deletions, at most once in `_READ_SECONDS`. Raises Unavailable."""
        now = time.monotonic()
        if self._kept is None or now - self._read_at > _READ_SECONDS:
            described = await reader.described()
            self._kept = {it.name: it.retention.deletions if it.retention else DELETIONS_MS for it in described}
            self._read_at = now

    async def rows(self, record: ControlRecord) -> dict[bytes, list[CompleteRow]]:
        """Returns what the script compares in the shard of each copy; nothing until the retention is known. Raises
        Unavailable.
        """
        if (kept := self._kept) is None:
            return {tag: [] for tag in record.copies}
        if record.incarnations() != self._incarnations:
            # A new shard took over slots of others, and begins with their moments. So does one that was emptied, unless
            # its copy was created earlier. Their moments are recent, unless deletions were missed there, too.
            self._first = await self._lowest(record)
            self._incarnations = record.incarnations()
        noted = self._noted
        return {
            tag: [
                CompleteRow(name, max(_LEAST_MS, kept[name]), self._first.get(name, 0), noted.get(tag, {}).get(name, 0))
                for name in self._topics
            ]
            for tag in record.copies
        }

    async def _lowest(self, record: ControlRecord) -> dict[str, int]:
        found: dict[str, int] = {}
        for tag in record.copies:
            for name, moment in (await self._store.read_hash(names.copy(names.COMPLETE, tag))).items():
                found[name] = min(int(moment), found.get(name, int(moment)))
        return found

    async def note(self, record: ControlRecord, missed: Missed) -> None:
        """Note the breaks that follow from what the script has returned. The next rows say which were noted. Raises
        Unavailable.
        """
        earliest: dict[str, int] = {}
        for of_copy in missed.values():
            for name, moment in of_copy.items():
                earliest[name] = min(moment, earliest.get(name, moment))
        new = [
            found
            for name, moment in earliest.items()
            if not _is_noted(record, found := breaks.new_break(record, "deletes_missed", name, since=utc(moment)))
        ]
        self._noted = missed if not new or await breaks.note(self._store, record, new) else {}
        for it in new if self._noted else ():
            logger.error(
                "Kafka may have removed deletions of a topic before they were read: projectors compare it with Redis",
                extra={"topic": it.topic, "since": it.since, "problem": it.kind},
            )


def _is_noted(record: ControlRecord, new: Break) -> bool:
    """Returns whether another projector has noted it a moment ago.

    An older note does not count: a comparison that has begun since then does not know what Kafka has removed later.
    """
    return any(
        (noted.kind, noted.topic, noted.since) == (new.kind, new.topic, new.since) and noted.age < _MOMENT_SECONDS
        for noted in record.state.breaks
    )
