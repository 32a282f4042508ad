"""Audits the live generation against the topics: what was evicted, corrupted, missed, or should not be there.

1.  The topics are read once, and of each document only hashes are kept: under a kilobyte an entity, whatever its size.
2.  Every document in Redis is compared with them. Its bytes are hashed again, so that a corrupted one shows.
3.  What differs may only have changed meanwhile: it is read again from the topics and from Redis and compared byte
    for byte, a few times over.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

import msgspec

from projector import mapping
from projector.compare import differing_fields, document, document_names
from projector.errors import BadRecord
from projector.kafka import Reader, open_reader
from projector.record import Kind, Partition, Record, entity_key
from projector.reference import Document, Entity, Reference
from projector.report import Difference, Report
from projector.store import Store
from schemas import documents, names
from schemas.layouts import CONTACT_BODY, LEAD_BODY, NO_CONTACT, TAGS, content_hash
from schemas.settings import ProjectorSettings

_KINDS = {b"l": Kind.LEAD, b"c": Kind.CONTACT}
_READ = (Kind.ORGANIZATION, Kind.CONTACT, Kind.LEAD)
_ROUNDS = 3
_SLICE = 500
_encode = msgspec.json.encode

Ranges = Mapping[Partition, tuple[int, int]]


async def audit(
    store: Store,
    settings: ProjectorSettings,
    generation: int,
    *,
    sample: float = 1.0,
    allowed: frozenset[str] = frozenset(),
) -> Report:
    """Compare every document, or this share of them, with what the topics say. Raises Unavailable."""
    report = Report(f"generation {generation} against the topics", {Kind.LEAD: 0, Kind.CONTACT: 0}, sample)
    async with open_reader(settings, _READ) as reader:
        ranges = await reader.range(await reader.partitions())
        report.notes += _gaps(ranges)
        expected = Reference(_hashes)
        async for records in reader.read(ranges):
            for record in records:
                if _is_wanted(record, sample):
                    expected.add(record)
        suspects = await _suspects(store, generation, expected, sample, report)
        del expected  # its memory is needed no more
        for _ in range(_ROUNDS):
            if suspects:
                suspects = await _look_again(store, reader, generation, suspects)
    for (kind, organization_id, entity_id), fields in suspects.items():
        report.add(Difference(kind, organization_id, entity_id, fields), allowed)
    return report


def _gaps(ranges: Ranges) -> list[str]:
    return [
        f"{partition.topic}:{partition.partition} begins at offset {first}: what was only said before it shows as extra"
        for partition, (first, _) in ranges.items()
        if first
    ]


def _is_wanted(record: Record, sample: float) -> bool:
    """Contacts are all wanted: any lead may show them."""
    if record.kind is not Kind.LEAD or sample == 1:
        return True
    try:
        return crc32(names.short_id(entity_key(record).id)) < sample * 2**32
    except BadRecord:
        return False


def _hashes(document: Document) -> Any:
    """The 12 bytes of a contact that are its tags in Redis; of a lead the first 6, and its contact's id."""
    match document:
        case documents.Lead():
            return content_hash(_encode(document)), document.contact_id
        case documents.Contact():
            return content_hash(_encode(document)) + content_hash(_encode(mapping.contact_summary(document)))
    return None


def _expected_tags(expected: Reference, entity: Entity) -> bytes | None:
    """The tags (tag and mark) that a document should have; None where there should be none."""
    kind, organization_id, _ = entity
    found = expected.newest.get(entity)
    if found is None or not found.live or expected.is_erased(organization_id):
        return None
    if kind is Kind.CONTACT:
        return bytes(found.document)
    tag, contact_id = found.document
    contact = expected.newest.get((Kind.CONTACT, organization_id, contact_id))
    return bytes(tag + (contact.document[6:] if contact and contact.live else NO_CONTACT))


