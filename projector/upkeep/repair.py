"""Writes again what a comparison with the topics has found: what is missing or wrong, and what Kafka no longer has.

Nothing here writes to Redis in a way of its own. What Kafka has is applied once more, as a line applies it. What Kafka
no longer has is deleted by the tombstone that compaction has removed: one that comes right after the event that the
stored value shows, and before any other. So the same check that orders all events (`is_newer` in `heads.lua`) deletes
exactly the value that was compared, in one step: whatever was stored since is newer. Its time is 0, so that it is never
later than an event of another partition. The marker that it leaves keeps the version, so no older event brings the
entity back.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from projector.errors import BadRecord
from projector.interpret import in_turns, interpret
from projector.ledger.control import ControlRecord
from projector.ledger.ledger import Session
from projector.ledger.writers import Writing
from projector.line.apply import apply
from projector.mapping import DeleteApiKey, Intent, PutApiKey
from projector.record import Partition, Record
from projector.redis import calls
from projector.reference import Entity
from projector.verify.comparison import Finding
from projector.verify.reading import Reading
from projector.verify.report import FORMER_PARTITION
from projector.verify.stored import is_deleted, is_expected, message_key
from projector.verify.topics import Place
from schemas.control import GenerationId
from schemas.layouts import HEAD, Head, read_head
from schemas.resources import API_KEY, CONTACT, ORGANIZATION, Kind, Resource

_BATCH = 200

logger = logging.getLogger(__name__)


class Repair:
    """Writes what was found in one comparison. It counts what it has written and deleted."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self.written = 0
        self.deleted = 0

    async def __call__(self, reading: Reading, findings: Sequence[Finding]) -> None:
        """Write these findings. Raises Unavailable, also if the topics are not those that were applied, Superseded, and
        Refused.
        """
        # Organizations first, because nothing has to be done for the keys of a deleted one; contacts before leads.
        order: dict[Kind, int] = {ORGANIZATION: 0, API_KEY: 1, CONTACT: 2}
        ordered = sorted(findings, key=lambda finding: order.get(finding.entity[0], 3))
        for start in range(0, len(ordered), _BATCH):
            await self._write(reading, ordered[start : start + _BATCH])

    async def _write(self, reading: Reading, findings: Sequence[Finding]) -> None:
        records = {
            (Partition(record.topic, record.partition), record.offset): record
            async for record in reading.topics.read_at(_places(reading, findings))
        }
        documents = any(isinstance(finding.entity[0], Resource) for finding in findings)
        with await self._writing.sessions.open(documents=documents) as session:
            await reading.check_whole(session.record)
            lost = lost_topics(session.record)
            intents: dict[GenerationId | None, list[Intent]] = {}
            for finding in findings:
                if finding.record:
                    await self._write_record(reading, finding, records, session, lost)
                elif intent := await self._intent(reading, finding, records, lost):
                    generation = finding.generation if isinstance(finding.entity[0], Resource) else None
                    if generation is None or generation in session.generations:
                        intents.setdefault(generation, []).append(intent)
            for generation, some in intents.items():
                generations = (generation,) if generation else ()
                await apply(self._writing.store, some, generations, fence=session, overwrite_equal=True)

    async def _intent(
        self, reading: Reading, finding: Finding, records: Mapping[Place, Record], lost: frozenset[str]
    ) -> Intent | None:
        """Returns what is to be written for an entity; None if nothing can be done now."""
        entity, stored = finding.entity, finding.stored
        kind = entity[0]
        if finding.fields == (FORMER_PARTITION,) or keeps_what_it_had(finding, reading):
            return None
        if kind is not ORGANIZATION and is_deleted(stored.organization):
            if finding.fields == ("extra",):
                await self._erase(finding)
            return None
        place = reading.place(entity)
        newest = reading.expected.newest.get(entity)
        if newest is not None and (is_expected(reading.expected, entity) or not newest.live):
            if place is None or (record := records.get(place)) is None:
                return None  # Kafka has a newer one by now
            self.written += 1
            try:
                return (await in_turns(record))[0]
            except BadRecord:
                return None
        if newest is not None or finding.fields != ("extra",):
            return None
        if (record := _tombstone(reading, entity, stored.value, lost)) is None:
            return None
        self.deleted += 1
        return interpret(record)[0]

    async def _erase(self, finding: Finding) -> None:
        """Let a job delete all that is left of a deleted organization."""
        head = finding.stored.organization[:HEAD].hex()
        await self._writing.store.add_jobs([f"erase {finding.entity[1]} {head}"])

    async def _write_record(
        self,
        reading: Reading,
        finding: Finding,
        records: Mapping[Place, Record],
        session: Session,
        lost: frozenset[str],
    ) -> None:
        """Write the entries of the record of a hash again, and remove those of API keys that do not have this hash."""
        if finding.record is None or reading.topics.partition(API_KEY, 0).topic in lost:
            return
        key_hash, organization_id = finding.record.key_hash, finding.entity[1]
        if is_deleted(finding.stored.organization):
            await self._erase(finding)
            return
        superfluous = {*finding.record.ids(finding.record.stored)} - {*finding.record.ids(finding.record.expected)}
        for id_ in sorted({*finding.record.ids(finding.record.expected), *superfluous}):
            entity: Entity = API_KEY, organization_id, id_
            if id_ in superfluous and reading.expected.is_bad(entity):
                continue  # it keeps what it had
            newest, place = reading.expected.newest.get(entity), reading.place(entity)
            if newest is None or place is None:
                # No API key at all: a tombstone before all records. It counts only if nothing is stored of the API key.
                record = _record(reading, entity, Head(live=False, version=0, offset=0, partition=0, time=0))
            elif (found := records.get(place)) is None:
                continue
            else:
                record = found
            intent = cast(PutApiKey | DeleteApiKey, interpret(record)[0])
            stored_hash = key_hash if id_ in superfluous else ""
            call = calls.api_key(intent, stored_hash, overwrite_equal=True)
            await self._writing.store.run([call], fence=session)
            self.written += 1


