"""Answers "Where did my event go?" from Redis and Kafka. One question at a time, whatever the number of pages."""

import asyncio
from collections.abc import Sequence

import msgspec

from projector.commands import show, show_access
from projector.commands.show import Entity as ShownEntity
from projector.commands.show_access import Place, StoredKey
from projector.console import about_access, about_entity, bad_value, question, topics
from projector.console.answer import Answer, Fact
from projector.console.search import search
from projector.console.story import Applied, event
from projector.dead_letter import DeadLetter
from projector.errors import BadRecord, Refused
from projector.kafka.client import topic
from projector.ledger import copies
from projector.ledger.control import ControlRecord
from projector.record import EntityKey, Partition, Record, entity_key
from projector.redis.store import Store
from schemas import names
from schemas.layouts import HEAD, SUMMARY_HASH, Head, read_head
from schemas.resources import API_KEY, AS_SPECIFIED, CONTACT, KINDS, LEAD, ORGANIZATION, Kind, Resource
from schemas.settings import ApiSettings, ProjectorSettings


class Lookup:
    """Finds entities, records and keys. Every answer may raise Refused if Redis is empty, and Unavailable."""

    def __init__(self, store: Store, settings: ProjectorSettings, api: ApiSettings, *, show_documents: bool) -> None:
        """`api` has the limits of organizations without limits of their own."""
        self._store = store
        self._settings = settings
        self._api = api
        self._show_documents = show_documents
        self._one_at_a_time = asyncio.Lock()

    async def answer(self, text: str) -> list[Answer]:
        """Returns what is known about this text. Raises Refused and Unavailable."""
        async with self._one_at_a_time:
            match question.question(text):
                case question.Entity(organization, id_):
                    return await self._of_message_key(organization, id_)
                case question.Id(id_):
                    return await self._of_id(id_)
                case question.Coordinates() as coordinates:
                    return await self._of_record(coordinates)
                case question.KeyHash(hash_):
                    return await self._of_key(key_hash=hash_)
                case question.Key():
                    raise Refused("This is an API key. The page sends only its hash, and no key belongs here.")
                case _:
                    return [about_entity.unknown()]

    async def _of_message_key(self, organization: str, id_: str) -> list[Answer]:
        owner = names.organization(organization)
        if await self._store.ask_one(b"EXISTS", names.api_key_entity(owner, id_)):
            return await self._of_key(place=Place(owner, id=id_))
        for resource in AS_SPECIFIED:
            if (await show.read(self._store, resource, organization, id_)).generations[0].event:
                return await self._of_entity(resource, organization, id_)
        return await self._of_strangers(id_, f"{organization}:{id_}".encode())

    async def _of_id(self, id_: str) -> list[Answer]:
        if await self._store.ask_one(b"EXISTS", names.organization(id_)):
            return [await self._organization(id_)]
        searched = await search(self._store, id=id_)
        if not searched.found:
            answers = await self._of_strangers(id_, id_.encode())
            return answers if searched.all else [about_entity.not_finished(id_), *answers]
        [(kind, owner)] = searched.found
        if isinstance(kind, Resource):
            return await self._of_entity(kind, names.organization_id(owner), id_)
        return await self._of_key(place=Place(owner, id=id_))

    async def _of_strangers(self, id_: str, ending: bytes) -> list[Answer]:
        """Nothing is stored of it: perhaps Kafka knows it."""
        found = await topics.newest(self._settings, KINDS, ending)
        if not found.records:
            return [about_entity.unheard_of(id_, await self._owner_refusal(ending), complete=found.all)]
        newest = max(found.records, key=lambda record: record.timestamp)
        return [await self._told(newest.kind, found)]

    async def _told(self, kind: Kind, found: topics.Found) -> Answer:
        """Returns the story of an entity of which nothing is stored."""
        records = [record for record in found.records if record.kind is kind]
        applied = await self._applied(None, records)
        answer = about_entity.only_published(kind.noun, records, applied, found)
        return msgspec.structs.replace(answer, facts=[*answer.facts, *self._newest_bad(records)])

    async def _owner_refusal(self, ending: bytes) -> str:
        organization, colon, _ = ending.decode().partition(":")
        if not colon:
            return ""
        stored = await show_access.read_organization(self._store, self._api, organization)
        return stored.refusal.why if stored.refusal else ""

    async def _of_entity(
        self, resource: Resource, organization: str, id_: str, asked: Record | None = None
    ) -> list[Answer]:
        entity = await show.read(self._store, resource, organization, id_)
        head = entity.generations[0].event if entity.generations else None
        live = next((each for each in entity.generations if each.live), None)
        found = await topics.newest(self._settings, [resource], f"{organization}:{id_}".encode())
        records = found.records if asked is None else _with(found.records, asked)
        stored = await show_access.read_organization(self._store, self._api, organization)
        applied = await self._applied(live.event if live else head, records, entity.dead_letters)
        seen = about_entity.Seen(resource, f"{self._settings.topic_prefix}{resource.topic}", organization, id_)
        answer = about_entity.answer(seen, entity, records, applied, stored, found)
        if answer.state == "wrong" and asked is None:
            answer = msgspec.structs.replace(answer, facts=[*answer.facts, *self._newest_bad(records)])
        if resource is not LEAD or not live or not live.document:
            return [self._with_document(answer, entity)]
        contact = str(live.document["contact_id"])
        answer = about_entity.with_contact(answer, live.contact, await self._is_spliced(entity, organization, contact))
        answers = [self._with_document(answer, entity)]
        return answers + await self._of_entity(CONTACT, organization, contact)

    def _bad(self, record: Record) -> list[Fact]:
        return bad_value.facts(record, show=self._show_documents)

    def _newest_bad(self, records: Sequence[Record]) -> list[Fact]:
        newest = max(records, key=lambda record: (record.timestamp, record.offset), default=None)
        return self._bad(newest) if newest else []

    def _with_document(self, answer: Answer, entity: ShownEntity) -> Answer:
        live = next((each for each in entity.generations if each.live), None)
        if not live or live.document is None:
            return answer
        if not self._show_documents:
            hidden = Fact("document", "not shown: the console was started without --show-documents")
            return msgspec.structs.replace(answer, facts=[*answer.facts, hidden])
        return msgspec.structs.replace(answer, document=live.document)

    async def _is_spliced(self, entity: ShownEntity, organization: str, contact: str) -> bool:
        """Returns whether the lead shows its contact as it is now. Otherwise a fan-out is under way."""
        live = next(each for each in entity.generations if each.live)
        generation = names.generation_of(live.name.encode())
        name = names.document(CONTACT, names.organization(organization), generation, contact)
        asked = [(b"GETRANGE", key, SUMMARY_HASH.start, SUMMARY_HASH.stop - 1) for key in (live.name.encode(), name)]
        of_lead, of_contact = await self._store.ask(asked)
        return not of_contact or of_lead == of_contact

    async def _of_record(self, asked: question.Coordinates) -> list[Answer]:
        place = await topics.at(self._settings, asked.partition, asked.offset)
        record = await copies.require(self._store)
        letter = await self._dead_letter(asked)
        if place.record is None:
            return [about_entity.no_record(asked.partition, asked.offset, place.span, letter)]
        try:
            key = entity_key(place.record)
        except BadRecord:
            applied = Applied(_positions(record, [place.record]), _by_place([letter] if letter else []), None)
            return [about_entity.of_record(place.record, event(place.record, applied), self._bad(place.record))]
        return await self._of_known_record(place.record, key, letter)

    async def _of_known_record(self, record: Record, key: EntityKey, letter: DeadLetter | None) -> list[Answer]:
        head = await self._head(record.kind, key)
        applied = await self._applied(head, [record], [letter] if letter else [])
        first = about_entity.of_record(record, event(record, applied), self._bad(record))
        if isinstance(record.kind, Resource):
            return [first, *await self._of_entity(record.kind, key.organization_id, key.id, record)]
        if record.kind is ORGANIZATION:
            return [first, await self._organization(key.organization_id)]
        return [first, *await self._of_key(place=Place(names.organization(key.organization_id), id=key.id))]

    async def _head(self, kind: Kind, key: EntityKey) -> Head | None:
        owner = names.organization(key.organization_id)
        name = owner if kind is ORGANIZATION else names.api_key_entity(owner, key.id)
        if isinstance(kind, Resource):
            live = (await copies.require(self._store)).state.live
            name = names.document(kind, owner, live, key.id)
        value = await self._store.ask_one(b"GETRANGE", name, 0, HEAD - 1)
        return read_head(value) if len(value) >= HEAD else None

    async def _dead_letter(self, asked: question.Coordinates) -> DeadLetter | None:
        field = names.dead_letter(*asked.partition, asked.offset)
        value = await self._store.ask_one(b"HGET", names.DEAD_LETTERS, field)
        return msgspec.json.decode(value, type=DeadLetter) if value else None

    async def _organization(self, organization: str) -> Answer:
        stored = await show_access.read_organization(self._store, self._api, organization)
        found = await topics.newest(self._settings, [ORGANIZATION], organization.encode())
        applied = await self._applied(stored.event, found.records, stored.dead_letters)
        return about_access.of_organization(stored, topic(self._settings, ORGANIZATION), found, applied)

    async def _of_key(self, *, key_hash: str = "", place: Place | None = None) -> list[Answer]:
        finished = True
        if place is None:
            searched = await search(self._store, key_hash=key_hash)
            place = Place(searched.found[0].owner, key_hash) if searched.found else None
            finished = searched.all
        if place is None and not finished:
            return [about_entity.not_finished("this key")]
        if place is None:
            stored = StoredKey(key_hash, None, [], await show_access.not_stored(self._store))
        else:
            stored = await show_access.read_key(self._store, self._api, place)
        return [about_access.of_key(stored, topic(self._settings, API_KEY))]

    async def _applied(
        self, head: Head | None, records: Sequence[Record], dead_letters: Sequence[DeadLetter] = ()
    ) -> Applied:
        record = await copies.require(self._store)
        letters = list(dead_letters)
        if not letters and records:
            fields = [names.dead_letter(each.topic, each.partition, each.offset) for each in records]
            values = await self._store.ask_one(b"HMGET", names.DEAD_LETTERS, *fields)
            letters = [msgspec.json.decode(value, type=DeadLetter) for value in values if value]
        return Applied(_positions(record, records), _by_place(letters), head)


def _positions(record: ControlRecord, records: Sequence[Record]) -> dict[Partition, int]:
    partitions = {Partition(each.topic, each.partition) for each in records}
    found = {at: record.position(at) for at in partitions}
    return {at: position.offset for at, position in found.items() if position}


def _by_place(letters: Sequence[DeadLetter]) -> dict[str, DeadLetter]:
    return {letter.field: letter for letter in letters}


def _with(records: list[Record], asked: Record) -> list[Record]:
    known = {(each.topic, each.partition, each.offset) for each in records}
    return records if (asked.topic, asked.partition, asked.offset) in known else [*records, asked]
