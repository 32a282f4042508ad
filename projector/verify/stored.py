"""What Redis holds of an entity, and how it differs from what the topics say: for every comparison with the topics.

`Reference` says what follows from the records. Of each document it keeps only hashes here (`hashes`), so an entity
takes about a kilobyte of memory, whatever its size. The stored bytes are hashed, so that corruption is detected.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, cast

import msgspec

from projector import mapping, reference
from projector.redis.store import SLICE, Store
from projector.reference import Entity, Newest, Reference
from projector.verify.parts import ALL, Part
from schemas import documents, names
from schemas.bodies import body, lead_parts
from schemas.compression import Unreadable
from schemas.control import GenerationId
from schemas.layouts import (
    ACCESS,
    API_KEY_HASH,
    CONTACT_BODY,
    ETAG,
    FIRST_LEAD,
    HASH_BYTES,
    HEAD,
    JOB_DUE,
    JOB_ERASE,
    JOB_REPLAY,
    KEY_ENTRIES,
    KEY_ENTRY,
    KEY_ORGANIZATION,
    LIMITS,
    NO_CONTACT,
    SUMMARY_HASH,
    Head,
    content_hash,
    key_validity,
    read_head,
)
from schemas.resources import API_KEY, BY_LETTER, CONTACT, LEAD, ORGANIZATION, Resource

_encode = msgspec.json.encode

DocumentKey = tuple[Resource, str, str]
"""Resource, organization, id."""


class Hashes(NamedTuple):
    """What a comparison keeps of a document. Only a contact has `summary_hash`, and only a lead has `contact_id`."""

    body_hash: bytes
    summary_hash: bytes = NO_CONTACT
    contact_id: str = ""


class Stored(NamedTuple):
    """The values of an entity in Redis, and those that they depend on.

    `organization` is the beginning of the organization's record, including the job due. `contact` is the beginning of
    the value of a lead's contact, and `indexed` the summary hash of the lead in the index of that contact. `record` is
    that of an API key's hash.
    """

    organization: bytes
    value: bytes
    contact: bytes = b""
    indexed: bytes | None = None
    record: bytes = b""

    @property
    def waits_for_job(self) -> bool:
        """Whether the organization is being erased or replayed."""
        return self.organization[JOB_DUE] in (JOB_ERASE, JOB_REPLAY)


class StoredDocument(msgspec.Struct, frozen=True):
    """Version, body and ETag of a live document. All are empty if there is no live document."""

    version: int = 0
    body: bytes | None = None
    etag: bytes = b""


def hashes(document: reference.Document) -> Hashes | None:
    """Returns what a `Reference` must keep of a document for the functions of this module."""
    match document:
        case None:
            return None
        case documents.Lead():
            return Hashes(content_hash(_encode(document)), contact_id=document.contact_id)
        case documents.Contact():
            return Hashes(content_hash(_encode(document)), content_hash(_encode(mapping.contact_summary(document))))
        case _:
            return Hashes(content_hash(_encode(document)))


async def read(
    store: Store, generation: GenerationId, entities: Sequence[Entity], expected: Reference
) -> dict[Entity, Stored]:
    """Read these entities. `expected` knows the contacts of the leads, and the hashes of API keys. Raises Unavailable.

    What another value depends on is read after it: a lead, then its contact; the record of a hash, then the API key;
    and the organization last. So if one of them was changed meanwhile, `Topics.changing` notices it.
    """
    found: dict[Entity, Stored] = {}
    for start in range(0, len(entities), SLICE):
        some = entities[start : start + SLICE]
        replies = iter(
            await store.ask([command for entity in some for command in _commands(entity, generation, expected)])
        )
        for entity in some:
            if isinstance(entity[0], Resource):
                value, contact, score, organization = islice(replies, 4)
                indexed = indexed_hash(contact, score, names.short_id(entity[2]))
                found[entity] = Stored(organization, value or b"", contact, indexed)
            else:
                record, value, organization = islice(replies, 3)
                found[entity] = Stored(organization, value or b"", record=record or b"")
    return found


def _commands(entity: Entity, generation: GenerationId, expected: Reference) -> tuple[tuple[Any, ...], ...]:
    kind, organization_id, id_ = entity
    owner = names.organization(organization_id)
    organization = (b"GETRANGE", owner, 0, JOB_DUE.stop - 1)
    if isinstance(kind, Resource):
        contact_id = contact_of(expected, entity) or id_  # without a contact: a key that does not exist
        return (
            (b"GET", names.document(kind, owner, generation, id_)),
            (b"GETRANGE", names.document(CONTACT, owner, generation, contact_id), 0, CONTACT_BODY - 1),
            (b"ZSCORE", names.contact_leads(owner, generation, contact_id), names.short_id(id_)),
            organization,
        )
    newest = expected.newest.get(entity)
    key_hash = newest.key.hash if newest and newest.key else ""
    value = names.api_key_entity(owner, id_) if kind is API_KEY else owner
    return (b"GET", names.api_key(owner, key_hash)), (b"GET", value), organization


def contact_of(expected: Reference, entity: Entity) -> str | None:
    """Returns the id of a live lead's contact; None for other entities."""
    newest = expected.newest.get(entity)
    return cast(Hashes, newest.document).contact_id if entity[0] is LEAD and newest and newest.live else None


