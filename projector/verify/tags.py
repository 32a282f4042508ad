"""The tags of documents (schemas.layouts): those that the topics ask for, and those that stored bytes have."""

from typing import NamedTuple

import msgspec

from projector import mapping
from projector.record import Kind
from projector.reference import Document, Entity, Reference
from schemas import documents
from schemas.layouts import CONTACT_BODY, FIRST_LEAD, HASH_BYTES, LEAD_BODY, NO_CONTACT, TAGS, content_hash

_encode = msgspec.json.encode


class Hashes(NamedTuple):
    """All that an audit keeps of a document. `mark` is a contact's, `contact_id` a lead's."""

    tag: bytes
    mark: bytes = NO_CONTACT
    contact_id: str = ""


def hashes(document: Document) -> Hashes | None:
    """What a `Reference` is to keep of a document, for `expected_tags`."""
    match document:
        case documents.Lead():
            return Hashes(content_hash(_encode(document)), contact_id=document.contact_id)
        case documents.Contact():
            return Hashes(content_hash(_encode(document)), content_hash(_encode(mapping.contact_summary(document))))
    return None


def expected_tags(expected: Reference, entity: Entity) -> bytes | None:
    """The tags (tag and mark) that a document should have; None where there should be none. `expected` keeps hashes."""
    kind, organization_id, _ = entity
    found = expected.newest.get(entity)
    if found is None or not found.live or expected.is_erased(organization_id):
        return None
    if kind is Kind.CONTACT:
        return bytes(found.document.tag + found.document.mark)
    contact = expected.newest.get((Kind.CONTACT, organization_id, found.document.contact_id))
    return bytes(found.document.tag + (contact.document.mark if contact and contact.live else NO_CONTACT))


def stored_tags(kind: Kind, value: bytes) -> bytes:
    """The tags that a live document's own bytes give; empty where they contradict the stored ones."""
    if kind is Kind.CONTACT:
        tag, mark = content_hash(value[CONTACT_BODY:]), value[28:34]
    else:
        at, length = int.from_bytes(value[34:37], "little"), int.from_bytes(value[37:40], "little")
        body, summary = value[LEAD_BODY:], value[LEAD_BODY + at : LEAD_BODY + at + length]
        tag = content_hash(body[:at] + b"\0" + body[at + length :])
        mark = NO_CONTACT if summary == b"null" else content_hash(summary)
    return tag + mark if tag + mark == value[TAGS] else b""


def shown_mark(contact: bytes, score: bytes | None, lead_id: bytes) -> bytes | None:
    """The mark under which a lead stands in its contact's index; None where it does not.

    `contact` is the beginning of the contact's value, `score` the lead's in the sorted set as Redis returns it,
    `lead_id` its short id.
    """
    first = contact[FIRST_LEAD]
    if contact[:1] == b"L" and first[HASH_BYTES:] == lead_id:
        return first[:HASH_BYTES]
    return None if score is None else int(float(score)).to_bytes(HASH_BYTES, "little")
