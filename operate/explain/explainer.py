"""Finds out what became of an entity, a record or a key, from Redis and Kafka: facts, without words. What is asked for
may be pasted into the box "Where did my event go?".
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import aclosing
from typing import Literal
from uuid import UUID

import msgspec

from operate.explain import records, stored
from operate.explain.records import BadField, Projected, Published, Told
from operate.explain.stored import Refusal, StoredEntity, StoredKey, StoredOrganization
from projector.dead_letter import DeadLetter
from projector.errors import BadRecord, Refused
from projector.ledger import copies
from projector.record import Partition, Record, entity_key
from projector.redis.store import Store
from schemas import names
from schemas.api_keys import PREFIX
from schemas.layouts import Head
from schemas.resources import AS_SPECIFIED, CONTACT, KINDS, LEAD, ORGANIZATION, Kind, Resource
from schemas.settings import ApiSettings, ProjectorSettings

_SEARCH_SECONDS = 30.0
_COORDINATES = re.compile(r"([A-Za-z0-9._-]{1,249}):(\d{1,10}):(\d{1,19})")
_UUID = "[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}"
_INSIDE = re.compile(rf"(?<![\w:-]){_UUID}(?::{_UUID})?(?![\w:-])")
_HASH = re.compile(r"[0-9a-fA-F]{64}")
LONGEST = 200
"""In characters. A key, a message key, and coordinates are shorter."""


class MessageKey(msgspec.Struct, frozen=True):
    """That of an entity of an organization."""

    organization: str
    id: str


class Id(msgspec.Struct, frozen=True):
    """An id without an organization: it is the message key of an organization, or names nothing."""

    id: str


class Coordinates(msgspec.Struct, frozen=True):
    """A record in Kafka."""

    partition: Partition
    offset: int


class KeyHash(msgspec.Struct, frozen=True):
    """The SHA-256 of an API key, in lower case."""

    hash: str


Question = MessageKey | Id | Coordinates | KeyHash
Search = Literal["none", "newest", "all"]
"""Which records of an entity are looked for in Kafka: none, those among the newest offsets, or all that it holds."""


def question(text: str) -> Question | None:
    """Returns what this text asks for; None if it is nothing that Leadview could look up, perhaps a request id. Pure.

    An id or a message key may stand in a longer text, such as a line of a log. Raises Refused for an API key itself.
    """
    text = text.strip()
    if PREFIX in text:
        raise Refused("This is an API key. The page sends only its hash, and no key belongs here.")
    if _HASH.fullmatch(text):
        return KeyHash(text.lower())
    if match := _COORDINATES.fullmatch(text):
        return Coordinates(Partition(match[1], int(match[2])), int(match[3]))
    match [[str(UUID(word)) for word in found.split(":")] for found in _INSIDE.findall(text)]:
        case [[id_]]:
            return Id(id_)
        case [[organization, id_]]:
            return MessageKey(organization, id_)
    return None


class AboutEntity(msgspec.Struct, frozen=True):
    """A lead or a contact. `published` is None if Kafka was not asked. `spliced` is false while its contact has changed
    and a fan-out is under way. `bad` is the field that makes its newest record bad.
    """

    resource: Resource
    organization: str
    id: str
    stored: StoredEntity
    spliced: bool
    published: Published | None = None
    told: list[Told] = []
    bad: BadField | None = None


class AboutOrganization(msgspec.Struct, frozen=True):
    """An organization, and its records. `published` is None if Kafka was not asked."""

    stored: StoredOrganization
    told: list[Told] = []
    published: Published | None = None


class AboutRecord(msgspec.Struct, frozen=True):
    """A record in Kafka. `bad` is the field that makes it bad. `told` begins with this record. If nothing of its entity
    is stored, the other records that were `published` of it follow.
    """

    record: Record
    told: list[Told]
    bad: BadField | None
    published: Published | None = None


Gap = Literal[
    "no partition",
    "not yet",
    "held back",
    "deleted by Kafka",
    "compacted",
    "unheard of",
    "not read",
    "id alone",
    "not finished",
    "no question",
]
"""Why nothing is known.