def indexed_hash(contact: bytes, score: bytes | None, lead_id: bytes) -> bytes | None:
    """Returns the summary hash of a lead in the index of its contact; None if the lead is not in the index.

    `contact` is the beginning of the contact's value, `score` the score of the lead in the sorted set as Redis returns
    it, and `lead_id` the short id of the lead.
    """
    first = contact[FIRST_LEAD]
    if contact[:1] == b"L" and first[HASH_BYTES:] == lead_id:
        return first[:HASH_BYTES]
    return None if score is None else int(float(score)).to_bytes(HASH_BYTES, "little")


def is_expected(expected: Reference, entity: Entity) -> bool:
    """Returns whether an entity should exist."""
    newest = expected.newest.get(entity)
    return newest is not None and newest.live and not expected.is_erased(entity[1])


def expected_hashes(expected: Reference, entity: Entity) -> bytes:
    """Returns both hashes of a document that should exist."""
    own = cast(Hashes, expected.newest[entity].document)
    contact_id = contact_of(expected, entity)
    if contact_id is None:
        return own.body_hash + own.summary_hash
    contact = expected.newest.get((CONTACT, entity[1], contact_id))
    return own.body_hash + (contact.document.summary_hash if contact and contact.live else NO_CONTACT)


def differs(entity: Entity, stored: Stored, expected: Reference) -> tuple[str, ...]:
    """Returns what differs from what the topics say; nothing if it is equal. `expected` has all of their records.

    Of a document, the result has `content`, `contact` or `index`, and of an access record the names of its fields. An
    entity can be `missing` or `extra` as a whole. The record of an API key's hash is not compared (`of_record`).
    """
    newest, head = expected.newest.get(entity), live_head(entity, stored.value)
    if entity[0] is ORGANIZATION and newest and not newest.live and not stored.value:
        return ("missing",)  # the marker, without which an older event would bring the organization back
    wanted = is_expected(expected, entity) and not is_gone(entity, stored, expected)
    if newest is None or head is None or not wanted:
        return existence(wanted, head is not None)
    summary = expected_hashes(expected, entity)[HASH_BYTES:] if isinstance(entity[0], Resource) else b""
    return _differing(entity, stored, newest, head, summary)


def is_gone(entity: Entity, stored: Stored, expected: Reference) -> bool:
    """Returns whether nothing of an entity's organization is wanted any more, although Kafka may have its records.

    Redis has the delete of the organization, and Kafka has no record of it any more: compaction removes a tombstone
    after a while. Or it has one in another partition, from before partitions were added.
    """
    kind, organization_id, _ = entity
    if kind is ORGANIZATION or not is_deleted(stored.organization):
        return False
    newest = expected.newest.get((ORGANIZATION, organization_id, organization_id))
    return newest is None or newest.partition != read_head(stored.organization).partition


