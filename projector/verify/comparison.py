"""The comparison of Redis with the topics: of the documents of some generations, or of organizations and API keys.

`verify` reports the differences. After a break, projectors write what differs again. For each part of the organizations
(`projector/verify/parts.py`):

1.  The topics are read once.
2.  Everything in Redis is compared with that: what is evicted, corrupted, missing and superfluous.
3.  What differs may only have changed in the meantime, so it is looked at again, with what was published since.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

from projector.kafka.client import topic
from projector.line.pace import Pacer
from projector.redis.store import SLICE, Store
from projector.reference import Entity, Newest, Reference
from projector.verify.parts import Part, most_entities, parts_of
from projector.verify.reading import Reading, TooLarge
from projector.verify.report import FORMER_PARTITION, Difference, Report, counts_by_topic
from projector.verify.stored import (
    AccessName,
    Stored,
    StoredDocument,
    contact_of,
    differing_fields,
    differs,
    document,
    expected_hashes,
    is_expected,
    is_gone,
    of_record,
    read,
    records_of,
    stored_access,
    stored_documents,
    stored_hashes,
)
from projector.verify.topics import Topics, open_topics
from schemas import names
from schemas.control import GenerationId, number_of
from schemas.layouts import KEY_ENTRIES, KEY_ENTRY, KEY_ENTRY_ID, SUMMARY_HASH
from schemas.resources import ACCESS_KINDS, API_KEY, CONTACT, LEAD, ORGANIZATION, RESOURCES, Kind, Resource
from schemas.settings import ProjectorSettings

_ROUNDS = 5
_PAUSE_SECONDS = 0.3
_WHOLE = 200
"""The number of whole documents that are kept at once, to say which of their fields differ."""
MOST_NAMED = 50_000
"""The number of documents of which the fields that differ are named."""
MAX_LATENCY = 0.010
"""The seconds beyond which a response of the API makes a comparison of documents pause."""
_NO_GENERATION = GenerationId("")
"""Access depends on none."""

Unit = Any
"""What is looked at again as a whole: a document in a generation, or the id of an organization."""


class KeyRecord(NamedTuple):
    """The record of a key's hash, as it should be and as it is."""

    key_hash: str
    expected: bytes
    stored: bytes

    def ids(self, record: bytes) -> list[str]:
        """Returns the ids of the API keys in a record of this hash."""
        starts = range(KEY_ENTRIES, len(record) - KEY_ENTRY + 1, KEY_ENTRY)
        return [names.long_id(record[start : start + KEY_ENTRY][KEY_ENTRY_ID]) for start in starts]


class Finding(NamedTuple):
    """Something in Redis that is not what the topics say. `unit` is what it belongs to.

    `record` is given if it is the record of a key's hash: then `entity` has the organization only.
    """

    unit: Unit
    entity: Entity
    fields: tuple[str, ...]
    stored: Stored
    generation: GenerationId = _NO_GENERATION
    record: KeyRecord | None = None

    @property
    def shows_other_fields(self) -> bool:
        """Whether it is a document that exists, and should exist, but with other fields."""
        as_a_whole = ("missing",), ("extra",), (FORMER_PARTITION,)
        return isinstance(self.entity[0], Resource) and self.fields not in as_a_whole

    def difference(self, fields: tuple[str, ...] = ()) -> Difference:
        """Returns what is reported of it, if necessary with fields that are more exact."""
        kind, organization_id, id_ = self.entity
        name = f"hash {self.record.key_hash}" if self.record else id_
        return Difference(kind.topic, organization_id, name, fields or self.fields)


class Looked(NamedTuple):
    """What a look has found. `pending` waits for a job, or for an event to be applied; `written` is newer than what was
    read.
    """

    findings: list[Finding]
    pending: set[Unit]
    written: set[Unit]


class Subject(Protocol):
    """What is compared."""

    kinds: Sequence[Kind]
    title: str
    noun: str
    """Its units in words."""

    def checked(self) -> dict[str, int]:
        """Returns 0 for each topic."""

    async def suspects(self, reading: Reading) -> set[Unit]:
        """Returns what differs at first sight. Raises Unavailable."""

    async def look(self, reading: Reading, units: Collection[Unit]) -> Looked:
        """Compare these units. Raises Unavailable."""


