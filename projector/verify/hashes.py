"""The two hashes of a document (`schemas.layouts`), computed from the topics or from the stored bytes."""

from typing import NamedTuple, cast

import msgspec

from projector import mapping
from projector.reference import Document, Entity, Reference
from schemas import documents
from schemas.bodies import body, lead_parts
from schemas.compression import Unreadable
from schemas.layouts import (
    ETAG,
    FIRST_LEAD,
    HASH_BYTES,
    NO_CONTACT,
    SUMMARY_HASH,
    content_hash,
)
from schemas.resources import CONTACT, LEAD, Resource

_encode = msgspec.json.encode


class Hashes(NamedTuple):
    """What an audit keeps of a document. Only a contact has `summary_hash`, and only a lead has `contact_id`."""

    body_hash: bytes
    summary_hash: bytes = NO_CONTACT
    contact_id: str = ""


def hashes(document: Document) -> Hashes | None:
    """Returns what a `Reference` must keep of a document so that `expected_hashes` works."""
    match document:
        case None:
            return None
        case documents.Lead():
            return Hashes(content_hash(_encode(document)), contact_id=document.contact_id)
        case documents.Contact():
            return Hashes(content_hash(_encode(document)), content_hash(_encode(mapping.contact_summary(document))))
        case _:
            return Hashes(content_hash(_encode(document)))


def contact_of(expected: Reference, entity: Entity) -> str | None:
    """Returns the id of a live lead's contact; None for other entities. `expected` keeps `hashes`."""
    newest = expected.newest.get(entity)
    return cast(Hashes, newest.document).contact_id if entity[0] is LEAD and newest and newest.live else None


def expected_hashes(expected: Reference, entity: Entity) -> bytes | None:
    """Returns both hashes that a document should have; None if it should not exist. `expected` keeps `hashes`."""
    _, organization_id, _ = entity
    found = expected.newest.get(entity)
    if found is None or not found.live or expected.is_erased(organization_id):
        return None
    own = cast(Hashes, found.document)
    contact_id = contact_of(expected, entity)
    if contact_id is None:
        return own.body_hash + own.summary_hash
    contact = expected.newest.get((CONTACT, organization_id, contact_id))
    return own.body_hash + (contact.document.summary_hash if contact and contact.live else NO_CONTACT)


def stored_hashes(resource: Resource, value: bytes) -> bytes:
    """Returns both hashes, computed from the bytes of a live document; b"" if they are not equal to the stored ones."""
    try:
        found = _hashes_of_lead(value) if resource is LEAD else _hashes(resource, value)
    except Unreadable:
        return b""
    return found if found == value[ETAG] else b""


def _hashes(resource: Resource, value: bytes) -> bytes:
    return content_hash(body(resource, value)) + (value[SUMMARY_HASH] if resource is CONTACT else NO_CONTACT)


def _hashes_of_lead(value: bytes) -> bytes:
    text, summary = lead_parts(value)
    return content_hash(text) + (NO_CONTACT if summary == b"null" else content_hash(summary))


def indexed_hash(contact: bytes, score: bytes | None, lead_id: bytes) -> bytes | None:
    """Returns the summary hash of a lead in the index of its contact; None if the lead is not in the index.

    `contact` is the beginning of the contact's value, `score` the score of the lead in the sorted set as Redis returns
    it, and `lead_id` the short id of the lead.
    """
    first = contact[FIRST_LEAD]
    if contact[:1] == b"L" and first[HASH_BYTES:] == lead_id:
        return first[:HASH_BYTES]
    return None if score is None else int(float(score)).to_bytes(HASH_BYTES, "little")
