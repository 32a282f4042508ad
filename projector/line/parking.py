"""Decides which bad records of a batch become dead letters: none of a deleted organization, whose good records are
dropped as well. If the organization is recreated, its records are read again, and the bad ones are parked then.

A bad record of the organization itself is always parked: it may have been meant to recreate the organization.
"""

from collections.abc import Sequence

from projector.dead_letter import DeadLetter
from projector.redis.store import Store
from schemas import names


async def without_deleted(store: Store, dead_letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Returns the dead letters without those of deleted organizations. Raises Unavailable."""
    deleted = await _deleted_organizations(store, dead_letters)
    return [
        dead_letter
        for dead_letter in dead_letters
        if dead_letter.is_of_organization or dead_letter.organization_id not in deleted
    ]


async def erase_late(store: Store, parked: Sequence[DeadLetter]) -> None:
    """Add a job that erases these dead letters if their organization was deleted while they were being stored.

    The erasure of the organization may have ended before. Raises Unavailable.
    """
    deleted = await _deleted_organizations(store, parked)
    if deleted:
        await store.add_jobs(f"erase {organization_id}" for organization_id in sorted(deleted))


async def _deleted_organizations(store: Store, dead_letters: Sequence[DeadLetter]) -> set[str]:
    ids = sorted({found for dead_letter in dead_letters if (found := dead_letter.organization_id)})
    if not ids:
        return set()
    states = await store.ask([(b"GETRANGE", names.organization(found), 0, 0) for found in ids])
    return {found for found, state in zip(ids, states, strict=True) if state not in (b"", b"L")}
