"""Decides which bad records of a batch become dead letters: none of a deleted organization, whose good records are
dropped as well. If the organization is recreated, its records are read again, and the bad ones are parked then.

A bad record of the organization itself is always parked: it may have been meant to recreate the organization.
"""

import logging
from collections.abc import Sequence

from projector.dead_letter import DeadLetter
from projector.line.metrics import PARKED
from projector.reason import kind_of
from projector.redis.store import Store
from schemas import names

_LOGGED = 10
"""Log lines for each checkpoint."""

logger = logging.getLogger(__name__)


async def without_deleted(store: Store, dead_letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Returns the dead letters without those of deleted organizations. Raises Unavailable."""
    deleted = await _deleted_organizations(store, dead_letters)
    return [
        dead_letter
        for dead_letter in dead_letters
        if dead_letter.is_of_organization or dead_letter.organization_id not in deleted
    ]


def report(parked: Sequence[DeadLetter]) -> None:
    """Count and log dead letters that were stored. Very many bad records leave few log lines."""
    for letter in parked:
        PARKED.labels(letter.topic, kind_of(letter.reason)).inc()
    for letter in parked[:_LOGGED]:
        logger.warning(
            "a bad record became a dead letter",
            extra={"record": letter.field, "reason": letter.reason, "accepted": letter.accepted},
        )
    if len(parked) > _LOGGED:
        logger.warning(
            "more bad records became dead letters: `dead-letters list` shows them",
            extra={"dead_letters": len(parked) - _LOGGED},
        )


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
