"""What Redis holds of an entity, compared with one record of it (`projector/verify/rolling.py`)."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from projector.redis.store import SLICE, Store
from projector.reference import Entity, Newest, Reference
from projector.verify.access import of_record, records_of
from projector.verify.compare import DocumentKey
from projector.verify.hashes import Hashes, stored_hashes
from projector.verify.recheck import Stored, read_stored
from schemas import names
from schemas.control import GenerationId
from schemas.layouts import (
    ACCESS,
    API_KEY_HASH,
    CONTACT_BODY,
    HASH_BYTES,
    HEAD,
    JOB_DUE,
    JOB_ERASE,
    JOB_REPLAY,
    KEY_ENTRIES,
    KEY_ENTRY,
    LIMITS,
    NO_CONTACT,
    SUMMARY_HASH,
    Head,
    read_head,
)
from schemas.resources import API_KEY, LEAD, ORGANIZATION, Resource


class Glance(NamedTuple):
    """The values of an entity. `record` is, for an API key, the record of its hash."""

    stored: Stored
    record: bytes = b""


async def read(
    store: Store, generation: GenerationId, entities: Sequence[Entity], expected: Reference
) -> dict[Entity, Glance]:
    """Read these entities, which are all of one kind. `expected` keeps `hashes` and knows them. Raises Unavailable."""
    if not entities:
        return {}
    if isinstance(entities[0][0], Resource):
        documents = cast(Sequence[DocumentKey], entities)
        stored = await read_stored(store, generation, documents, expected)
        return {entity: Glance(found) for entity, found in zip(entities, stored, strict=True)}
    glances: dict[Entity, Glance] = {}
    for start in range(0, len(entities), SLICE):
        some = entities[start : start + SLICE]
        commands: list[tuple[Any, ...]] = []
        for kind, organization_id, id_ in some:
            owner = names.organization(organization_id)
            key = expected.newest[kind, organization_id, id_].key
            value_of = names.api_key_entity(owner, id_) if kind is API_KEY else owner
            commands += ((b"GET", names.api_key(owner, key.hash if key else "")), (b"GET", value_of), (b"GET", owner))
        replies = iter(await store.ask(commands))
        for each, record, value, organization in zip(some, replies, replies, replies, strict=True):
            glances[each] = Glance(Stored(organization or b"", value, b"", None), record or b"")
    return glances


def difference(entity: Entity, glance: Glance, expected: Reference) -> tuple[str, ...]:
    """Returns what differs from the newest of the records that were read; nothing if they cannot tell."""
    kind, newest = entity[0], expected.newest[entity]
    organization, value = glance.stored.organization, glance.stored.value or b""
    if organization[JOB_DUE] in (JOB_ERASE, JOB_REPLAY):
        return ()
    if kind is not ORGANIZATION and len(organization) >= HEAD and not read_head(organization).live:
        return ()  # nothing of a deleted organization is kept
    head = read_head(value) if len(value) >= HEAD else None
    if head is None:
        return ("missing",) if newest.live else ()
    if _is_lost(newest, head, value):
        return ("version",) if newest.live and head.live else ("missing",) if newest.live else ("extra",)
    if not newest.live or (head.version, head.offset, head.partition) != (
        newest.version,
        newest.offset,
        newest.partition,
    ):
        return ()
    return _content(entity, glance, newest, head)


def _is_lost(newest: Newest, head: Head, value: bytes) -> bool:
    """Returns whether a stored value shows an older event than this one, which must therefore have been applied to it.

    A tombstone has no version, so it is only compared with events of its own partition (`projector/reference.py`).
    """
    is_later = newest.partition == head.partition and newest.offset > head.offset
    if newest.tombstone:
        return head.live and is_later
    if value.startswith(b"T") and not is_later:
        return False
    return newest.version > head.version


def _content(entity: Entity, glance: Glance, newest: Newest, head: Head) -> tuple[str, ...]:
    """Returns what differs in a value that names this event as the one that it shows."""
    kind, organization_id, id_ = entity
    value = glance.stored.value or b""
    if not head.live:
        return ("missing",)
    if isinstance(kind, Resource):
        return _document(kind, glance.stored, newest.document, value)
    if kind is ORGANIZATION:
        fields = {"api_access": value[ACCESS] != newest.access[:1], "rate_limits": value[LIMITS] != newest.access[1:]}
        return tuple(name for name, differs in fields.items() if differs)
    if newest.key is None or value[API_KEY_HASH:] != newest.key.hash.encode():
        return ("hash",)
    tag = names.tag(names.organization(organization_id))
    [wanted] = records_of(tag, {id_: newest}).values()
    if len(glance.record) == KEY_ENTRIES + KEY_ENTRY:
        return tuple(of_record(wanted, glance.record))
    # Several API keys have this hash: what the record says depends on all of them, but the entry on this one alone.
    return () if wanted[KEY_ENTRIES:] in glance.record else ("status",)


def _document(resource: Resource, stored: Stored, own: Hashes, value: bytes) -> tuple[str, ...]:
    summary = own.summary_hash
    if resource is LEAD:
        contact = stored.contact
        has_contact = len(contact) >= CONTACT_BODY and read_head(contact).live
        summary = contact[SUMMARY_HASH] if has_contact else NO_CONTACT
    found = stored_hashes(resource, value) if len(value) > resource.body else b""
    if found[:HASH_BYTES] != own.body_hash:
        return ("content",)
    if found[HASH_BYTES:] != summary:
        return ("contact",) if resource is LEAD else ("content",)
    if resource is LEAD and stored.indexed != summary:
        return ("index",)
    return ()
