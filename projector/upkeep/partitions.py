"""Notices partitions that were added to a topic: the break `partitions_raised`.

A message key may belong to another partition then. Its former records stay in the former partition, and compaction
never removes the last of them, because it works in each partition alone; a null value in the new partition is removed
after `delete.retention.ms`. So reading the topics from the beginning after that, as after an emptied Redis or in a
rebuild, brings back what was deleted.

The number of partitions of each topic is stored in the control record, and in case Redis is emptied, in Kafka as well:
in the group `<group id>.partitions`, which has no members, as the metadata of the offset of partition 0. Kafka deletes
it with the topic, and forgets what is not written for `offsets.retention.minutes`.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from projector.errors import Conflict, Refused
from projector.kafka.accepted import OffsetTexts, text_of
from projector.kafka.topics import Topic
from projector.ledger import breaks, copies
from projector.ledger.control import ControlRecord, PartitionCount, State
from projector.ledger.writers import Writing
from projector.record import Partition
from projector.stop import Stop, repeat
from projector.upkeep.as_of import Seen
from schemas.settings import ProjectorSettings

_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS = 1.0, 0.05
_RENEW_SECONDS = 600.0

logger = logging.getLogger(__name__)


class Partitions:
    """Notices when the number of partitions of a topic grows."""

    def __init__(self, settings: ProjectorSettings, writing: Writing, seen: Callable[[], Seen | None]) -> None:
        """`seen` returns what Kafka has said last about the topics."""
        self._settings = settings
        self._sessions, self._store = writing.sessions, writing.store
        self._seen = seen
        self._texts = OffsetTexts(settings, f"{settings.group_id}.partitions")
        self._written: dict[str, PartitionCount] = {}
        """The numbers stored in Kafka, as far as this projector has written them."""
        self._written_at = 0.0

    async def run(self, stop: Stop) -> None:
        """Look until `stop` is set. Retries while Redis or Kafka is unavailable."""
        pause = lambda: _PAUSE_SECONDS if self._seen() else _FIRST_PAUSE_SECONDS  # noqa: E731
        await repeat("the look at the number of partitions", self._turn, stop, pause)

    async def _turn(self) -> None:
        if not (seen := self._seen()):
            return
        record = await self._sessions.look(_PAUSE_SECONDS)
        if record.state.cluster in ("", seen.cluster):  # otherwise the topics of another cluster were counted
            await self.look(record, seen.topics)

    async def look(self, record: ControlRecord, topics: Sequence[Topic]) -> None:
        """Note the break if a topic has more partitions than it had, and remember how many it has. Usually there is
        nothing to do. Raises Unavailable.
        """
        present = {topic.name: PartitionCount(len(topic.partitions), topic.id) for topic in topics if topic.partitions}
        known = record.state.partitions
        if new := {name: count for name, count in present.items() if name not in known or count.differs(known[name])}:
            remembered = await self._read([name for name in new if name not in known])
            await self._note(record, new, known | remembered)
            return
        raised = {it.topic for it in record.state.breaks if it.kind == "partitions_raised"}
        confirmed = {name: count for name, count in present.items() if name not in raised}
        is_due = time.monotonic() - self._written_at > _RENEW_SECONDS
        if is_due or any(self._written.get(name) != count for name, count in confirmed.items()):
            await self._write(confirmed, await self._read(raised) if is_due else {})

    async def _note(
        self, record: ControlRecord, new: dict[str, PartitionCount], known: dict[str, PartitionCount]
    ) -> None:
        raised = [name for name, count in new.items() if name in known and count.is_raised_from(known[name])]
        found = [breaks.new_break(record, "partitions_raised", name) for name in raised]

        def compute(state: State) -> State:
            return replace(breaks.with_breaks(state, found), partitions=state.partitions | new)

        with suppress(Conflict):  # then another projector has noted it, or the next look does
            await copies.change(self._store, record, compute)
            for name in raised:
                logger.error(
                    "partitions were added to a topic, so what a null value deletes may come back: see `status`",
                    extra={"topic": name, "before": known[name].count, "now": new[name].count},
                )

    async def _read(self, topics: Sequence[str] | set[str]) -> dict[str, PartitionCount]:
        """Returns what Kafka remembers. What this user may not read counts as nothing."""
        try:
            texts = await self._texts.read([Partition(name, 0) for name in topics])
        except Refused as error:
            logger.warning("how many partitions there were cannot be read", extra={"error": str(error)})
            return {}
        found = {}
        for at, stored in texts.items():
            with suppress(msgspec.MsgspecError):
                found[at.topic] = msgspec.json.decode(stored.metadata, type=PartitionCount)
        return found

    async def _write(self, confirmed: dict[str, PartitionCount], others: dict[str, PartitionCount]) -> None:
        """Let Kafka remember these numbers, and keep the `others`, of topics whose partitions were added."""
        texts = {
            Partition(name, 0): text_of(count.count, msgspec.json.encode(count).decode())
            for name, count in (others | confirmed).items()
        }
        try:
            await self._texts.write(texts)
        except Refused as error:
            logger.warning("how many partitions there are cannot be written to Kafka", extra={"error": str(error)})
        self._written, self._written_at = dict(confirmed), time.monotonic()
