"""Looks again at documents that seem to differ from the topics: has one only changed meanwhile?

The topics are read up to the positions of the projectors; all that is before them has been written. A stored value
tells by its head which event it shows: one from behind those positions is newer than what was read, and is looked at
once more. What shows no newer event, and still is not what the topics say, differs.
"""

import asyncio
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from projector.kafka.client import topic
from projector.kafka.reader import Reader
from projector.ledger.ledger import Ledger
from projector.record import Kind, Partition
from projector.redis.store import SLICE, Store
from projector.reference import Entity, Reference
from projector.verify.compare import Document, differing_fields, document
from projector.verify.tags import expected_tags, hashes, shown_mark, stored_tags
from schemas import names
from schemas.layouts import CONTACT_BODY, HEAD, read_head
from schemas.settings import ProjectorSettings

_ROUNDS = 5
_PAUSE_SECONDS = 0.3
# Whole documents are kept of so many at most.
_MOST = 50_000

Ranges = Mapping[Partition, tuple[int, int]]


class Verdict(NamedTuple):
    """Which fields differ in which document, and how many kept changing for as long as they were looked at."""

    differing: dict[Entity, tuple[str, ...]]
    changing: int


class _Stored(NamedTuple):
    """What stands in Redis of an entity: `organization` is the record's head and work due, `contact` a lead's one's
    head, `shown` the mark that the index of that contact has for it."""

    organization: bytes
    value: bytes | None
    contact: bytes
    shown: bytes | None


class _Exact(NamedTuple):
    """What the topics say: `whole` keeps the documents, `hashed` their hashes."""

    whole: Reference
    hashed: Reference


async def read_covered(store: Store, reader: Reader) -> dict[Partition, tuple[int, int]]:
    """The offsets [first, position) that Redis has for sure. Raises Unavailable."""
    partitions = await reader.partitions()
    positions = await Ledger(store).positions(partitions)
    ranges = await reader.range(partitions)
    return {p: (first, min(last, max(first, positions[p] or 0))) for p, (first, last) in ranges.items()}


async def look_again(
    store: Store, settings: ProjectorSettings, reader: Reader, generation: int, suspects: Iterable[Entity]
) -> Verdict:
    """Those of the suspects that differ for sure. Raises Unavailable."""
    rest = iter(suspects)
    chosen = list(islice(rest, _MOST))
    differing: dict[Entity, tuple[str, ...]] = dict.fromkeys(rest, ("hash",))
    for number in range(_ROUNDS):
        if not chosen:
            break
        await asyncio.sleep(_PAUSE_SECONDS if number else 0)
        covered = await read_covered(store, reader)
        exact = await _read_exactly(reader, covered, chosen)
        stored = await _read_stored(store, generation, chosen, exact)
        ends = await reader.range(list(covered))
        changing = []
        for entity, found in zip(chosen, stored, strict=True):
            if _is_changing(settings, entity[0], found, covered, ends):
                changing.append(entity)
            elif fields := _fields(entity, found, exact):
                differing[entity] = fields
        chosen = changing
    return Verdict(differing, len(chosen))


async def _read_exactly(reader: Reader, covered: Ranges, entities: list[Entity]) -> _Exact:
    """These entities with their organizations, and the contacts of leads among them, from the topics."""
    exact = _Exact(Reference(), Reference(hashes))
    organizations = {organization_id.encode() for _, organization_id, _ in entities}
    keys = {_key(organization_id, id_) for _, organization_id, id_ in entities}
    await _read_keys(reader, covered, keys | organizations, exact)
    contacts = {
        _key(organization_id, newest.document.contact_id)
        for (kind, organization_id, _), newest in exact.hashed.newest.items()
        if kind is Kind.LEAD and newest.live
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


async def _read_stored(store: Store, generation: int, entities: list[Entity], exact: _Exact) -> list[_Stored]:
    found: list[_Stored] = []
    for start in range(0, len(entities), SLICE):
        commands: list[tuple[Any, ...]] = []
        for kind, organization_id, id_ in entities[start : start + SLICE]:
            owner = names.organization(organization_id)
            newest = exact.hashed.newest.get((kind, organization_id, id_))
            # A name that nothing has, where no contact is to be looked at.
            contact_id = newest.document.contact_id if kind is Kind.LEAD and newest and newest.live else id_
            name = names.lead if kind is Kind.LEAD else names.contact
            commands += [
                (b"GETRANGE", owner, 0, HEAD),
                (b"GET", name(owner, generation, id_)),
                (b"GETRANGE", names.contact(owner, generation, contact_id), 0, CONTACT_BODY - 1),
                (b"ZSCORE", names.contact_leads(owner, generation, contact_id), names.short_id(id_)),
            ]
        replies = await store.ask(commands)
        for number, (_, _, id_) in enumerate(entities[start : start + SLICE]):
            organization, value, contact, score = replies[4 * number : 4 * number + 4]
            found.append(_Stored(organization, value, contact, shown_mark(contact, score, names.short_id(id_))))
    return found


def _is_changing(settings: ProjectorSettings, kind: Kind, found: _Stored, covered: Ranges, ends: Ranges) -> bool:
    """Does a stored value show a newer event than was read, or is the organization being erased or replayed?"""
    if found.organization[HEAD:] in (b"E", b"R"):
        return True
    values = ((Kind.ORGANIZATION, found.organization), (kind, found.value), (Kind.CONTACT, found.contact))
    for of_kind, value in values:
        if not value or len(value) < HEAD:
            continue
        head = read_head(value)
        partition = Partition(topic(settings, of_kind), head.partition)
        # An offset behind the end of its partition was corrupted.
        if partition in covered and covered[partition][1] <= head.offset < ends[partition][1]:
            return True
    return False


def _fields(entity: Entity, found: _Stored, exact: _Exact) -> tuple[str, ...]:
    """What differs from the topics, in words."""
    kind = entity[0]
    body, tags = exact.whole.document(entity), expected_tags(exact.hashed, entity)
    expected = Document(exact.whole.newest[entity].version, body, tags or b"") if body else Document()
    stored = document(kind, found.value)
    fields = differing_fields(expected, stored)
    if fields or found.value is None or stored.body is None:
        return tuple(fields)
    if not stored_tags(kind, found.value):
        return ("head",)
    if kind is Kind.LEAD and found.shown != found.value[28:34]:
        return ("index",)
    return ()
