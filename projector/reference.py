"""Computes the documents that follow from a list of records, as a pure function.

It shares no code with the scripts that write to Redis. Tests compare Redis with it byte for byte, and `verify` audits a
generation with it.

The newest event of an entity decides, in whatever order the partitions were read:

- An event with a version is newer than one with a lower version.
- A tombstone has no version. It is newer than the records before it in its partition. Compared with a record of another
  partition (after partitions were added), the later time of Kafka wins, and the tombstone if both are the same. It
  keeps the version before it, and an event that creates the entity again must have a higher one.

The last record of an entity in its partition should be its newest one: compaction keeps it alone. `late` has those of
which it is not.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import msgspec

from projector import defect, mapping
from projector.change import Change, read
from projector.errors import BadRecord
from projector.record import Record, entity_key
from schemas import documents, events
from schemas.layouts import MAX_TIME
from schemas.resources import CONTACT, ORGANIZATION, Kind, Resource

Entity = tuple[Kind, str, str]
"""Kind, organization, id."""
Document = msgspec.Struct | None
NOWHERE = -1
"""The partition of several tombstones that have the same time."""
_SMALL = 16_384
"""A record of fewer bytes cannot exceed a limit of documents."""


class KeyState(msgspec.Struct, frozen=True, gc=False):
    """What the newest event of an API key says. `expiry` is in milliseconds since 1970; 0 for never."""

    hash: str
    revoked: bool
    expiry: int


class Newest(msgspec.Struct, frozen=True, gc=False):
    """The newest event of an entity.

    `document` is what the reference's function `keep` returned for the document, by default the document itself. `keep`
    gets None if the entity is deleted or has no document.
    """

    live: bool
    tombstone: bool
    version: int
    partition: int
    offset: int
    time: int
    """That of the record in Kafka."""
    document: Any
    key: KeyState | None = None
    """Only of a live API key."""
    access: bytes = b""
    """API access and limits, as they are stored; only of a live organization."""


class Reference:
    """Takes records one by one, in offset order within each partition. Its documents may be read at any time."""

    def __init__(self, keep: Callable[[Document], Any] = lambda document: document) -> None:
        self._keep = keep
        self._newest: dict[Entity, Newest] = {}
        self.bad: dict[Entity, tuple[int, int]] = {}
        """Partition and offset of the last record of an entity that breaks the contract, as far as it has its key."""
        self._late: dict[Entity, Newest] = {}

    @property
    def late(self) -> Mapping[Entity, Newest]:
        """The entities whose last record in the partition of their newest one is another one, with that last record:
        its version is lower, or it is the same and says something else."""
        return self._late

    @property
    def newest(self) -> Mapping[Entity, Newest]:
        """The newest event of every entity, deleted ones included."""
        return self._newest

    def add(self, record: Record) -> None:
        """Apply a record. A record that breaks the contract changes nothing."""
        try:
            change = read(record)
            document = _document(change)
            if record.value and len(record.value) > _SMALL:
                mapping.intent(change, record)  # checks the limits of documents
        except BadRecord:
            self._note_bad(record)
            return
        except Exception as error:  # noqa: BLE001 - a record on which this program fails is bad (`interpret`)
            defect.report("reading this record", error, record=[record.topic, record.partition, record.offset])
            self._note_bad(record)
            return
        entity = (change.kind, change.key.organization_id, change.key.id)
        found = Newest(
            live=not isinstance(change.entity, events.Deleted | None),
            tombstone=change.entity is None,
            version=change.entity.version if change.entity else 0,
            partition=record.partition,
            offset=record.offset,
            time=min(max(0, record.timestamp), MAX_TIME),
            document=self._keep(document),
            key=_key_state(change),
            access=mapping.access(change.entity) if isinstance(change.entity, events.Organization) else b"",
        )
        before = self._newest.get(entity)
        if before is None:
            self._newest[entity] = found
        elif is_newer(found, before):
            kept = before.version if found.tombstone else found.version
            partition = found.partition
            if found.tombstone and before.tombstone and (before.time, before.partition) != (found.time, partition):
                partition = NOWHERE if before.time == found.time else partition
            self._newest[entity] = msgspec.structs.replace(found, version=kept, partition=partition)
            self._late.pop(entity, None)
        elif found.partition == before.partition and found.offset > before.offset:
            if found.version == before.version and _say_the_same(found, before):
                self._late.pop(entity, None)
            else:
                self._late[entity] = found

    def _note_bad(self, record: Record) -> None:
        with suppress(BadRecord):
            key = entity_key(record)
            self.bad[record.kind, key.organization_id, key.id] = record.partition, record.offset

    def is_bad(self, entity: Entity) -> bool:
        """Returns whether the newest record of an entity breaks the contract: then what it had before stays."""
        if (bad := self.bad.get(entity)) is None:
            return False
        newest = self._newest.get(entity)
        return newest is None or newest.partition != bad[0] or newest.offset < bad[1]

    def document(self, entity: Entity) -> bytes | None:
        """Returns the JSON of one document; None if it should not exist."""
        document = self._whole(entity)
        return msgspec.json.encode(document) if document else None

    def document_of(self, record: Record) -> bytes | None:
        """Returns the JSON of the document that readers get while this record is the newest one of its entity; None if
        they get none. A lead shows its contact as the records that were added say. Raises BadRecord.
        """
        change = read(record)
        document = self._shown(_document(change), change.key.organization_id)
        return msgspec.json.encode(document) if document else None

    def is_erased(self, organization_id: str) -> bool:
        """Returns whether the organization is deleted, and all of its documents with it."""
        organization = self._newest.get((ORGANIZATION, organization_id, organization_id))
        return organization is not None and not organization.live

    def _whole(self, entity: Entity) -> Document:
        """Returns a document, with the current summary of its contact if it is a lead."""
        _, organization_id, _ = entity
        found = self._newest.get(entity)
        return self._shown(found.document, organization_id) if found else None

    def _shown(self, document: Document, organization_id: str) -> Document:
        if self.is_erased(organization_id):
            return None
        if not isinstance(document, documents.Lead):
            return document
        contact = self._newest.get((CONTACT, organization_id, document.contact_id))
        summary = (
            mapping.contact_summary(cast(documents.Contact, contact.document)) if contact and contact.live else None
        )
        return msgspec.structs.replace(document, contact=summary)


def _document(change: Change) -> Document:
    if not isinstance(change.kind, Resource) or isinstance(change.entity, events.Deleted | None):
        return None
    return cast(Document, mapping.document(change.kind, change.entity))


def _key_state(change: Change) -> KeyState | None:
    if not isinstance(change.entity, events.ApiKey):
        return None
    key = change.entity
    return KeyState(key.hash.lower(), key.status == "revoked", mapping.key_expiry(key))


def is_newer(found: Newest, before: Newest) -> bool:
    """Returns whether the event `found` may replace the event `before` of the same entity."""
    if found.tombstone:
        return _comes_after(found, before)
    if before.tombstone and not _comes_after(found, before):
        return False
    return found.version > before.version


def _say_the_same(found: Newest, before: Newest) -> bool:
    """Returns whether two events of one version leave the same behind."""
    if not (found.live or before.live):
        return True
    return (found.live, found.document, found.key, found.access) == (
        before.live,
        before.document,
        before.key,
        before.access,
    )


def _comes_after(found: Newest, before: Newest) -> bool:
    if found.partition == before.partition:
        return found.offset > before.offset
    return found.time > before.time or (found.tombstone and found.time == before.time)
