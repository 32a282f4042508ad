"""Audits what is served against the topics: the documents of the live generation, or organizations and API keys.

1.  The topics are read once, up to the positions of the projectors.
2.  Everything in Redis is compared with that: what is evicted, corrupted, missing and superfluous.
3.  What differs may only have changed in the meantime, so it is looked at again (`projector/verify/topics.py`).
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from projector.errors import BadRecord
from projector.record import Record, entity_key
from projector.redis.store import SLICE, Store
from projector.reference import Entity, Newest, Reference
from projector.verify.report import Difference, Report, counts_by_topic
from projector.verify.stored import (
    Document,
    DocumentKey,
    Stored,
    contact_of,
    differing_fields,
    differs,
    document,
    expected_hashes,
    hashes,
    in_sample,
    is_expected,
    of_record,
    read,
    records_of,
    stored_documents,
    stored_hashes,
)
from projector.verify.topics import Topics, open_topics, settle
from schemas import names
from schemas.control import GenerationId, number_of
from schemas.layouts import KEY_ENTRIES, KEY_ENTRY, KEY_ENTRY_ID, SUMMARY_HASH
from schemas.resources import ACCESS_KINDS, API_KEY, LEAD, ORGANIZATION, RESOURCES, Resource
from schemas.settings import ProjectorSettings

_MAX_DOCUMENTS = 50_000
"""The maximum number of whole documents in memory. If more differ, the rest is reported without another look."""
_NO_GENERATION = GenerationId("")
"""Access depends on none."""


async def documents(
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
    async with open_topics(store, settings, (ORGANIZATION, *RESOURCES)) as topics:
        await topics.look()
        report.notes += await topics.notes()
        suspects = await _suspects(store, generation, topics, report)
        for resource, organization_id, id_ in suspects[_MAX_DOCUMENTS:]:
            report.add(Difference(resource.topic, organization_id, id_, ("hash",)), allowed)

        async def look(chosen: list[DocumentKey]) -> list[DocumentKey]:
            await topics.look()
            exact = await _read_exactly(topics, chosen)
            found = await read(store, generation, chosen, exact.hashed)
            changing = await topics.changing(found)
            for entity in chosen:
                if entity not in changing and (fields := _fields(entity, found[entity], exact)):
                    report.add(Difference(entity[0].topic, entity[1], entity[2], fields), allowed)
            return [entity for entity in chosen if entity in changing]

        changing = await settle(suspects[:_MAX_DOCUMENTS], look)
        report.leave(len(changing), "documents")
    return report


def _is_in_sample(record: Record, sample: float) -> bool:
    """A sample leaves out only leads, because any lead may contain the summary of any contact."""
    if record.kind is not LEAD or sample == 1:
        return True
    try:
        return in_sample(names.short_id(entity_key(record).id), sample)
    except BadRecord:
        return False


async def _suspects(store: Store, generation: GenerationId, topics: Topics, report: Report) -> list[DocumentKey]:
    """Returns the documents that differ from the topics, and those that are missing."""
    expected = Reference(hashes)
    await topics.add_to([expected], lambda record: _is_in_sample(record, report.sample))
    report.late = _late(expected)
    suspects: list[DocumentKey] = []
    seen: set[Entity] = set()
    async for documents in stored_documents(store, report.sample):
        new = list({entity: None for entity, it in documents if it == generation and entity not in seen})
        seen.update(new)
        found = await read(store, generation, new, expected)
        for entity in new:
            report.checked[entity[0].topic] += is_expected(expected, entity)
        suspects += [entity for entity in new if differs(entity, found[entity], expected)]
    for kind, organization_id, id_ in expected.newest.keys() - seen:
        if not isinstance(kind, Resource) or not in_sample(names.short_id(id_), report.sample):
            continue
        missing = (kind, organization_id, id_)
        if is_expected(expected, missing):
            report.checked[kind.topic] += 1
            suspects.append(missing)
    return suspects


def _late(expected: Reference) -> set[str]:
    """Returns the entities whose last record is not their newest one, except those of deleted organizations."""
    return {
        names.late_version(kind.topic, organization_id if kind is ORGANIZATION else f"{organization_id}:{id_}")
        for kind, organization_id, id_ in expected.late
        if kind is ORGANIZATION or not expected.is_erased(organization_id)
    }


class _Exact(NamedTuple):
    """The documents according to the topics: `whole` keeps the documents, `hashed` their hashes."""

    whole: Reference
    hashed: Reference


async def _read_exactly(topics: Topics, entities: Collection[DocumentKey]) -> _Exact:
    """Read these entities, their organizations, and the contacts of their leads from the topics."""
    exact = _Exact(Reference(), Reference(hashes))
    keys = {f"{organization_id}:{id_}".encode() for _, organization_id, id_ in entities}
    wanted = keys | {organization_id.encode() for _, organization_id, _ in entities}
    await topics.add_to(exact, lambda record: record.key in wanted)
    contacts = {
        f"{entity[1]}:{contact_id}".encode()
        for entity in exact.hashed.newest
        if (contact_id := contact_of(exact.hashed, entity))
    }
    if missing := contacts - keys:
        await topics.add_to(exact, lambda record: record.key in missing)
    return exact


def _fields(entity: DocumentKey, stored: Stored, exact: _Exact) -> tuple[str, ...]:
    """Returns the names of what differs from the topics: fields, `head`, `index` or the words of `differing_fields`."""
    resource, body = entity[0], exact.whole.document(entity)
    found, expected = document(resource, stored.value), Document()
    if body:
        expected = Document(exact.whole.newest[entity].version, body, expected_hashes(exact.hashed, entity))
    if (fields := differing_fields(expected, found)) or found.body is None:
        return fields
    if not stored_hashes(resource, stored.value):
        return ("head",)
    return ("index",) if resource is LEAD and stored.indexed != stored.value[SUMMARY_HASH] else ()


class _Names(msgspec.Struct):
    """The ids and the hashes of an organization's keys that have names in Redis."""

    ids: set[str] = msgspec.field(default_factory=set)
    hashes: set[str] = msgspec.field(default_factory=set)