Repair = Callable[[Reading, Sequence[Finding]], Awaitable[None]]
"""Writes again what differs."""


class Outcome(NamedTuple):
    """What came of a part: what still differs, and what could not be compared."""

    reading: Reading
    checked: dict[str, int]
    findings: list[Finding]
    pending: set[Unit]
    written: set[Unit]


class Comparison:
    """Compares a subject with the topics, a part of the organizations after the other."""

    def __init__(
        self, topics: Topics, subject: Subject, settings: ProjectorSettings, repair: Repair | None = None
    ) -> None:
        self._topics = topics
        self._subject = subject
        self._most = most_entities(settings.verify_memory)
        self._repair = repair

    async def parts(self) -> list[Part]:
        """Returns the parts that the organizations have to be taken in. Raises Unavailable."""
        ranges = await self._topics.look()
        return parts_of(sum(last - first for first, last in ranges.values()), self._most)

    async def run(self, left: deque[Part]) -> AsyncIterator[Outcome]:
        """Yields what came of each part, the first one first. A part stays in `left` until the caller asks for the next
        one. Raises Refused if a topic is missing, and Unavailable.
        """
        while left:
            part = left[0]
            try:
                outcome = await self._compare(part)
            except TooLarge:
                left.popleft()
                left.extendleft(part.halves() or ())
                continue
            yield outcome
            left.popleft()

    async def _compare(self, part: Part) -> Outcome:
        reading = Reading(self._topics, part, self._most)
        await reading.advance()
        units = await self._subject.suspects(reading)
        checked = self._subject.checked()
        for entity in reading.expected.newest:
            if entity[0].topic in checked:
                checked[entity[0].topic] += is_expected(reading.expected, entity)
        findings: list[Finding] = []
        looked = Looked([], set(), set())
        for number in range(_ROUNDS):
            if not units:
                break
            await asyncio.sleep(_PAUSE_SECONDS)
            await reading.advance()
            looked = await self._subject.look(reading, units)
            units = looked.pending | looked.written
            if self._repair is None:
                findings += looked.findings
            else:
                findings = looked.findings
                if findings and number < _ROUNDS - 1:
                    await self._repair(reading, findings)
                    units |= {finding.unit for finding in findings}
        return Outcome(reading, checked, findings, looked.pending, looked.written)


async def readings(topics: Topics, settings: ProjectorSettings) -> AsyncIterator[Reading]:
    """Yields a reading of each part of the organizations. Raises Unavailable."""
    most = most_entities(settings.verify_memory)
    ranges = await topics.look()
    left = deque(parts_of(sum(last - first for first, last in ranges.values()), most))
    while left:
        part = left.popleft()
        reading = Reading(topics, part, most)
        try:
            await reading.advance()
        except TooLarge:
            left.extendleft(part.halves() or ())
        else:
            yield reading


async def documents(
    store: Store,
    settings: ProjectorSettings,
    generation: GenerationId,
    *,
    allowed: frozenset[str] = frozenset(),
    most_named: int = MOST_NAMED,
) -> Report:
    """Compare all documents of a generation with the topics. Raises Refused if a topic is missing, and Unavailable.

    `allowed` are the fields that may differ, such as `leads.quote_total`. After `most_named` differences, the records
    of further ones are not read again to name their fields.
    """
    return await _verified(
        store,
        settings,
        DocumentComparison(store, [generation], Pacer.of_replay(store, MAX_LATENCY)),
        allowed,
        most_named,
    )


async def access(store: Store, settings: ProjectorSettings) -> Report:
    """Compare all organizations and API keys with the topics. Raises Refused if a topic is missing, and Unavailable."""
    return await _verified(store, settings, AccessComparison(store), frozenset(), MOST_NAMED)