async def _suspects(
    store: Store, generation: int, expected: Reference, sample: float, report: Report
) -> dict[Entity, tuple[str, ...]]:
    """Documents whose bytes are not what they should be, and those that are not there."""
    suspects: dict[Entity, tuple[str, ...]] = {}
    seen: set[Entity] = set()
    async for entities in _entities(store, generation, sample):
        for entity, value in zip(entities, await _values(store, generation, entities), strict=True):
            kind = entity[0]
            tags = _expected_tags(expected, entity)
            report.checked[kind] += tags is not None and entity not in seen
            seen.add(entity)
            if _true_tags(kind, value) != tags:
                suspects[entity] = ()
    for entity, newest in expected.newest.items():
        kind = entity[0]
        sampled = sample == 1 or crc32(names.short_id(entity[2])) < sample * 2**32
        if not (newest.live and kind in report.checked and sampled) or entity in seen:
            continue
        if _expected_tags(expected, entity) is not None:
            report.checked[kind] += 1
            suspects[entity] = ()
    return suspects


def _true_tags(kind: Kind, value: bytes | None) -> bytes | None:
    """The tags that a value's own bytes give; None for no document, nothing true for one that contradicts itself."""
    found = document(kind, value)
    if value is None or found.body is None:
        return None
    if kind is Kind.CONTACT:
        tag, mark = content_hash(value[CONTACT_BODY:]), value[28:34]
    else:
        at, length = int.from_bytes(value[34:37], "little"), int.from_bytes(value[37:40], "little")
        body, summary = value[LEAD_BODY:], value[LEAD_BODY + at : LEAD_BODY + at + length]
        tag = content_hash(body[:at] + b"\0" + body[at + length :])
        mark = NO_CONTACT if summary == b"null" else content_hash(summary)
    return tag + mark if tag + mark == value[TAGS] else b""


async def _look_again(
    store: Store, reader: Reader, generation: int, suspects: Iterable[Entity]
) -> dict[Entity, tuple[str, ...]]:
    """Those of the suspects that still differ, with the fields that do."""
    remaining = list(suspects)
    exact = await _read_exactly(reader, remaining)
    still = {}
    for start in range(0, len(remaining), _SLICE):
        entities = remaining[start : start + _SLICE]
        for entity, value in zip(entities, await _values(store, generation, entities), strict=True):
            found = document(entity[0], value)
            body = exact.document(entity)
            fields = differing_fields(msgspec.structs.replace(found, body=body), found)
            if not fields and _true_tags(entity[0], value) == b"":
                fields = ["head"]
            if fields:
                still[entity] = tuple(fields)
    return still


async def _read_exactly(reader: Reader, entities: list[Entity]) -> Reference:
    """The whole documents of some entities, and of the contacts of leads among them, from the topics as they are."""
    ranges = await reader.range(await reader.partitions())
    exact = Reference()
    await _read_keys(reader, ranges, {f"{organization}:{id_}".encode() for _, organization, id_ in entities}, exact)
    contacts = {
        f"{organization}:{newest.document.contact_id}".encode()
        for (kind, organization, _), newest in exact.newest.items()
        if kind is Kind.LEAD and newest.live
    }
    organizations = {organization.encode() for _, organization, _ in entities}
    await _read_keys(reader, ranges, contacts | organizations, exact)
    return exact


async def _read_keys(reader: Reader, ranges: Ranges, keys: set[bytes], into: Reference) -> None:
    async for records in reader.read(ranges):
        for record in records:
            if record.key in keys:
                into.add(record)


async def _entities(store: Store, generation: int, sample: float) -> Any:
    """The entities that Redis has a document or marker of, in slices."""
    entities: list[Entity] = []
    async for owner, number, letter, short in document_names(store, sample):
        if number == generation:
            entities.append((_KINDS[letter], names.organization_id(owner), names.long_id(short)))
            if len(entities) == _SLICE:
                yield entities
                entities = []
    yield entities


async def _values(store: Store, generation: int, entities: list[Entity]) -> list[bytes | None]:
    async with store.errors():
        pipeline = store.redis.pipeline(transaction=False)
        for kind, organization_id, entity_id in entities:
            owner = names.organization(organization_id)
            name = names.lead if kind is Kind.LEAD else names.contact
            pipeline.get(name(owner, generation, entity_id))
        return list(await pipeline.execute())