def _places(reading: Reading, findings: Iterable[Finding]) -> list[Place]:
    """Returns where the newest records of these findings are."""
    entities: list[Entity] = []
    for finding in findings:
        if finding.record is None:
            entities.append(finding.entity)
        else:
            ids = {*finding.record.ids(finding.record.expected), *finding.record.ids(finding.record.stored)}
            entities += [(API_KEY, finding.entity[1], id_) for id_ in ids]
    return [place for entity in entities if (place := reading.place(entity))]


def _tombstone(reading: Reading, entity: Entity, value: bytes, lost: frozenset[str]) -> Record | None:
    """Returns the tombstone that compaction has removed; None if Kafka cannot have had one, so that nothing may be
    deleted.

    There is none if the topic has lost its history; if it begins after the event, so that the event itself may be
    missing; or if nothing was published after the event. Nothing may be deleted either if the partition has a record
    batch that cannot be read: the newest record of the entity may be in it.
    """
    head = read_head(value)
    at = reading.topics.partition(entity[0], head.partition)
    if at.topic in lost or at in reading.unreadable or at not in reading.ends:
        return None
    first, end = reading.topics.available[at][0], reading.ends[at]
    is_of_history = head.history == reading.topics.reader.histories.get(at.topic, 0)
    if is_of_history and not first <= head.offset < end - 1:
        return None
    return _record(reading, entity, head)


def _record(reading: Reading, entity: Entity, head: Head) -> Record:
    """Returns a tombstone that comes right after an event."""
    at = reading.topics.partition(entity[0], head.partition)
    key = message_key(entity)
    return Record(at.topic, at.partition, head.offset + 1, 0, key, None, (), entity[0], history=head.history)


def keeps_what_it_had(finding: Finding, reading: Reading) -> bool:
    """Returns whether the newest record of an entity breaks the contract, so that its last good state stays."""
    return finding.fields != ("missing",) and reading.expected.is_bad(finding.entity)


def lost_topics(record: ControlRecord) -> frozenset[str]:
    """Returns the topics that have lost a part of their history: what they do not have is no reason to delete it."""
    return frozenset(it.topic for it in record.state.breaks if it.is_of_history)