class _Access(NamedTuple):
    """The access of an organization: its own entity and those of its API keys, and the records of their hashes, as they
    should be and as they are.
    """

    entities: list[Entity]
    expected: dict[str, bytes]
    found: dict[str, bytes]


async def access(store: Store, settings: ProjectorSettings) -> Report:
    """Compare all organizations and API keys with the topics.

    Several API keys may share the record of a hash, so an organization is looked at again as a whole. Raises Refused if
    a topic is missing, and Unavailable.
    """
    report = Report("organizations and API keys against the topics", {kind.topic: 0 for kind in ACCESS_KINDS})
    async with open_topics(store, settings, ACCESS_KINDS) as topics:

        async def look(chosen: frozenset[str] | None) -> frozenset[str]:
            """`chosen` are ids of organizations; None for all."""
            await topics.look()
            expected, wanted = Reference(), {organization_id.encode() for organization_id in chosen or ()}
            await topics.add_to(
                [expected], lambda record: chosen is None or (record.key or b"").partition(b":")[0] in wanted
            )
            if chosen is None:
                report.notes.extend(await topics.notes())
                report.late = _late(expected)
                for entity in expected.newest:
                    report.checked[entity[0].topic] += is_expected(expected, entity)
            by_organization = await _read_access(store, expected, await _names_in_redis(store, chosen))
            entities = [entity for one in by_organization.values() for entity in one.entities]
            # Organizations last: a write changes the record of a hash, and then the API key, in one script.
            entities.sort(key=lambda entity: entity[0] is ORGANIZATION)
            stored = await read(store, _NO_GENERATION, entities, expected)
            changing = frozenset(organization_id for _, organization_id, _ in await topics.changing(stored))
            for organization_id in sorted(by_organization.keys() - changing):
                for difference in _of_access(organization_id, by_organization[organization_id], stored, expected):
                    report.add(difference, frozenset())
            return changing

        changing: frozenset[str] = await settle(await look(None), look)
        report.leave(len(changing), "organizations")
    return report


async def _names_in_redis(store: Store, chosen: frozenset[str] | None) -> dict[str, _Names]:
    owners = None if chosen is None else {names.organization(organization_id) for organization_id in chosen}
    found: dict[str, _Names] = {}
    async for keys in store.scan(names.ALL):
        for match in map(names.OF_ACCESS.fullmatch, keys):
            if match and (owners is None or match[1] in owners):
                one = found.setdefault(names.organization_id(match[1]), _Names())
                if match[2] is not None:
                    one.ids.add(names.long_id(match[2]))
                elif match[3] is not None:
                    one.hashes.add(match[3].decode())
    return found


async def _read_access(store: Store, expected: Reference, found: Mapping[str, _Names]) -> dict[str, _Access]:
    """Read the records of all hashes that the topics or the names in Redis speak of."""
    api_keys: dict[str, dict[str, Newest]] = {organization_id: {} for organization_id in found}
    for (kind, organization_id, id_), newest in expected.newest.items():
        of_organization = api_keys.setdefault(organization_id, {})
        if kind is API_KEY:
            of_organization[id_] = newest
    wanted = [
        (organization_id, key_hash)
        for organization_id, keys in api_keys.items()
        for key_hash in {newest.key.hash for newest in keys.values() if newest.key}
        | found.get(organization_id, _Names()).hashes
    ]
    records: dict[str, dict[str, bytes]] = {organization_id: {} for organization_id in api_keys}
    for start in range(0, len(wanted), SLICE):
        some = wanted[start : start + SLICE]
        replies = await store.ask([(b"GET", names.api_key(names.organization(id_), each)) for id_, each in some])
        for (organization_id, key_hash), record in zip(some, replies, strict=True):
            if record is not None:
                records[organization_id][key_hash] = record
    result = {}
    for organization_id, keys in api_keys.items():
        listed = {
            names.long_id(record[at : at + KEY_ENTRY][KEY_ENTRY_ID])
            for record in records[organization_id].values()
            for at in range(KEY_ENTRIES, len(record) - KEY_ENTRY + 1, KEY_ENTRY)
        }
        ids = sorted(keys.keys() | found.get(organization_id, _Names()).ids | listed)
        tag = names.tag(names.organization(organization_id))
        result[organization_id] = _Access(
            [
                (ORGANIZATION, organization_id, organization_id),
                *((API_KEY, organization_id, id_) for id_ in ids),
            ],
            {} if expected.is_erased(organization_id) else records_of(tag, keys),
            records[organization_id],
        )
    return result


def _of_access(
    organization_id: str, one: _Access, stored: Mapping[Entity, Stored], expected: Reference
) -> Iterator[Difference]:
    for entity in one.entities:
        if fields := differs(entity, stored[entity], expected):
            yield Difference(entity[0].topic, organization_id, entity[2], fields)
    for key_hash in sorted(one.expected.keys() | one.found.keys()):
        if fields := of_record(one.expected.get(key_hash), one.found.get(key_hash)):
            yield Difference(API_KEY.topic, organization_id, f"hash {key_hash}", fields)
