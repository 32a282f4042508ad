"""What follows from the topics for a part of the organizations, as far as they were read.

The topics are read to their ends, beyond the positions of the projectors: of an entity that has changed since,
compaction may have removed the record that Redis shows. What comes after the positions is no difference, it is
*pending*. The reading is continued from where it ended: nothing is read twice.
"""

import asyncio
import time

from projector.errors import ProjectorError, Unavailable
from projector.kafka.partitioner import partition_of
from projector.ledger.control import ControlRecord
from projector.reason import TopicReason
from projector.record import Partition, Record
from projector.reference import Entity, Reference
from projector.verify.parts import Part
from projector.verify.stored import Stored, contact_of, hashes, is_deleted, message_key
from projector.verify.topics import Place, Topics
from schemas.layouts import HEAD, read_head
from schemas.resources import CONTACT, ORGANIZATION, Kind

_RECORDS = 500
"""The number of records that are taken at once, so that the event loop turns in between: lines may run in it."""
_APPLIED_SECONDS = 2.0
_APPLIED_PAUSE_SECONDS = 0.1


class TooLarge(ProjectorError):
    """A part has more entities than a comparison may keep at once."""


class Reading:
    """The records of a part of the organizations. Each method that reads raises Unavailable."""

    def __init__(self, topics: Topics, part: Part, most: int) -> None:
        """`most` entities are kept at once, or those of a single organization."""
        self.part = part
        self.topics = topics
        self.expected = Reference(hashes)
        self.ends: dict[Partition, int] = {}
        """Up to where each partition was read."""
        self.unreadable: set[Partition] = set()
        """Partitions with a record batch that cannot be read: nobody knows which entities are in it."""
        self._most = most
        self._positions: dict[Partition, int] = {}
        self._organizations: set[str] = set()
        self._ids: dict[str, str] = {}
        self._raised: dict[str, int] = {}
        self._hashes_otherwise: set[str] = set()
        self._strays: dict[str, set[bytes]] = {}

    @property
    def held(self) -> int:
        """The number of entities that are kept."""
        return len(self.expected.newest) + len(self.expected.bad)

    async def advance(self) -> None:
        """Read what was published since the last call, the first time everything. Then wait a moment until the
        projectors have applied it. Raises TooLarge, and Refused if a topic is missing.
        """
        topics = self.topics
        partitions = await topics.reader.existing_partitions()
        record = await topics.record()
        self._note_ids(await topics.reader.topic_ids())
        self._note_raised(record, partitions)
        ranges = await topics.reader.range(partitions)
        wanted = {at: (max(first, self.ends.get(at, first)), last) for at, (first, last) in ranges.items()}
        async for records in topics.reader.read(wanted, _RECORDS):
            for some in records:
                if self.part.has_key(some.key):
                    self._add(some)
            if self.held > self._most and len(self._organizations) > 1 and self.part.halves():
                raise TooLarge
            await asyncio.sleep(0)
        self.ends = {at: last for at, (_, last) in ranges.items()}
        topics.available = ranges
        await self._wait_until_applied()

    async def _wait_until_applied(self) -> None:
        deadline = time.monotonic() + _APPLIED_SECONDS
        while True:
            self._positions = _positions(await self.topics.record(), list(self.ends))
            if all(self._positions[at] >= end for at, end in self.ends.items()) or time.monotonic() > deadline:
                return
            await asyncio.sleep(_APPLIED_PAUSE_SECONDS)

    def _add(self, record: Record) -> None:
        if record.key is None or record.offsets > 1:
            self.unreadable.add(Partition(record.topic, record.partition))
        else:
            self._organizations.add(record.key[:36].decode(errors="replace"))
        if record.topic in self._raised and record.key is not None:
            self._note_stray(record, record.key)
        self.expected.add(record)

    def _note_ids(self, ids: dict[str, str]) -> None:
        if again := tuple(name for name, id_ in ids.items() if self._ids.get(name, id_) != id_):
            raise Unavailable(TopicReason("recreated_meanwhile", again))
        self._ids = self._ids | ids

    def _note_raised(self, record: ControlRecord, partitions: list[Partition]) -> None:
        numbers: dict[str, int] = {}
        for at in partitions:
            numbers[at.topic] = max(numbers.get(at.topic, 0), at.partition + 1)
        raised = {it.topic for it in record.state.breaks if it.kind == "partitions_raised"}
        self._raised = {name: number for name, number in numbers.items() if name in raised}

    def _note_stray(self, record: Record, key: bytes) -> None:
        """Note a live record in a partition that its key does not belong to any more. All records in the last partition
        were published since partitions were added: if one of them is elsewhere by murmur2, producers use another hash.
        """
        number, strays = self._raised[record.topic], self._strays.setdefault(record.topic, set())
        if partition_of(key, number) == record.partition:
            return
        if record.partition == number - 1:
            self._hashes_otherwise.add(record.topic)
        if record.value is None:
            strays.discard(key)
        else:
            strays.add(key)

    def strays(self) -> dict[str, int]:
        """Returns how many entities of each topic whose partitions were raised have a live record in a former
        partition. One that an event has deleted does not count: compaction keeps this event.
        """
        found = dict.fromkeys(self._raised, 0)
        for topic, keys in self._strays.items():
            if topic in self._hashes_otherwise:
                found[topic] = len(keys)
                continue
            for entity, newest in self.expected.newest.items():
                is_deleted_by_event = not newest.live and not newest.tombstone
                if topic.endswith(entity[0].topic) and message_key(entity) in keys and not is_deleted_by_event:
                    found[topic] += 1
        return found

    def is_former(self, entity: Entity, stored: Stored) -> bool:
        """Returns whether the newest record of an entity is only one of a former partition: the entity was deleted in
        the partition that its key has now. Compaction removes that tombstone, and never the record of before.
        """
        newest = self.expected.newest[entity]
        if len(stored.value) >= HEAD:
            marker = read_head(stored.value)
            if not marker.live and marker.partition != newest.partition:
                return True
        at = self.topics.partition(entity[0], newest.partition)
        number = self._raised.get(at.topic)
        if number is None or at.topic in self._hashes_otherwise:
            return False
        return partition_of(message_key(entity), number) != newest.partition

    def is_pending(self, entity: Entity, *, alone: bool = False) -> bool:
        """Returns whether an event that was read, of an entity or of what it depends on, is not applied yet. `alone`:
        whatever the contact of a lead has.
        """
        _, organization_id, _ = entity
        related: list[Entity] = [entity, (ORGANIZATION, organization_id, organization_id)]
        if not alone and (contact_id := contact_of(self.expected, entity)):
            related.append((CONTACT, organization_id, contact_id))
        for one in related:
            newest = self.expected.newest.get(one)
            if newest and self._is_ahead(one[0], newest.partition, newest.offset):
                return True
            if (bad := self.expected.bad.get(one)) and self._is_ahead(one[0], *bad):
                return True
        return False

    def _is_ahead(self, kind: Kind, partition: int, offset: int) -> bool:
        return offset >= self._positions.get(self.topics.partition(kind, partition), 0)

    def place(self, entity: Entity) -> Place | None:
        """Returns where the newest record of an entity is; None if Kafka has none."""
        newest = self.expected.newest.get(entity)
        if newest is None or newest.partition < 0:
            return None
        return self.topics.partition(entity[0], newest.partition), newest.offset

    def is_left(self, stored: Stored) -> bool:
        """Returns whether the job of a deleted organization will delete this value."""
        return is_deleted(stored.organization) and stored.waits_for_job

    async def check_whole(self, record: ControlRecord) -> None:
        """Check that these topics are those that were applied, so that what they do not have may be deleted. Raises
        Unavailable.
        """
        self._note_ids(await self.topics.reader.topic_ids())
        await self.topics.look_again()  # after the record was read
        for at, end in self.ends.items():
            for position in (copy.positions.get(at) for copy in record.present):
                if position and position.topic_id and self._ids.get(at.topic, position.topic_id) != position.topic_id:
                    raise Unavailable(TopicReason("other_topic", (at.topic,)))
                if position and position.offset > max(end, self.topics.available[at][1]):
                    raise Unavailable(TopicReason("ends_before_position", (f"{at.topic}:{at.partition}",)))


def _positions(record: ControlRecord, partitions: list[Partition]) -> dict[Partition, int]:
    found = {at: record.position(at) for at in partitions}
    return {at: position.offset if position else 0 for at, position in found.items()}