async def _verified(
    store: Store, settings: ProjectorSettings, subject: Subject, allowed: frozenset[str], most_named: int
) -> Report:
    report = Report(subject.title, subject.checked(), parts=0)
    async with open_topics(store, settings, subject.kinds) as topics:
        comparison = Comparison(topics, subject, settings)
        left = deque(await comparison.parts())
        changing = unnamed = 0
        async for outcome in comparison.run(left):
            report.parts += 1
            report.held = max(report.held, outcome.reading.held)
            for name, count in outcome.checked.items():
                report.checked[name] += count
            named = report.differences + report.allowed < most_named
            async for difference in _named(outcome, named=named):
                report.add(difference, allowed)
            unnamed += 0 if named else sum(finding.shows_other_fields for finding in outcome.findings)
            changing += len(outcome.pending | outcome.written)
            report.late |= _late(outcome.reading.expected)
            for name, count in outcome.reading.strays().items():
                report.strays[name] = report.strays.get(name, 0) + count
        report.notes += await topics.notes()
        report.leave(changing, subject.noun)
        if unnamed:
            report.notes.append(f"of {unnamed:,} that differ, the fields are not named: too many differ")
        for name, count in report.strays.items():
            if count:
                report.notes.append(
                    f"{count:,} live records of {topic(settings, _kind(name, settings))} are in partitions that their "
                    "keys do not have any more: delete these entities by events, a tombstone alone would not last"
                )
    return report


def _late(expected: Reference) -> set[str]:
    """Returns the entities whose last record is not their newest one, except those of deleted organizations."""
    return {
        names.late_version(kind.topic, organization_id if kind is ORGANIZATION else f"{organization_id}:{id_}")
        for kind, organization_id, id_ in expected.late
        if kind is ORGANIZATION or not expected.is_erased(organization_id)
    }


def _kind(name: str, settings: ProjectorSettings) -> Kind:
    return next(kind for kind in (*RESOURCES, *ACCESS_KINDS) if topic(settings, kind) == name)


async def _named(outcome: Outcome, *, named: bool) -> AsyncIterator[Difference]:
    """Yields what is reported of the findings, of documents with the fields that differ as far as they are `named`."""
    for start in range(0, len(outcome.findings), _WHOLE):
        some = outcome.findings[start : start + _WHOLE]
        inexact = [finding for finding in some if named and finding.shows_other_fields]
        whole = await _read_whole(outcome.reading, inexact)
        for finding in some:
            yield finding.difference(_fields(finding, outcome.reading, whole) if finding in inexact else ())


async def _read_whole(reading: Reading, findings: Sequence[Finding]) -> Reference:
    """Returns the whole documents of these findings, with the contacts of leads."""
    whole = Reference()
    places = []
    for finding in findings:
        contact_id = contact_of(reading.expected, finding.entity)
        related = [finding.entity, *([(CONTACT, finding.entity[1], contact_id)] if contact_id else [])]
        places += [place for entity in related if (place := reading.place(entity))]
    async for record in reading.topics.read_at(places):
        whole.add(record)
    return whole


def _fields(finding: Finding, reading: Reading, whole: Reference) -> tuple[str, ...]:
    """Returns the names of what differs from the topics: fields, `head`, `index` or the words of `differing_fields`;
    nothing if Kafka has another record by now.
    """
    entity, stored = finding.entity, finding.stored
    resource, body = entity[0], whole.document(entity)
    if not isinstance(resource, Resource) or body is None:
        return ()
    found = document(resource, stored.value)
    expected = StoredDocument(whole.newest[entity].version, body, expected_hashes(reading.expected, entity))
    if fields := differing_fields(expected, found):
        return fields
    if not stored_hashes(resource, stored.value):
        return ("head",)
    return ("index",) if resource is LEAD and stored.indexed != stored.value[SUMMARY_HASH] else ()