def contradicts(entity: Entity, stored: Stored, expected: Reference) -> tuple[str, ...]:
    """Returns how a value contradicts the newest of some records that Redis must have; nothing if they cannot tell.

    A value names the newest event that was applied. If that is an older one, a write was lost. If it is this one, the
    value must follow from it; the contact of a lead is taken from Redis. If it is a newer one, its record can tell.
    """
    newest, value = expected.newest[entity], stored.value
    kind, organization_id, id_ = entity
    if stored.waits_for_job or (kind is not ORGANIZATION and is_deleted(stored.organization)):
        return ()  # nothing of a deleted organization is kept
    head = read_head(value) if len(value) >= HEAD else None
    if head is None:
        return ("missing",) if newest.live else ()
    if _is_lost(newest, head, value):
        return ("version",) if newest.live and head.live else existence(newest.live, not newest.live)
    event = (newest.version, newest.offset, newest.partition)
    if not newest.live or (head.version, head.offset, head.partition) != event:
        return ()
    if live_head(entity, value) is None:
        return ("missing",)
    contact = stored.contact
    has_contact = kind is LEAD and len(contact) >= CONTACT_BODY and read_head(contact).live
    found = _differing(entity, stored, newest, head, contact[SUMMARY_HASH] if has_contact else NO_CONTACT)
    if found or newest.key is None:
        return found
    [wanted] = records_of(names.tag(names.organization(organization_id)), {id_: newest}).values()
    if len(stored.record) == KEY_ENTRIES + KEY_ENTRY:
        return of_record(wanted, stored.record)
    # Several API keys have this hash: what the record says depends on all of them, but the entry on this one alone.
    return () if wanted[KEY_ENTRIES:] in stored.record else ("status",)


def is_deleted(organization: bytes) -> bool:
    """Returns whether the beginning of an organization's record is the marker of a deleted one."""
    return len(organization) >= HEAD and not read_head(organization).live


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


def live_head(entity: Entity, value: bytes) -> Head | None:
    """Returns the head of a value; None for a marker, and for a value that Leadview did not write."""
    least = entity[0].body_offset if isinstance(entity[0], Resource) else HEAD
    head = read_head(value) if len(value) >= least else None
    return head if head and head.live else None


def _differing(entity: Entity, stored: Stored, newest: Newest, head: Head, summary: bytes) -> tuple[str, ...]:
    """Returns what differs in a live value. `summary` is the hash that the summary of a lead's contact should have."""
    kind, value = entity[0], stored.value
    match kind:
        case Resource():
            own = cast(Hashes, newest.document)
            wanted = own.body_hash + (summary if kind is LEAD else own.summary_hash)
            found = stored_hashes(kind, value)
            is_of_contact = kind is LEAD and found[:HASH_BYTES] == own.body_hash
            fields = {
                "contact" if is_of_contact else "content": found != wanted,
                "index": kind is LEAD and found == wanted and stored.indexed != summary,
            }
        case _ if kind is ORGANIZATION:
            fields = {
                "api_access": value[ACCESS] != newest.access[:1],
                "rate_limits": value[LIMITS] != newest.access[1:],
            }
        case _:
            fields = {"hash": newest.key is None or value[API_KEY_HASH:] != newest.key.hash.encode()}
    fields["version"] = head.version != newest.version
    return tuple(name for name, is_different in fields.items() if is_different)


def stored_hashes(resource: Resource, value: bytes) -> bytes:
    """Returns both hashes, computed from the bytes of a live document; b"" if they are not equal to the stored ones."""
    try:
        if resource is LEAD:
            text, summary = lead_parts(value)
            found = content_hash(text) + (NO_CONTACT if summary == b"null" else content_hash(summary))
        else:
            rest = value[SUMMARY_HASH] if resource is CONTACT else NO_CONTACT
            found = content_hash(body(resource, value)) + rest
    except Unreadable:
        return b""
    return found if found == value[ETAG] else b""


def existence(expected: bool, found: bool) -> tuple[str, ...]:
    """Returns whether something is `missing` or `extra`."""
    if expected == found:
        return ()
    return ("missing",) if expected else ("extra",)


def records_of(tag: bytes, api_keys: Mapping[str, Newest]) -> dict[str, bytes]:
    """Returns the record of each hash that the newest events require, as `put_api_key.lua` writes it."""
    entries: dict[str, list[bytes]] = {}
    expiries: dict[str, list[int]] = {}
    for id_, newest in api_keys.items():
        if key := newest.key:
            validity = key_validity(revoked=key.revoked, expiry=key.expiry)
            entries.setdefault(key.hash, []).append(names.short_id(id_) + validity)
            expiries.setdefault(key.hash, []).append(1 if key.revoked else key.expiry)
    return {
        key_hash: tag
        + min((each for each in expiries[key_hash] if each), default=0).to_bytes(6, "little")
        + b"".join(sorted(found))
        for key_hash, found in entries.items()
    }


