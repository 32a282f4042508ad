"""Deletes dead letters that nobody needs any more: a newer event of the same entity was applied since.

The stored value of an entity names the newest event that was applied, so the dead letters are compared with these
values, beside the lines. Nothing is read from Kafka, and the lines do nothing for it.
"""

import logging
import time

from projector.dead_letter import DeadLetter
from projector.kafka.client import topic
from projector.ledger import copies
from projector.redis.store import Store
from projector.stop import Stop
from projector.upkeep import redrive
from projector.upkeep.repeating import repeat
from schemas import names
from schemas.control import GenerationId
from schemas.fields import UUID_AS_0, are_lower_uuids
from schemas.layouts import HEAD, Head, read_head
from schemas.resources import API_KEY, KINDS, ORGANIZATION, Kind, Resource
from schemas.settings import ProjectorSettings

_PAUSE_SECONDS = 10.0
_SHARE = 0.02
"""The share of the time that a look at very many dead letters may take."""

logger = logging.getLogger(__name__)


class Superseded:
    """Runs once in every projector, beside its lines."""

    def __init__(self, settings: ProjectorSettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._seconds = 0.0

    async def run(self, stop: Stop) -> None:
        """Repeat until `stop` is set."""
        await repeat(
            "the look for superseded dead letters",
            self._turn,
            stop,
            lambda: max(_PAUSE_SECONDS, self._seconds / _SHARE),
        )

    async def _turn(self) -> None:
        began = time.monotonic()
        deleted = await clear(self._store, self._settings)
        self._seconds = time.monotonic() - began
        if deleted:
            logger.info("dead letters deleted, because newer events were applied", extra={"dead_letters": deleted})


async def clear(store: Store, settings: ProjectorSettings) -> int:
    """Delete the dead letters whose entity shows a newer event. Returns how many. Raises Unavailable."""
    record = await copies.read(store)
    if record is None:
        return 0
    kinds = {topic(settings, kind): kind for kind in KINDS}
    deleted = 0
    async for dead_letters in redrive.in_slices(store):
        waiting = [letter for letter in dead_letters if not letter.accepted]  # others stay until they are dropped
        found = [(letter, name) for letter in waiting if (name := _value_of(letter, kinds, record.state.live))]
        if not found:
            continue
        values = await store.ask([(b"GETRANGE", name, 0, HEAD - 1) for _, name in found])
        over = [letter for (letter, _), value in zip(found, values, strict=True) if _is_superseded(letter, value)]
        deleted += await redrive.delete(store, over)
    return deleted


def _value_of(letter: DeadLetter, kinds: dict[str, Kind], generation: GenerationId) -> bytes | None:
    """Returns the name of the value of a dead letter's entity; None if its message key names none."""
    kind = kinds.get(letter.topic)
    organization_id, _, id_ = letter.key.partition(":")
    ids = [organization_id] if kind is ORGANIZATION else [organization_id, id_]
    if kind is None or any(len(each) != len(UUID_AS_0) for each in ids) or not are_lower_uuids(ids):
        return None
    owner = names.organization(organization_id)
    if isinstance(kind, Resource):
        return names.document(kind, owner, generation, id_)
    return names.api_key_entity(owner, id_) if kind is API_KEY else owner


def _is_superseded(letter: DeadLetter, value: bytes) -> bool:
    return len(value) >= HEAD and is_superseded(letter, read_head(value))


def is_superseded(letter: DeadLetter, head: Head) -> bool:
    """Returns whether the event that a value shows is newer than the bad record of a dead letter.

    Events of one entity are in one partition, in order, unless partitions were added. A newer event has a higher
    version; a record that is corrected and published again may have the same one. A bad record may name no version.
    """
    is_later = head.partition == letter.partition and head.offset > letter.offset
    if letter.version is None:
        return is_later
    return head.version > letter.version or (head.version == letter.version and is_later)