class DocumentComparison:
    """The documents of some generations. A unit is a generation and a document."""

    kinds: Sequence[Kind] = (ORGANIZATION, *RESOURCES)
    noun = "documents"

    def __init__(self, store: Store, generations: Sequence[GenerationId], pacer: Pacer) -> None:
        """The pacer says how long to wait between calls of Redis."""
        self._store = store
        self._generations = generations
        self._pacer = pacer
        numbers = " and ".join(str(number_of(generation)) for generation in generations)
        self.title = f"generation {numbers} against the topics"

    def checked(self) -> dict[str, int]:
        """Returns 0 for each topic."""
        return counts_by_topic()

    async def suspects(self, reading: Reading) -> set[Unit]:
        """Returns the documents that differ from the topics, those that are missing, and the superfluous ones."""
        expected, found = reading.expected, set[Unit]()
        wanted = (
            entity for entity in expected.newest if isinstance(entity[0], Resource) and is_expected(expected, entity)
        )
        for some in _slices(wanted):
            for generation in self._generations:
                found |= await self._differing(reading, generation, some)
        async for documents in stored_documents(self._store, self._generations, reading.part):
            for generation in self._generations:
                others = {e for e, its in documents if its == generation and not is_expected(expected, e)}
                found |= await self._differing(reading, generation, list(others))
        return found

    async def _differing(
        self, reading: Reading, generation: GenerationId, entities: Sequence[Entity]
    ) -> set[tuple[GenerationId, Entity]]:
        if not entities:
            return set()
        await self._pacer.wait()
        stored = await read(self._store, generation, entities, reading.expected)
        return {(generation, entity) for entity in entities if differs(entity, stored[entity], reading.expected)}

    async def look(self, reading: Reading, units: Collection[Unit]) -> Looked:
        """Compare these documents."""
        looked = Looked([], set(), set())
        stored: dict[Unit, Stored] = {}
        for generation in self._generations:
            for some in _slices(entity for its, entity in units if its == generation):
                await self._pacer.wait()
                for entity, value in (await read(self._store, generation, some, reading.expected)).items():
                    stored[generation, entity] = value
        await reading.topics.look_again()
        for unit, value in stored.items():
            _judge(unit, unit[1], value, reading, looked, generation=unit[0])
        return looked


def _judge(
    unit: Unit,
    entity: Entity,
    stored: Stored,
    reading: Reading,
    looked: Looked,
    *,
    generation: GenerationId = _NO_GENERATION,
) -> None:
    """Compare an entity with what was read, and put it into `looked` where it belongs."""
    expected = reading.expected
    if not (fields := differs(entity, stored, expected)):
        return
    # A superfluous value has no contact to look at, and a missing one has none either.
    alone = fields in (("extra",), ("missing",))
    if reading.is_left(stored) and not is_expected(expected, (ORGANIZATION, entity[1], entity[1])):
        return
    if stored.waits_for_job or reading.is_pending(entity, alone=alone):
        looked.pending.add(unit)
    elif reading.topics.is_newer(entity, stored, reading.ends, alone=alone):
        looked.written.add(unit)
    else:
        is_former = fields == ("missing",) and is_expected(expected, entity) and reading.is_former(entity, stored)
        looked.findings.append(Finding(unit, entity, (FORMER_PARTITION,) if is_former else fields, stored, generation))


