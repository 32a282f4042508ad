"""Notices keys that Redis has evicted: the break `evicted`.

Redis counts them, from 0 after each start. The count that was noted last is stored beside each copy of the control
record (`projector/redis/lua/note_evictions.lua`): so they are noticed whenever a projector looks, also after the policy
was corrected. The projector that has the duty looks (`projector/upkeep/duty.py`).
"""

import logging
from collections.abc import Mapping

from projector.ledger import breaks
from projector.ledger.control import ControlRecord
from projector.redis.scripts import note_evictions
from projector.redis.store import Store
from schemas import names

_AGAIN_SECONDS = 10.0
"""The shortest time between two notes, while a server evicts all the time: at each note, lines open new sessions."""

logger = logging.getLogger(__name__)


class Evictions:
    """Notices evicted keys, and remembers what was noted last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._noted: dict[bytes, str] = {}

    async def look(self, record: ControlRecord) -> None:
        """Note the break if any server has evicted keys since the last look of a projector. Raises Unavailable."""
        found = await since_noted(self._store, record, self._noted)
        self._noted = {}
        if not found or any(it.kind == "evicted" and it.age < _AGAIN_SECONDS for it in record.state.breaks):
            return
        if await breaks.note(self._store, record, [breaks.new_break(record, "evicted", "")]):
            self._noted = found
            logger.error("Redis has evicted keys: projectors compare all topics with it", extra={"problem": "evicted"})


async def since_noted(store: Store, record: ControlRecord, noted: Mapping[bytes, str]) -> dict[bytes, str]:
    """Returns, by copy, the run and the count of each server that has evicted keys since its stored count. `noted` has
    what this function has returned last, if its break was noted. Raises Unavailable.
    """
    commands = [
        note_evictions(evictions=names.copy(names.EVICTIONS, tag), noted=noted.get(tag, "")) for tag in record.copies
    ]
    replies = zip(record.copies, await store.run(commands), strict=True)
    return {tag: reply.decode() for tag, reply in replies if reply}
