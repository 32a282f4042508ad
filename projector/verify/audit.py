"""Audits the live generation against the topics: finds evicted, corrupted, missing and superfluous documents.

1.  The topics are read once, up to the positions of the projectors. Of each document only hashes are kept, so an entity
    takes less than a kilobyte of memory, whatever its size.
2.  Every document in Redis is compared with these hashes. Its bytes are hashed, so that corruption is detected.
3.  A document that differs may only have changed in the meantime, so `recheck` checks it again.
"""

from collections.abc import AsyncIterator
from typing import Any

from projector.errors import BadRecord
from projector.kafka.reader import Reader, open_reader
from projector.record import Record, entity_key
from projector.redis.store import SLICE, Store
from projector.reference import Entity, Reference
from projector.verify.compare import DocumentKey, document, document_names, in_sample
from projector.verify.hashes import contact_of, expected_hashes, hashes, indexed_hash, stored_hashes
from projector.verify.recheck import Ranges, notes, read_covered, recheck, require_topics
from projector.verify.report import Difference, Report, counts_by_topic
from schemas import names
from schemas.control import GenerationId, number_of
from schemas.layouts import CONTACT_BODY, HASH_BYTES
from schemas.resources import CONTACT, LEAD, ORGANIZATION, RESOURCES, Resource
from schemas.settings import ProjectorSettings

_READ = (ORGANIZATION, *RESOURCES)


async def audit(
    store: Store,
    settings: ProjectorSettings,
    generation: GenerationId,
    *,
    sample: float = 1.0,
    allowed: frozenset[str] = frozenset(),
) -> Report:
    """Compare all documents, or the share `sample` of them, with the topics. Raises Refused if a topic is missing,
    and Unavailable.

    `allowed` are the fields that may differ, such as `leads.quote_total`.
    """
    report = Report(f"generation {number_of(generation)} against the topics", counts_by_topic(), sample)
    async with open_reader(settings, _READ) as reader:
        await require_topics(reader, settings, _READ)
        covered = await read_covered(store, reader)
        report.notes += await notes(store, reader, covered)
        expected = await _read_topics(reader, covered, sample)
        suspects = await _suspects(store, generation, expected, report)
        del expected  # frees its memory
        verdict = await recheck(store, settings, reader, generation, suspects)
    for (resource, organization_id, entity_id), fields in verdict.differing.items():
        report.add(Difference(resource.topic, organization_id, entity_id, fields), allowed)
    if verdict.changing:
        report.changing = verdict.changing
        report.notes.append(f"{verdict.changing:,} documents kept changing and could not be compared")
    return report


async def _read_topics(reader: Reader, covered: Ranges, sample: float) -> Reference:
    expected = Reference(hashes)
    async for records in reader.read(covered):
        for record in records:
            if _is_wanted(record, sample):
                expected.add(record)
    return expected


def _is_wanted(record: Record, sample: float) -> bool:
    """A sample leaves out only leads, because any lead may contain the summary of any contact."""
    if record.kind is not LEAD or sample == 1:
        return True
    try:
        return in_sample(names.short_id(entity_key(record).id), sample)
    except BadRecord:
        return False


async def _suspects(store: Store, generation: GenerationId, expected: Reference, report: Report) -> list[DocumentKey]:
    """Returns the documents that differ from the topics, and those that are missing."""
    suspects: list[DocumentKey] = []
    seen: set[Entity] = set()
    async for entities in _entities(store, generation, report.sample):
        stored = await _read_stored(store, generation, entities, expected)
        for entity, (value, indexed) in zip(entities, stored, strict=True):
            if entity in seen:
                continue
            seen.add(entity)
            report.checked[entity[0].topic] += expected_hashes(expected, entity) is not None
            if not _is_right(entity, value, indexed, expected):
                suspects.append(entity)
    for kind, organization_id, id_ in expected.newest.keys() - seen:
        if not isinstance(kind, Resource) or not in_sample(names.short_id(id_), report.sample):
            continue
        missing = (kind, organization_id, id_)
        if expected_hashes(expected, missing):
            report.checked[kind.topic] += 1
            suspects.append(missing)
    return suspects


def _is_right(entity: DocumentKey, value: bytes | None, indexed: bytes | None, expected: Reference) -> bool:
    resource, wanted = entity[0], expected_hashes(expected, entity)
    found = document(resource, value)
    if value is None or found.body is None or wanted is None:
        return found.body is None and wanted is None
    in_index = resource is not LEAD or indexed == wanted[HASH_BYTES:]
    return in_index and stored_hashes(resource, value) == wanted and found.version == expected.newest[entity].version


async def _entities(store: Store, generation: GenerationId, sample: float) -> AsyncIterator[list[DocumentKey]]:
    """Yields the entities that have a document or a marker in Redis, in lists of up to `SLICE`."""
    entities: list[DocumentKey] = []
    async for owner, number, resource, short in document_names(store, sample):
        if number == generation:
            entities.append((resource, names.organization_id(owner), names.long_id(short)))
            if len(entities) == SLICE:
                yield entities
                entities = []
    yield entities


async def _read_stored(
    store: Store, generation: GenerationId, entities: list[DocumentKey], expected: Reference
) -> list[tuple[bytes | None, bytes | None]]:
    """Read the value of each entity and, for a lead, the summary hash that the index of its contact has for it."""
    commands: list[tuple[Any, ...]] = []
    for entity in entities:
        resource, organization_id, id_ = entity
        owner = names.organization(organization_id)
        contact_id = contact_of(expected, entity) or id_  # without a contact: a key that does not exist
        commands += (
            (b"GET", names.document(resource, owner, generation, id_)),
            (b"GETRANGE", names.document(CONTACT, owner, generation, contact_id), 0, CONTACT_BODY - 1),
            (b"ZSCORE", names.contact_leads(owner, generation, contact_id), names.short_id(id_)),
        )
    replies = iter(await store.ask(commands))
    return [
        (value, indexed_hash(contact, score, names.short_id(id_)))
        for (_, _, id_), value, contact, score in zip(entities, replies, replies, replies, strict=True)
    ]
