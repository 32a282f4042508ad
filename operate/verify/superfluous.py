"""Finds what is superfluous among some names in Redis, without a look at the whole topics.

A stored value names the record that it shows. If Kafka does not have this record any more, a newer one has taken its
place, or the entity was deleted. A newer one is applied soon, so the value changes. For the values that do not change,
the topics are searched for the message keys.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from projector.record import Partition
from projector.redis.store import Store
from projector.reference import Entity, Reference
from projector.stop import Stop
from projector.verify.report import Difference
from projector.verify.stored import (
    Stored,
    access_name,
    differs,
    document_name,
    hashes,
    is_deleted,
    live_head,
    message_key,
    read,
)
from projector.verify.topics import Place, Topics, settle
from schemas import names
from schemas.control import GenerationId
from schemas.layouts import API_KEY_HASH, KEY_ENTRIES, KEY_ENTRY, KEY_ENTRY_ID
from schemas.resources import API_KEY, ORGANIZATION

CHECKS = 5
CHECK_SECONDS = 1.0
"""So often, and with this pause, what differs is read again."""
_RECORDS = 500


async def superfluous(store: Store, topics: Topics, some: Sequence[bytes], stop: Stop) -> list[Difference]:
    """Returns what is superfluous among these names. Raises Refused if Redis is empty, and Unavailable."""
    generation = (await topics.record()).state.live
    entities = [entity for name in some if (entity := _entity(name, generation))]
    await topics.look()
    nothing = Reference(hashes)
    stored = await read(store, generation, entities, nothing)
    places = {entity: place for entity, value in stored.items() if (place := _place(entity, value, topics))}
    present = {(Partition(it.topic, it.partition), it.offset, it.key) async for it in topics.read_at(places.values())}
    suspects = {
        entity: stored[entity]
        for entity, place in places.items()
        if (*place, message_key(entity)) not in present or is_deleted(stored[entity].organization)
    }
    ends = {partition: end for partition, (_, end) in topics.available.items()}

    async def look(suspects: Mapping[Entity, Stored]) -> dict[Entity, Stored]:
        """Returns those that nothing was written to since."""
        if stop.is_set() or (await topics.record()).state.live != generation:
            return {}
        found = await read(store, generation, list(suspects), nothing)
        return {entity: value for entity, value in found.items() if value == suspects[entity]}

    left = await settle(suspects, look, rounds=CHECKS, pause=CHECK_SECONDS, sleep=stop.sleep)
    covered = await topics.look() if left else {}
    # What is not applied yet says nothing.
    applied = {
        entity: value for entity, value in left.items() if covered[places[entity][0]][1] >= ends[places[entity][0]]
    }
    found = [Difference(kind.topic, owner, id_, ("extra",)) for kind, owner, id_ in await _unknown(topics, applied)]
    return found + await _entries_without_key(store, some, stop)


def _entity(name: bytes, generation: GenerationId) -> Entity | None:
    """Returns the entity whose value has this name, if it is live in this generation or belongs to none."""
    if document := document_name(name):
        return document[0] if document[1] == generation else None
    access = access_name(name)
    if access is None or access.key_hash:
        return None
    return (
        (API_KEY, access.organization_id, access.id)
        if access.id
        else (
            ORGANIZATION,
            access.organization_id,
            access.organization_id,
        )
    )


def _place(entity: Entity, stored: Stored, topics: Topics) -> Place | None:
    """Returns the coordinates of the record that a live value shows; None if they say nothing: then they are those of a
    former history of the topic, or the projectors have not covered it yet.
    """
    head = live_head(entity, stored.value)
    if head is None or stored.waits_for_job:
        return None
    at = topics.partition(entity[0], head.partition)
    if at not in topics.covered or head.history != topics.reader.histories.get(at.topic, 0):
        return None
    first, last = topics.covered[at]
    return (at, head.offset) if first <= head.offset < last or head.offset >= topics.available[at][1] else None


async def _unknown(topics: Topics, suspects: Mapping[Entity, Stored]) -> list[Entity]:
    """Returns those of these entities that the topics say do not exist. It reads the topics, but only these keys."""
    if not suspects:
        return []
    expected = Reference(hashes)
    wanted = {message_key(entity) for entity in suspects} | {owner.encode() for _, owner, _ in suspects}
    async for records in topics.reader.read(dict(topics.available), _RECORDS):
        for record in records:
            if record.key in wanted:
                expected.add(record)
        await asyncio.sleep(0)
    return [
        entity
        for entity, stored in suspects.items()
        if differs(entity, stored, expected) == ("extra",) and not expected.is_bad(entity)
    ]


async def _entries_without_key(store: Store, some: Collection[bytes], stop: Stop) -> list[Difference]:
    """Returns the records of hashes that would accept a key although no API key has this hash."""

    async def look(suspects: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for name, before in suspects.items():
            owner, key_hash = names.owner_of_key(name), names.hash_of_key(name)
            starts = range(KEY_ENTRIES, len(before) - KEY_ENTRY + 1, KEY_ENTRY)
            ids = [names.long_id(before[start : start + KEY_ENTRY][KEY_ENTRY_ID]) for start in starts]
            values = await store.ask(
                [
                    *((b"GET", names.api_key_entity(owner, id_)) for id_ in ids),
                    (b"GET", owner),
                    (b"GET", name),
                ]
            )
            hashes_of_keys = [(value or b"")[API_KEY_HASH:] for value in values[:-2]]
            is_backed = ids and all(found_hash == key_hash.encode() for found_hash in hashes_of_keys)
            organization = values[-2] or b""
            waits = len(organization) > 0 and Stored(organization, b"").waits_for_job
            if values[-1] == before and not is_backed and not waits:
                found[name] = before
        return found

    records = [name for name in some if (access := access_name(name)) and access.key_hash]
    values = await store.ask([(b"GET", name) for name in records]) if records else []
    suspects = await look({name: value for name, value in zip(records, values, strict=True) if value is not None})
    left = await settle(suspects, look, rounds=CHECKS, pause=CHECK_SECONDS, sleep=stop.sleep)
    if stop.is_set():
        return []
    return [
        Difference(API_KEY.topic, access.organization_id, f"hash {access.key_hash}", ("extra",))
        for name in left
        if (access := access_name(name))
    ]
