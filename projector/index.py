"""The index of a contact's leads, as the scripts keep it (`projector/lua/layout.lua`)."""

from schemas.layouts import FIRST_LEAD, HASH_BYTES


def shown_mark(contact: bytes, score: float | None, lead_id: bytes) -> bytes | None:
    """The mark under which a lead stands in its contact's index; None where it does not.

    `contact` is the beginning of the contact's value, `score` the lead's in the sorted set, `lead_id` its short id.
    """
    first = contact[FIRST_LEAD]
    if contact[:1] == b"L" and first[HASH_BYTES:] == lead_id:
        return first[:HASH_BYTES]
    return None if score is None else int(score).to_bytes(HASH_BYTES, "little")
