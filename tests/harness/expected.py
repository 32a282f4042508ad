"""What must be in Redis after some records, by the reference."""

from collections.abc import Iterable

from projector.record import Record
from projector.reference import Entity, Reference


def documents_of(records: Iterable[Record]) -> dict[Entity, bytes]:
    """Returns the documents that follow from these records."""
    reference = Reference()
    for record in records:
        reference.add(record)
    return documents(reference)


def documents(reference: Reference) -> dict[Entity, bytes]:
    """Returns the JSON of every document that should be served."""
    return {entity: body for entity in reference.newest if (body := reference.document(entity))}


def key_expiries(reference: Reference) -> dict[tuple[str, str], int]:
    """Returns when each key expires, by organization and hash: in milliseconds since 1970, 0 for never.

    Several API keys of an organization may have the same hash. The key expired in 1, which is past, if any of them is
    revoked; otherwise it expires with the earliest of them.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for (_, organization_id, _), newest in reference.newest.items():
        if newest.key and not reference.is_erased(organization_id):
            expiries = found.setdefault((organization_id, newest.key.hash), [])
            expiries.append(1 if newest.key.revoked else newest.key.expiry)
    return {key: min((expiry for expiry in expiries if expiry), default=0) for key, expiries in found.items()}
