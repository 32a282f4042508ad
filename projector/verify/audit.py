"""Audits the live generation against the topics: what was evicted, corrupted, missed, or should not be there.

1.  The topics are read once, up to the positions of the projectors, and of each document only hashes are kept: under a
    kilobyte an entity, whatever its size.
2.  Every document in Redis is compared with them. Its bytes are hashed again, so that a corrupted one shows.
3.  What differs may only have changed meanwhile: `suspects` finds out.
"""

from collections.abc import AsyncIterator
from typing import Any

from projector.errors import BadRecord
from projector.kafka.reader import Reader, open_reader
from projector.ledger.ledger import lag
from projector.record import Kind, Record, entity_key
from projector.redis.store import SLICE, Store
from projector.reference import Entity, Reference
from projector.verify.compare import document, document_names, in_sample
from projector.verify.recheck import Ranges, look_again, read_covered
from projector.verify.report import Difference, Report
from projector.verify.tags import expected_tags, hashes, shown_mark, stored_tags
from schemas import names
from schemas.layouts import CONTACT_BODY
from schemas.settings import ProjectorSettings

_KINDS = {b"l": Kind.LEAD, b"c": Kind.CONTACT}
_READ = (Kind.ORGANIZATION, Kind.CONTACT, Kind.LEAD)


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
        covered = await read_covered(store, reader)
        report.notes += await _notes(store, reader, covered)
        expected = await _read_topics(reader, covered, sample)
        suspects = await _suspects(store, generation, expected, report)
        del expected  # its memory is needed no more
        verdict = await look_again(store, settings, reader, generation, suspects)
    for (kind, organization_id, entity_id), fields in verdict.differing.items():
        report.add(Difference(kind, organization_id, entity_id, fields), allowed)
    if verdict.changing:
        report.notes.append(f"{verdict.changing:,} documents kept changing, and could not be compared")
    return report


async def _notes(store: Store, reader: Reader, covered: Ranges) -> list[str]:
    notes = [
        f"{partition.topic}:{partition.partition} begins at offset {first}: what was only said before it shows as extra"
        for partition, (first, _) in covered.items()
        if first
    ]
    behind = await lag(store, await reader.range(list(covered)))
    if behind:
        notes.append(f"the projectors are {behind:,} records behind: those are not looked at")
    return notes


async def _read_topics(reader: Reader, covered: Ranges, sample: float) -> Reference:
    expected = Reference(hashes)
    async for records in reader.read(covered):
        for record in records:
            if _is_wanted(record, sample):
                expected.add(record)
    return expected


def _is_wanted(record: Record, sample: float) -> bool:
    """Contacts are all wanted: any lead may show them."""
    if record.kind is not Kind.LEAD or sample == 1:
        return True
    try:
        return in_sample(names.short_id(entity_key(record).id), sample)
    except BadRecord:
        return False


async def _suspects(store: Store, generation: int, expected: Reference, report: Report) -> list[Entity]:
    """Documents that are not what they should be, and those that are not there."""
    suspects: list[Entity] = []
    seen: set[Entity] = set()
    async for entities in _entities(store, generation, report.sample):
        stored = await _read_stored(store, generation, entities, expected)
        for entity, (value, shown) in zip(entities, stored, strict=True):
            if entity in seen:
                continue
            seen.add(entity)
            report.checked[entity[0]] += expected_tags(expected, entity) is not None
            if not _is_right(entity, value, shown, expected):
                suspects.append(entity)
    for entity in expected.newest.keys() - seen:
        kind, _, id_ = entity
        if kind in report.checked and in_sample(names.short_id(id_), report.sample) and expected_tags(expected, entity):
            report.checked[kind] += 1
            suspects.append(entity)
    return suspects


def _is_right(entity: Entity, value: bytes | None, shown: bytes | None, expected: Reference) -> bool:
    kind = entity[0]
    tags = expected_tags(expected, entity)
    found = document(kind, value)
    if value is None or found.body is None or tags is None:
        return found.body is None and tags is None
    in_index = kind is Kind.CONTACT or shown == tags[6:]
    return in_index and stored_tags(kind, value) == tags and found.version == expected.newest[entity].version


async def _entities(store: Store, generation: int, sample: float) -> AsyncIterator[list[Entity]]:
    """The entities that Redis has a document or marker of, in slices."""
    entities: list[Entity] = []
    async for owner, number, letter, short in document_names(store, sample):
        if number == generation:
            entities.append((_KINDS[letter], names.organization_id(owner), names.long_id(short)))
            if len(entities) == SLICE:
                yield entities
                entities = []
    yield entities


async def _read_stored(
    store: Store, generation: int, entities: list[Entity], expected: Reference
) -> list[tuple[bytes | None, bytes | None]]:
    """The value of each entity, and of a lead the mark that the index of its contact has for it."""
    commands: list[tuple[Any, ...]] = []
    for entity in entities:
        kind, organization_id, id_ = entity
        owner = names.organization(organization_id)
        newest = expected.newest.get(entity)
        contact_id = newest.document.contact_id if kind is Kind.LEAD and newest and newest.live else id_
        contact = names.contact(owner, generation, contact_id)
        commands += [
            (b"GET", (names.lead if kind is Kind.LEAD else names.contact)(owner, generation, id_)),
            (b"GETRANGE", contact, 0, CONTACT_BODY - 1),
            (b"ZSCORE", names.contact_leads(owner, generation, contact_id), names.short_id(id_)),
        ]
    replies = await store.ask(commands)
    return [
        (value, shown_mark(contact, score, names.short_id(id_)))
        for (_, _, id_), value, contact, score in zip(entities, replies[::3], replies[1::3], replies[2::3], strict=True)
    ]
