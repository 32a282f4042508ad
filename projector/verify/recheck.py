"""Checks again the documents that seem to differ from the topics, because they may only have changed in the meantime.

The topics are read up to the positions of the projectors: all records before them have been written. The head of a
stored value names the newest event that was applied. If that event comes after those positions, the value is newer than
what was read, and is checked again. A value without a newer event that differs from the topics is wrong.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from projector.errors import Refused
from projector.kafka.client import topic
from projector.kafka.reader import Reader
from projector.ledger import copies
from projector.ledger.ledger import lag
from projector.record import Partition
from projector.redis.store import SLICE, Store
from projector.reference import Reference
from projector.verify.compare import Document, DocumentKey, differing_fields, document
from projector.verify.hashes import contact_of, expected_hashes, hashes, indexed_hash, stored_hashes
from schemas import names
from schemas.control import GenerationId
from schemas.layouts import CONTACT_BODY, HEAD, JOB_DUE, JOB_ERASE, JOB_REPLAY, SUMMARY_HASH, read_head
from schemas.resources import CONTACT, LEAD, ORGANIZATION, Kind
from schemas.settings import ProjectorSettings

_ROUNDS = 5
_PAUSE_SECONDS = 0.3
# The maximum number of whole documents in memory.
_MAX_DOCUMENTS = 50_000

Ranges = Mapping[Partition, tuple[int, int]]


class Verdict(NamedTuple):
    """The fields that differ in each document, and how many documents changed during every check."""

    differing: dict[DocumentKey, tuple[str, ...]]
    changing: int


class Stored(NamedTuple):
    """A document in Redis, and the values that it depends on.

    `organization` is the beginning of the organization's record, including the job due. `contact` is the beginning of
    the value of a lead's contact, and `indexed` the summary hash of the lead in the index of that contact.
    """

    organization: bytes
    value: bytes | None
    contact: bytes
    indexed: bytes | None


class _Exact(NamedTuple):
    """The documents according to the topics: `whole` keeps the documents, `hashed` their hashes."""

    whole: Reference
    hashed: Reference


async def read_covered(
    store: Store, reader: Reader, partitions: Sequence[Partition] | None = None
) -> dict[Partition, tuple[int, int]]:
    """Returns the offsets [first, position) of these partitions, or of all, that have been written. Raises
    Unavailable.
    """
    if partitions is None:
        partitions = await reader.partitions()
    record = await copies.require(store)
    reader.read_as(record.state.histories)
    stored = {partition: record.position(partition) for partition in partitions}
    positions = {partition: position.offset if position else 0 for partition, position in stored.items()}
    ranges = await reader.range(partitions)
    return {p: (first, min(last, max(first, positions[p]))) for p, (first, last) in ranges.items()}


async def require_topics(reader: Reader, settings: ProjectorSettings, kinds: Sequence[Kind]) -> None:
    """Check that there is something to compare with. Raises Refused if a topic does not exist, and Unavailable."""
    existing = {partition.topic for partition in await reader.partitions()}
    if missing := [name for kind in kinds if (name := topic(settings, kind)) not in existing]:
        raise Refused(
            f"Nothing can be compared: Kafka has no topic {', '.join(missing)}. Check LEADVIEW_TOPIC_PREFIX and "
            "LEADVIEW_KAFKA_BOOTSTRAP_SERVERS."
        )


async def notes(store: Store, reader: Reader, covered: Ranges) -> list[str]:
    """Returns what limits a comparison with these offsets of the topics, in words."""
    found = [
        f"{partition.topic}:{partition.partition} begins at offset {first}: documents of earlier records count as extra"
        for partition, (first, _) in covered.items()
        if first
    ]
    behind = await lag(store, await reader.range(list(covered)))
    if behind:
        found.append(f"the projectors are {behind:,} records behind: those records are not compared")
    return found


async def recheck(
    store: Store, settings: ProjectorSettings, reader: Reader, generation: GenerationId, suspects: Iterable[DocumentKey]
) -> Verdict:
    """Returns which of the suspects really differ. Raises Unavailable."""
    rest = iter(suspects)
    chosen = list(islice(rest, _MAX_DOCUMENTS))
    differing: dict[DocumentKey, tuple[str, ...]] = dict.fromkeys(rest, ("hash",))
    for number in range(_ROUNDS):
        if not chosen:
            break
        await asyncio.sleep(_PAUSE_SECONDS if number else 0)
        covered = await read_covered(store, reader)
        exact = await _read_exactly(reader, covered, chosen)
        stored = await read_stored(store, generation, chosen, exact.hashed)
        available = await reader.range(list(covered))
        changing = []
        for entity, found in zip(chosen, stored, strict=True):
            if is_changing(settings, entity[0], found, covered, available, reader.histories):
                changing.append(entity)
            elif fields := _fields(entity, found, exact):
                differing[entity] = fields
        chosen = changing
    return Verdict(differing, len(chosen))


async def _read_exactly(reader: Reader, covered: Ranges, entities: list[DocumentKey]) -> _Exact:
    """Read these entities, their organizations, and the contacts of their leads from the topics."""
    exact = _Exact(Reference(), Reference(hashes))
    organizations = {organization_id.encode() for _, organization_id, _ in entities}
    keys = {_key(organization_id, id_) for _, organization_id, id_ in entities}
    await _read_keys(reader, covered, keys | organizations, exact)
    contacts = {
        _key(entity[1], contact_id)
        for entity in exact.hashed.newest
        if (contact_id := contact_of(exact.hashed, entity))
    }
    if contacts - keys:
        await _read_keys(reader, covered, contacts - keys, exact)
    return exact


async def _read_keys(reader: Reader, covered: Ranges, keys: set[bytes], into: _Exact) -> None:
    async for records in reader.read(covered):
        for record in records:
            if record.key in keys:
                into.whole.add(record)
                into.hashed.add(record)


def _key(organization_id: str, id_: str) -> bytes:
    return f"{organization_id}:{id_}".encode()


async def read_stored(
    store: Store, generation: GenerationId, entities: Sequence[DocumentKey], expected: Reference
) -> list[Stored]:
    """Read these documents. `expected` keeps `hashes`, and knows the contacts of the leads. Raises Unavailable."""
    found: list[Stored] = []
    for start in range(0, len(entities), SLICE):
        commands: list[tuple[Any, ...]] = []
        for entity in entities[start : start + SLICE]:
            resource, organization_id, id_ = entity
            owner = names.organization(organization_id)
            contact_id = contact_of(expected, entity) or id_  # without a contact: a key that does not exist
            commands += (
                (b"GETRANGE", owner, 0, JOB_DUE.stop - 1),
                (b"GET", names.document(resource, owner, generation, id_)),
                (b"GETRANGE", names.document(CONTACT, owner, generation, contact_id), 0, CONTACT_BODY - 1),
                (b"ZSCORE", names.contact_leads(owner, generation, contact_id), names.short_id(id_)),
            )
        replies = iter(await store.ask(commands))
        for _, _, id_ in entities[start : start + SLICE]:
            organization, value, contact, score = (next(replies) for _ in range(4))
            found.append(Stored(organization, value, contact, indexed_hash(contact, score, names.short_id(id_))))
    return found


def is_changing(
    settings: ProjectorSettings,
    resource: Kind,
    found: Stored,
    covered: Ranges,
    available: Ranges,
    histories: Mapping[str, int],
) -> bool:
    """Returns whether a stored value has a newer event than was read, or its organization has a job due. An event from
    a former history of its topic is not newer, whatever its offset.
    """
    if found.organization[JOB_DUE] in (JOB_ERASE, JOB_REPLAY):
        return True
    values = ((ORGANIZATION, found.organization), (resource, found.value), (CONTACT, found.contact))
    for kind, value in values:
        if not value or len(value) < HEAD:
            continue
        head = read_head(value)
        partition = Partition(topic(settings, kind), head.partition)
        if head.history != histories.get(partition.topic, 0):
            continue
        # If the offset is not below the end offset of its partition, the value is corrupted.
        if partition in covered and covered[partition][1] <= head.offset < available[partition][1]:
            return True
    return False


def _fields(entity: DocumentKey, found: Stored, exact: _Exact) -> tuple[str, ...]:
    """Returns the names of what differs from the topics: fields, `head`, `index` or the words of `differing_fields`."""
    resource = entity[0]
    body, wanted = exact.whole.document(entity), expected_hashes(exact.hashed, entity)
    expected = Document(exact.whole.newest[entity].version, body, wanted or b"") if body else Document()
    stored = document(resource, found.value)
    fields = differing_fields(expected, stored)
    if fields or found.value is None or stored.body is None:
        return tuple(fields)
    if not stored_hashes(resource, found.value):
        return ("head",)
    if resource is LEAD and found.indexed != found.value[SUMMARY_HASH]:
        return ("index",)
    return ()