class AccessComparison:
    """Organizations and API keys. Several API keys may share the record of a hash, so a unit is an organization."""

    kinds: Sequence[Kind] = ACCESS_KINDS
    noun = "organizations"
    title = "organizations and API keys against the topics"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._others: dict[str, set[AccessName]] = {}
        """The names in Redis, by organization, that the topics do not speak of."""

    def checked(self) -> dict[str, int]:
        """Returns 0 for each topic."""
        return {kind.topic: 0 for kind in ACCESS_KINDS}

    async def suspects(self, reading: Reading) -> set[Unit]:
        """Returns the organizations of which something differs."""
        self._others = {}
        expected = reading.expected
        found = _units(await self.look(reading, None))
        wanted = _hashes_of(expected)
        async for some in stored_access(self._store, reading.part):
            for name in some:
                kind = API_KEY if name.id else ORGANIZATION
                entity = kind, name.organization_id, name.id or name.organization_id
                known = (name.organization_id, name.key_hash) in wanted if name.key_hash else entity in expected.newest
                if not known:
                    self._others.setdefault(name.organization_id, set()).add(name)
        return found | _units(await self.look(reading, self._others))

    async def look(self, reading: Reading, units: Collection[Unit] | None) -> Looked:
        """Compare these organizations, or all that the topics know."""
        looked = Looked([], set(), set())
        keys_of = _keys_of(reading.expected, units)
        for some in _slices(keys_of):
            await self._look(reading, {organization_id: keys_of[organization_id] for organization_id in some}, looked)
        return looked

    async def _look(self, reading: Reading, keys_of: dict[str, dict[str, Newest]], looked: Looked) -> None:
        expected, others = reading.expected, self._others
        key_hashes = {
            organization_id: {newest.key.hash for newest in api_keys.values() if newest.key}
            | {name.key_hash for name in others.get(organization_id, ()) if name.key_hash}
            for organization_id, api_keys in keys_of.items()
        }
        records = await self._records(key_hashes)
        entities: list[Entity] = []
        for organization_id, api_keys in keys_of.items():
            listed = chain.from_iterable(KeyRecord("", b"", one).ids(one) for one in records[organization_id].values())
            ids = {*api_keys, *listed, *(name.id for name in others.get(organization_id, ()) if name.id)}
            entities += [(API_KEY, organization_id, id_) for id_ in sorted(ids)]
        # Organizations last: a write changes the record of a hash, and then the API key, in one script.
        entities += [(ORGANIZATION, organization_id, organization_id) for organization_id in keys_of]
        stored = await read(self._store, _NO_GENERATION, entities, expected)
        await reading.topics.look_again()
        by_unit = {organization_id: Looked([], set(), set()) for organization_id in keys_of}
        for entity in entities:
            _judge(entity[1], entity, stored[entity], reading, by_unit[entity[1]])
        for organization_id, api_keys in keys_of.items():
            found = by_unit[organization_id]
            looked.pending.update(found.pending)
            looked.written.update(found.written - found.pending)
            if found.pending or found.written:
                continue
            looked.findings.extend(found.findings)
            organization = stored[ORGANIZATION, organization_id, organization_id]
            if reading.is_left(organization):
                continue
            former = {it.entity[2] for it in found.findings if it.fields == (FORMER_PARTITION,)}
            usable = {id_: newest for id_, newest in api_keys.items() if id_ not in former}
            closed = expected.is_erased(organization_id) or is_gone(
                (API_KEY, organization_id, organization_id), organization, expected
            )
            tag = names.tag(names.organization(organization_id))
            wanted = {} if closed else records_of(tag, usable)
            for key_hash in sorted(wanted.keys() | records[organization_id].keys()):
                one = KeyRecord(key_hash, wanted.get(key_hash, b""), records[organization_id].get(key_hash, b""))
                if fields := of_record(one.expected, one.stored):
                    entity = API_KEY, organization_id, ""
                    looked.findings.append(Finding(organization_id, entity, fields, organization, record=one))

    async def _records(self, key_hashes: dict[str, set[str]]) -> dict[str, dict[str, bytes]]:
        """Returns the records of these hashes, as far as they exist, by organization."""
        records: dict[str, dict[str, bytes]] = {organization_id: {} for organization_id in key_hashes}
        pairs = ((organization_id, one) for organization_id, some in key_hashes.items() for one in some)
        for some in _slices(pairs):
            asked = [(b"GET", names.api_key(names.organization(owner), key_hash)) for owner, key_hash in some]
            for (organization_id, key_hash), record in zip(some, await self._store.ask(asked), strict=True):
                if record is not None:
                    records[organization_id][key_hash] = record
        return records


def _units(looked: Looked) -> set[Unit]:
    """Returns all that has to be looked at again."""
    return {finding.unit for finding in looked.findings} | looked.pending | looked.written


def _keys_of(expected: Reference, chosen: Collection[str] | None) -> dict[str, dict[str, Newest]]:
    """Returns the API keys of these organizations, or of all that the topics know."""
    found: dict[str, dict[str, Newest]] = {organization_id: {} for organization_id in chosen or ()}
    for (kind, organization_id, id_), newest in expected.newest.items():
        if chosen is None or organization_id in found:
            of_organization = found.setdefault(organization_id, {})
            if kind is API_KEY:
                of_organization[id_] = newest
    return found


def _hashes_of(expected: Reference) -> set[tuple[str, str]]:
    """Returns the hashes of all live API keys, each with its organization."""
    return {(entity[1], newest.key.hash) for entity, newest in expected.newest.items() if newest.key}


def _slices(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yields the items in lists of up to `SLICE`."""
    some: list[Any] = []
    for item in items:
        some.append(item)
        if len(some) == SLICE:
            yield some
            some = []
    if some:
        yield some
