"""The upkeep of a projector beside its lines.

Once a second it notes which shards are complete, finishes drops and logs warnings. Less often it deletes dead letters
that nobody needs any more, because a newer event of the same entity was applied since: the stored value of an entity
names that event, so the dead letters are compared with these values. Nothing is read from Kafka for that.
"""

import logging
import time

from projector.dead_letter import DeadLetter
from projector.errors import ProjectorError, Refused, Unavailable
from projector.kafka.client import topic
from projector.kafka.reader import open_reader
from projector.ledger import copies, generations, writers
from projector.ledger.control import ControlRecord, Copy
from projector.ledger.writers import Writing
from projector.mapping import VERSION
from projector.record import Partition
from projector.redis.store import Store
from projector.stop import Stop, repeat
from projector.upkeep import redrive
from schemas import names
from schemas.control import GenerationId, number_of
from schemas.fields import UUID_AS_0, are_lower_uuids
from schemas.layouts import HEAD, Head, read_head
from schemas.resources import API_KEY, KINDS, ORGANIZATION, Kind, Resource
from schemas.settings import ProjectorSettings

_PAUSE_SECONDS = 1.0
_SHORT_PAUSE_SECONDS = 0.1  # while readers wait for a shard to be filled
_WARN_SECONDS = 60.0
_SWEEP_SECONDS = 20.0
"""A generation that has been dropping for this time has lost the command that dropped it."""
_LOOK_SECONDS = 10.0
_SHARE = 0.02
"""The share of the time that a look at very many dead letters may take."""
_MEMORY_WARNING = 0.8

logger = logging.getLogger(__name__)


class Keeper:
    """Runs once in every projector, beside its lines."""

    def __init__(self, settings: ProjectorSettings, writing: Writing) -> None:
        self._settings = settings
        self._writing = writing
        self._store = writing.store
        self._end_offsets: dict[str, dict[Partition, int]] = {}
        """For each incarnation that is being filled, the end offsets when this keeper saw it first."""
        self._dropping_since: dict[GenerationId, float] = {}
        self._warned_at = -_WARN_SECONDS

    async def run(self, stop: Stop) -> None:
        """Repeat until `stop` is set. Retries while Redis or Kafka is unavailable."""
        await repeat("upkeep", self._turn, stop, lambda: _SHORT_PAUSE_SECONDS if self._end_offsets else _PAUSE_SECONDS)

    async def _turn(self) -> None:
        record = await self._writing.sessions.look()
        await self._note_filled(record)
        await self._finish_drops(record)
        await writers.forget_silent(self._store)
        await self._warn(record)

    async def _note_filled(self, record: ControlRecord) -> None:
        """Note which shards hold everything. Until then the API serves nothing from them, because it would return 404
        for records that exist.

        A shard is filled when the positions of its copy have reached the end offsets that were read after its copy had
        been created. It does not wait for jobs: while a recreated organization is replayed, its own record says so.
        """
        unfilled = {tag: copy for tag, copy in record.copies.items() if copy and copy.unfilled}
        end_offsets = self._end_offsets
        self._end_offsets = {}
        for tag, copy in unfilled.items():
            ends = end_offsets.get(copy.incarnation) or await self._read_end_offsets(record)
            if ends is None:
                return
            self._end_offsets[copy.incarnation] = ends
            if _has_reached(copy, ends):
                needed = {partition: end for partition, end in ends.items() if end}
                if await copies.mark_filled(self._store, record, [tag], copy.unfilled, needed):
                    logger.info("a shard is complete and is served now", extra={"copy": tag.decode()})
                del self._end_offsets[copy.incarnation]

    async def _read_end_offsets(self, record: ControlRecord) -> dict[Partition, int] | None:
        """Returns None if a topic is missing: a Redis that holds nothing is not complete. The health says so."""
        async with open_reader(self._settings, KINDS) as reader:
            try:
                ranges = await reader.range(await reader.existing_partitions())
            except Refused:
                return None
        # Kafka may not name a partition for a moment. What any shard has read of it must be read in this one, too.
        known = {partition for copy in record.present for partition in copy.positions}
        missing = {partition: record.highest_offset(partition) for partition in known - ranges.keys()}
        return missing | {partition: last for partition, (_, last) in ranges.items()}

    async def _finish_drops(self, record: ControlRecord) -> None:
        """Finish drops whose command has died."""
        now = time.monotonic()
        self._dropping_since = {old: self._dropping_since.get(old, now) for old in record.state.dropping}
        for old, since in self._dropping_since.items():
            if now - since > _SWEEP_SECONDS:
                self._dropping_since[old] = now
                number = number_of(old)
                try:
                    keys = await generations.sweep(self._writing, record, old)
                except Unavailable:
                    raise
                except ProjectorError as error:
                    logger.warning("a drop was not finished", extra={"generation": number, "error": str(error)})
                else:
                    logger.info("a drop was finished", extra={"generation": number, "keys": keys})

    async def _warn(self, record: ControlRecord) -> None:
        if time.monotonic() - self._warned_at < _WARN_SECONDS:
            return
        ratio = await self._store.memory_ratio()
        due = record.rebuild_due()
        if ratio >= _MEMORY_WARNING:
            logger.warning("the memory of Redis is nearly full: raise maxmemory", extra={"used": round(ratio, 3)})
        if due:
            logger.warning(
                "a rebuild is due: the live generation was written with an older mapping version",
                extra={
                    "generation": number_of(record.state.live),
                    "mapping": record.state.generations[record.state.live].mapping,
                    "program_mapping": VERSION,
                },
            )
        if due or ratio >= _MEMORY_WARNING:
            self._warned_at = time.monotonic()