def of_record(expected: bytes | None, found: bytes | None) -> tuple[str, ...]:
    """Returns what differs in the record of a hash."""
    if not expected or not found:
        return existence(bool(expected), bool(found))
    if expected == found:
        return ()
    return ("organization_id",) if expected[KEY_ORGANIZATION] != found[KEY_ORGANIZATION] else ("status",)


def document(resource: Resource, value: bytes | None) -> StoredDocument:
    """Parse a stored value. Returns an empty document for a marker, and for a value that Leadview did not write."""
    if not value or len(value) < resource.body_offset or not read_head(value).live:
        return StoredDocument()
    try:
        json = body(resource, value)
    except Unreadable:
        json = value[resource.body_offset :]  # this is not JSON either
    return StoredDocument(read_head(value).version, json, value[ETAG])


def differing_fields(expected: StoredDocument, found: StoredDocument) -> tuple[str, ...]:
    """Returns the names of the fields that differ.

    A whole document can be `missing`, `extra` or `unreadable`. If all fields are equal, the result may be `version`,
    `etag` or `bytes`.
    """
    if expected.body is None or found.body is None:
        return existence(expected.body is not None, found.body is not None)
    if expected.body == found.body:
        pairs = {"version": (expected.version, found.version), "etag": (expected.etag, found.etag)}
        return tuple(name for name, (was, is_) in pairs.items() if was != is_)
    before, after = _decode(expected.body), _decode(found.body)
    if not isinstance(before, dict) or not isinstance(after, dict):
        return ("unreadable",)
    fields = before.keys() | after.keys()
    return tuple(sorted(field for field in fields if before.get(field, ...) != after.get(field, ...))) or ("bytes",)


def _decode(body: bytes) -> Any:
    try:  # not with orjson: it rounds integers of more than 64 bits, so two that differ could be equal
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


async def stored_documents(
    store: Store, generations: Collection[GenerationId], part: Part = ALL
) -> AsyncIterator[list[tuple[DocumentKey, GenerationId]]]:
    """Yields the documents and markers of these generations in a part of the organizations, each with its generation,
    in lists of up to `SLICE`. One may come twice. Raises Unavailable.
    """
    async for keys in store.scan(names.ALL):
        found = [document_name(key) for key in keys]
        yield [one for one in found if one and one[1] in generations and part.has(one[0][1])]


async def stored_access(store: Store, part: Part = ALL) -> AsyncIterator[list["AccessName"]]:
    """Yields the names of organizations and API keys in a part of the organizations, in lists of up to `SLICE`. One may
    come twice. Raises Unavailable.
    """
    async for keys in store.scan(names.ALL):
        found = [access_name(key) for key in keys]
        yield [one for one in found if one and part.has(one.organization_id)]


class AccessName(NamedTuple):
    """A name that the access of an organization consists of: the id of an API key, or the hash of a key, or neither, if
    it is the record of the organization.
    """

    organization_id: str
    id: str = ""
    key_hash: str = ""


def document_name(name: bytes) -> tuple[DocumentKey, GenerationId] | None:
    """Returns the document that a name in Redis is of, and its generation; None if it is of none."""
    match = names.IN_GENERATION.fullmatch(name)
    if match is None or match[3] not in BY_LETTER:
        return None
    return (BY_LETTER[match[3]], _organization_id(match[1]), names.long_id(match[4])), GenerationId(match[2].decode())


def access_name(name: bytes) -> AccessName | None:
    """Returns what a name in Redis says if it belongs to the access of an organization; otherwise None."""
    match = names.OF_ACCESS.fullmatch(name)
    if match is None:
        return None
    id_ = names.long_id(match[2]) if match[2] is not None else ""
    return AccessName(_organization_id(match[1]), id_, (match[3] or b"").decode())


def message_key(entity: Entity) -> bytes:
    """Returns the message key of an entity."""
    kind, organization_id, id_ = entity
    return (organization_id if kind is ORGANIZATION else f"{organization_id}:{id_}").encode()


_organization_id = lru_cache(65536)(names.organization_id)
