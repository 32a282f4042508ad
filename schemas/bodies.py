"""The JSON of documents, from values as Redis stores them (`schemas.layouts`): as it is, or compressed."""

from schemas.compression import Unreadable, packed, unpacked
from schemas.layouts import (
    BEFORE_PACKED_SUMMARY,
    BODY_ORGANIZATION_ID,
    JSON_START,
    LEAD_BODY,
    LEAD_CONTACT_ID,
    LEAD_SUMMARY_PLACE,
    NUMBER_BYTES,
    PACKED_LEAD,
    PACKED_SUMMARY,
    SUMMARY_FIELDS_STOP,
)
from schemas.resources import CONTACT, LEAD, Resource

SUMMARY = b"\0"
"""Stands for the contact summary in the body of a lead. JSON never contains this byte, because it is always escaped."""
_ID_END = BODY_ORGANIZATION_ID.stop


def body(resource: Resource, value: bytes) -> bytes:
    """Returns the JSON of a live document. Raises Unreadable if the value is compressed and cannot be read."""
    start = resource.body_offset
    stored = value[start:]
    if stored[:1] == JSON_START:
        return stored
    if resource is LEAD:
        text, summary = lead_parts(value)
        return text.replace(SUMMARY, summary, 1)
    if resource is CONTACT:
        stop = int.from_bytes(value[SUMMARY_FIELDS_STOP], "little") % PACKED_SUMMARY
        rest = unpacked(stored[stop:])
        return rest[:_ID_END] + unpacked(stored[:stop]) + rest[_ID_END:]
    return unpacked(stored)


def lead_parts(value: bytes) -> tuple[bytes, bytes]:
    """Returns the JSON of a live lead with `SUMMARY` in place of the contact summary, and that summary. Raises
    Unreadable.
    """
    place, stored = value[LEAD_SUMMARY_PLACE], value[LEAD_BODY:]
    start = int.from_bytes(place[:NUMBER_BYTES], "little")
    end = start + int.from_bytes(place[NUMBER_BYTES:], "little")
    before, summary = stored[:start], stored[start:end]
    contact_id = before[LEAD_CONTACT_ID]
    is_packed = summary[:1] not in (JSON_START, b"n")  # b"n" as in null
    opening = BEFORE_PACKED_SUMMARY if is_packed else JSON_START
    if before.startswith(PACKED_LEAD):
        text = unpacked(before[len(PACKED_LEAD) : LEAD_CONTACT_ID.start] + stored[end:])
        text = text[: LEAD_CONTACT_ID.start] + contact_id + text[LEAD_CONTACT_ID.start :]
    elif before[:1] != opening:
        raise Unreadable(f"it begins with {before[:1]!r} instead of {opening!r}")
    else:
        text = JSON_START + before[len(JSON_START) :] + SUMMARY + stored[end:]
    if is_packed:
        summary = b'{"id":"%b"%b}' % (contact_id, unpacked(summary))
    return text, summary


def packed_lead(contact_id: str, text: bytes) -> tuple[bytes, bytes]:
    """Returns what is stored before and after the contact summary. `text` has `SUMMARY` in place of it."""
    # Zeros after a short one are ignored.
    stored = (PACKED_LEAD + packed(without_contact_id(text))).ljust(LEAD_CONTACT_ID.start, b"\0")
    return stored[: LEAD_CONTACT_ID.start] + contact_id.encode(), stored[LEAD_CONTACT_ID.start :]


def packed_value(resource: Resource, value: bytes) -> bytes:
    """Returns the value of a document of another resource, as `projector.mapping.PutDocument` has it, compressed."""
    if resource is not CONTACT:
        return value[: resource.body_offset] + packed(value[resource.body_offset :])
    stop = int.from_bytes(value[SUMMARY_FIELDS_STOP], "little")
    fields, rest = parts_of_contact(value[SUMMARY_FIELDS_STOP.stop :], stop)
    stored = packed(fields)
    place = (PACKED_SUMMARY + len(stored)).to_bytes(NUMBER_BYTES, "little")
    return value[: SUMMARY_FIELDS_STOP.start] + place + stored + packed(rest)


def without_contact_id(text: bytes) -> bytes:
    """Returns what is compressed of a lead."""
    return text[: LEAD_CONTACT_ID.start] + text[LEAD_CONTACT_ID.stop :]


def parts_of_contact(text: bytes, stop: int) -> tuple[bytes, bytes]:
    """Returns the two parts of a contact that are compressed: the fields of its summary, which end at `stop`, without
    its id; and the rest.
    """
    return text[_ID_END:stop], text[:_ID_END] + text[stop:]