def _has_reached(copy: Copy, end_offsets: dict[Partition, int]) -> bool:
    return all(
        end == 0 or ((position := copy.positions.get(partition)) is not None and position.offset >= end)
        for partition, end in end_offsets.items()
    )


class Superseded:
    """Runs once in every projector, beside its lines."""

    def __init__(self, settings: ProjectorSettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._seconds = 0.0

    async def run(self, stop: Stop) -> None:
        """Repeat until `stop` is set."""
        await repeat(
            "the look for superseded dead letters",
            self._turn,
            stop,
            lambda: max(_LOOK_SECONDS, self._seconds / _SHARE),
        )

    async def _turn(self) -> None:
        began = time.monotonic()
        deleted = await clear(self._store, self._settings)
        self._seconds = time.monotonic() - began
        if deleted:
            logger.info("dead letters deleted, because newer events were applied", extra={"dead_letters": deleted})


async def clear(store: Store, settings: ProjectorSettings) -> int:
    """Delete the dead letters whose entity shows a newer event. Returns how many. Raises Unavailable."""
    record = await copies.read(store)
    if record is None:
        return 0
    kinds = {topic(settings, kind): kind for kind in KINDS}
    deleted = 0
    async for dead_letters in redrive.in_slices(store):
        waiting = [letter for letter in dead_letters if not letter.accepted]  # others stay until they are dropped
        found = [(letter, name) for letter in waiting if (name := _value_of(letter, kinds, record.state.live))]
        if not found:
            continue
        values = await store.ask([(b"GETRANGE", name, 0, HEAD - 1) for _, name in found])
        over = [letter for (letter, _), value in zip(found, values, strict=True) if _is_superseded(letter, value)]
        deleted += await redrive.delete(store, over)
    return deleted


def _value_of(letter: DeadLetter, kinds: dict[str, Kind], generation: GenerationId) -> bytes | None:
    """Returns the name of the value of a dead letter's entity; None if its message key names none."""
    kind = kinds.get(letter.topic)
    organization_id, _, id_ = letter.key.partition(":")
    ids = [organization_id] if kind is ORGANIZATION else [organization_id, id_]
    if kind is None or any(len(each) != len(UUID_AS_0) for each in ids) or not are_lower_uuids(ids):
        return None
    owner = names.organization(organization_id)
    if isinstance(kind, Resource):
        return names.document(kind, owner, generation, id_)
    return names.api_key_entity(owner, id_) if kind is API_KEY else owner


def _is_superseded(letter: DeadLetter, value: bytes) -> bool:
    return len(value) >= HEAD and is_superseded(letter, read_head(value))


def is_superseded(letter: DeadLetter, head: Head) -> bool:
    """Returns whether the event that a value shows is newer than the bad record of a dead letter.

    Events of one entity are in one partition, in order, unless partitions were added. A newer event has a higher
    version; a record that is corrected and published again may have the same one. A bad record may name no version.
    """
    is_later = head.partition == letter.partition and head.offset > letter.offset
    if letter.version is None:
        return is_later
    return head.version > letter.version or (head.version == letter.version and is_later)