There is no such record: there is no such partition, or the record was not published yet, or it is behind an open
transaction, or Kafka has deleted or compacted it. Or nothing is stored of this message key, and it was never
published, or is unknown because not all of Kafka was looked through. Or it is the id of no organization, and says
nothing of others without theirs. Or the search took too long. Or what was asked is neither an id nor coordinates,
but perhaps a request id.
"""


class Nothing(msgspec.Struct, frozen=True):
    """Nothing is known of what was asked for. `offset` is that at which the partition begins or ends, `letter` a dead
    letter of the record, and `refusal` that of the organization, if it was named.
    """

    gap: Gap
    asked: str = ""
    offset: int = 0
    letter: DeadLetter | None = None
    refusal: Refusal | None = None


Explanation = AboutEntity | AboutOrganization | StoredKey | AboutRecord | Nothing


class Explainer:
    """Explains entities, records and keys. Every answer may raise Refused if Redis is empty, and Unavailable."""

    def __init__(self, store: Store, settings: ProjectorSettings, api: ApiSettings) -> None:
        """`api` has the limits of organizations without limits of their own."""
        self._store = store
        self.settings = settings
        self._api = api

    async def explain(self, text: str) -> list[Explanation]:
        """Returns what is known about this text, the cause before what follows from it."""
        match question(text):
            case MessageKey(organization, id_):
                return await self._of_message_key(organization, id_)
            case Id() as asked:
                return await self._of_id(asked)
            case Coordinates() as asked:
                return await self._of_record(asked)
            case KeyHash() as asked:
                return [await self._of_hash(asked)]
            case None:
                return [Nothing("no question")]

    async def organization(self, organization: str, search: Search = "newest") -> AboutOrganization:
        """Explain an organization, and the records of it that this search finds."""
        found = await stored.read_organization(self._store, self._api, organization)
        if search == "none":
            return AboutOrganization(found)
        published = await self._published([ORGANIZATION], organization, search)
        return AboutOrganization(found, await self._told(published.records, found.event), published)

    async def key(self, owner: bytes, *, key_hash: str | None = None, id: str | None = None) -> StoredKey:  # noqa: A002
        """Explain a key that is stored for this organization, by its hash or by the id of its API key."""
        return await stored.read_key(self._store, self._api, owner, key_hash=key_hash, id=id)

    async def entity(
        self,
        resource: Resource,
        organization: str,
        id_: str,
        search: Search = "newest",
        also: Sequence[Record] = (),
    ) -> AboutEntity:
        """Explain an entity, and the records of it that this search finds. `also` are records of it that are known."""
        found = await stored.read_entity(self._store, resource, organization, id_)
        live = found.live
        spliced = resource is not LEAD or not live.document or await stored.shows_its_contact(self._store, live)
        if search == "none":
            return AboutEntity(resource, organization, id_, found, spliced)
        published = await self._published([resource], f"{organization}:{id_}", search)
        known = [*published.records, *(each for each in also if each not in published.records)]
        told = await self._told(known, live.event, whole=published.whole)
        bad = records.bad_field(max(known, key=_age)) if known and not also else None
        return AboutEntity(resource, organization, id_, found, spliced, published, told, bad)

    async def _with_contact(
        self, resource: Resource, organization: str, id_: str, also: Sequence[Record] = ()
    ) -> list[Explanation]:
        found = await self.entity(resource, organization, id_, also=also)
        if resource is not LEAD or not found.stored.live.document:
            return [found]
        return [found, await self.entity(CONTACT, organization, found.stored.live.document["contact_id"])]

    async def _of_message_key(self, organization: str, id_: str) -> list[Explanation]:
        owner = names.organization(organization)
        if await stored.read_event(self._store, names.api_key_entity(owner, id_)):
            return [await self.key(owner, id=id_)]
        for resource in AS_SPECIFIED:
            if (await stored.read_entity(self._store, resource, organization, id_)).generations[0].event:
                return await self._with_contact(resource, organization, id_)
        refusal = (await stored.read_organization(self._store, self._api, organization)).refusal
        return [await self._of_stranger(f"{organization}:{id_}", refusal)]

    async def _of_id(self, asked: Id) -> list[Explanation]:
        known = await self.organization(asked.id, "none")
        if known.stored.event or known.stored.dead_letters:
            return [await self.organization(asked.id)]
        return [Nothing("id alone", asked.id)]

    async def _of_hash(self, asked: KeyHash) -> Explanation:
        search = stored.search(self._store, key_hash=asked.hash, patient=True)
        try:
            async with asyncio.timeout(_SEARCH_SECONDS), aclosing(search) as owners:
                async for owner in owners:
                    return await self.key(owner, key_hash=asked.hash)
        except TimeoutError:
            return Nothing("not finished", asked.hash)
        return await stored.no_such_key(self._store, asked.hash)

    async def _of_stranger(self, message_key: str, refusal: Refusal | None) -> Explanation:
        """Nothing is stored of it: perhaps Kafka knows it."""
        found = await self._published(KINDS, message_key)
        if not found.records:
            return Nothing("unheard of" if found.whole else "not read", message_key, refusal=refusal)
        newest = max(found.records, key=_age)
        of_kind = [record for record in found.records if record.kind is newest.kind]
        return AboutRecord(newest, await self._told(of_kind, None), records.bad_field(newest), found)

    async def _of_record(self, asked: Coordinates) -> list[Explanation]:
        span, record = await records.at(self.settings, asked.partition, asked.offset)
        if record is None:
            return [await self._no_record(asked, span)]
        try:
            key = entity_key(record)
        except BadRecord:
            return [await self._about(record, None)]
        owner = names.organization(key.organization_id)
        if isinstance(record.kind, Resource):
            live = (await copies.require(self._store)).state.live
            name = names.document(record.kind, owner, live, key.id)
            rest = await self._with_contact(record.kind, key.organization_id, key.id, [record])
        elif record.kind is ORGANIZATION:
            name, rest = owner, [await self.organization(key.organization_id)]
        else:
            name, rest = names.api_key_entity(owner, key.id), [await self.key(owner, id=key.id)]
        return [await self._about(record, await stored.read_event(self._store, name)), *rest]

    async def _about(self, record: Record, head: Head | None) -> AboutRecord:
        return AboutRecord(record, await self._told([record], head), records.bad_field(record))

    async def _no_record(self, asked: Coordinates, span: tuple[int, int, int] | None) -> Nothing:
        place = names.dead_letter(*asked.partition, asked.offset)
        if span is None:
            return Nothing("no partition", place)
        _, readable, end = span
        if asked.offset >= readable:
            return Nothing("not yet", place, end) if asked.offset >= end else Nothing("held back", place, readable)
        [letter] = await self._dead_letters([place])
        return Nothing("deleted by Kafka" if asked.offset < span[0] else "compacted", place, span[0], letter)

    async def _published(self, kinds: Sequence[Kind], message_key: str, search: Search = "newest") -> Published:
        return await records.published(self.settings, kinds, message_key.encode(), from_first=search == "all")

    async def _told(self, found: Sequence[Record], head: Head | None, *, whole: bool = False) -> list[Told]:
        """Returns what became of these records. `head` is that of what is stored of their entity."""
        control = await copies.require(self._store)
        places = [names.dead_letter(each.topic, each.partition, each.offset) for each in found]
        letters = [letter for letter in await self._dead_letters(places) if letter]
        partitions = {Partition(each.topic, each.partition) for each in found}
        positions = {at: control.position(at) for at in partitions}
        offsets = {at: position.offset for at, position in positions.items() if position}
        return records.told(found, Projected(offsets, {letter.field: letter for letter in letters}, head), whole=whole)

    async def _dead_letters(self, places: Sequence[str]) -> list[DeadLetter | None]:
        values = await self._store.ask_one(b"HMGET", names.DEAD_LETTERS, *places) if places else []
        return [msgspec.json.decode(value, type=DeadLetter) if value else None for value in values]


def _age(record: Record) -> tuple[int, int]:
    return record.timestamp, record.offset
