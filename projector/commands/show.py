"""Reads one entity as it is stored: the first thing to check if a reader reports a wrong document."""

from typing import Any

import msgspec

from projector.commands.refusal import Refusal, refusal_of_organization
from projector.dead_letter import DeadLetter
from projector.errors import Refused
from projector.ledger import copies
from projector.redis.store import Store
from projector.upkeep.redrive import all_dead_letters
from schemas import names
from schemas.bodies import body
from schemas.compression import Unreadable
from schemas.control import GenerationId, number_of
from schemas.layouts import ACCESS, ETAG, HEAD, JOB_DUE, JOB_REPLAY, LEAD_CONTACT_ID, Head, read_head
from schemas.resources import CONTACT, LEAD, Resource


class StoredEntity(msgspec.Struct, frozen=True):
    """What a generation holds of an entity. `event` describes the event that wrote it, `contact` the one that wrote a
    lead's contact."""

    generation: int
    live: bool
    name: str
    event: Head | None
    contact: Head | None
    etag: str | None
    document: Any


class Entity(msgspec.Struct, frozen=True):
    """An entity in every generation that is written, and the dead letters of its records. `refusal` is the answer to
    every request for it, whatever is stored."""

    generations: list[StoredEntity]
    dead_letters: list[DeadLetter]
    refusal: Refusal | None


async def read(store: Store, resource: Resource, organization_id: str, entity_id: str) -> Entity:
    """Read an entity from every generation that is written. Raises Refused if Redis is empty or the document
    cannot be read, and Unavailable.
    """
    control = await copies.require(store)
    state = control.state
    owner = names.organization(organization_id)
    stored = []
    for generation in state.written:
        entity = await _read_stored(store, resource, owner, generation, entity_id)
        stored.append(msgspec.structs.replace(entity, live=generation == state.live))
    key = f"{organization_id}:{entity_id}"
    dead_letters = [dead_letter for dead_letter in await all_dead_letters(store) if dead_letter.key == key]
    return Entity(stored, dead_letters, await _refusal(store, owner, control.serves))


async def _refusal(store: Store, owner: bytes, complete: bool) -> Refusal | None:
    value = await _get(store, owner) or b""
    head = read_head(value) if len(value) >= HEAD else None
    live = head is not None and head.live
    replaying = live and value[JOB_DUE] == JOB_REPLAY
    return refusal_of_organization(
        head, api_access=live and value[ACCESS] == b"1", replaying=replaying, complete=complete
    )


async def _read_stored(
    store: Store, resource: Resource, owner: bytes, generation: GenerationId, entity_id: str
) -> StoredEntity:
    name = names.document(resource, owner, generation, entity_id)
    value = await _get(store, name)
    head = read_head(value) if value else None
    if value is None or head is None or not head.live:
        return StoredEntity(number_of(generation), False, name.decode(), head, None, None, None)
    try:
        json = body(resource, value)
        document = msgspec.json.decode(json)
    except (Unreadable, msgspec.DecodeError, UnicodeDecodeError) as error:
        organization = names.organization_id(owner)
        raise Refused(
            f"The document of {resource.noun} {entity_id} in generation {number_of(generation)} cannot be read: "
            f"{error}. To write it again: "
            f"python -m projector rebuild --organization {organization} --{resource.noun} {entity_id}"
        ) from error
    contact = await _contact_head(store, owner, generation, json) if resource is LEAD else None
    etag = f'W/"{value[ETAG].hex()}"'
    return StoredEntity(number_of(generation), False, name.decode(), head, contact, etag, document)


async def _contact_head(store: Store, owner: bytes, generation: GenerationId, json: bytes) -> Head | None:
    value = await _get(store, names.document(CONTACT, owner, generation, json[LEAD_CONTACT_ID].decode()))
    return read_head(value) if value else None


async def _get(store: Store, name: bytes) -> bytes | None:
    value: bytes | None = await store.ask_one(b"GET", name)
    return value
