"""The two hashes of a document (`schemas.layouts`): those that follow from the topics, and from the stored bytes."""

from typing import NamedTuple, cast

import msgspec

from projector import mapping
from projector.reference import Document, Entity, Reference
from schemas import documents
from schemas.layouts import (
    CONTACT_BODY,
    ETAG,
    FIRST_LEAD,
    HASH_BYTES,
    LEAD_BODY,
    LEAD_SUMMARY_PLACE,
    NO_CONTACT,
    SUMMARY_HASH,
    content_hash,
)
from schemas.resources import CONTACT, LEAD, Resource

_encode = msgspec.json.encode
_NUMBER_BYTES = 3


class Hashes(NamedTuple):
    """All that an audit keeps of a document. `summary_hash` is a contact's, `contact_id` a lead's."""

    body_hash: bytes
    summary_hash: bytes = NO_CONTACT
    contact_id: str = ""


def hashes(document: Document) -> Hashes | None:
    """Returns what a `Reference` has to keep of a document, for `expected_hashes`."""
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
    """Returns the contact of a live lead; None for everything else. `expected` keeps hashes."""
    newest = expected.newest.get(entity)
    return cast(Hashes, newest.document).contact_id if entity[0] is LEAD and newest and newest.live else None


def expected_hashes(expected: Reference, entity: Entity) -> bytes | None:
    """Returns both hashes that a document should have; None if there should be none. `expected` keeps hashes."""
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
    """Returns both hashes, computed from the bytes of a live document; empty if they contradict the stored ones."""
    if resource is LEAD:
        found = _hashes_of_lead(value)
    elif resource is CONTACT:
        found = content_hash(value[CONTACT_BODY:]) + value[SUMMARY_HASH]
    else:
        found = content_hash(value[resource.body :]) + NO_CONTACT
    return found if found == value[ETAG] else b""


def _hashes_of_lead(value: bytes) -> bytes:
    place, body = value[LEAD_SUMMARY_PLACE], value[LEAD_BODY:]
    start = int.from_bytes(place[:_NUMBER_BYTES], "little")
    end = start + int.from_bytes(place[_NUMBER_BYTES:], "little")
    summary = body[start:end]
    body_hash = content_hash(body[:start] + b"\0" + body[end:])
    return body_hash + (NO_CONTACT if summary == b"null" else content_hash(summary))


def indexed_hash(contact: bytes, score: bytes | None, lead_id: bytes) -> bytes | None:
    """Returns the summary hash that the index of a contact has for a lead; None if the lead is not in it.

    `contact` is the beginning of the contact's value, `score` the lead's in the sorted set as Redis returns it,
    `lead_id` its short id.
    """
    first = contact[FIRST_LEAD]
    if contact[:1] == b"L" and first[HASH_BYTES:] == lead_id:
        return first[:HASH_BYTES]
    return None if score is None else int(float(score)).to_bytes(HASH_BYTES, "little")
