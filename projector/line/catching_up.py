"""Makes a live line yield to readers while it works through a backlog, such as that of an outage."""

import time
from collections.abc import Callable

from projector.line import readers
from projector.line.pace import FULL, YIELDING, Pace
from projector.redis.store import Store
from schemas.settings import ProjectorSettings

_BACKLOG_RECORDS = 1000
"""So many records in one batch have waited. Without a backlog, a batch has those of a few milliseconds."""
_PATIENCE_SECONDS = 60.0


class CatchingUp:
    """The `Pacer` of a live line: it writes little at once while it is behind and the API answers requests.

    If it is still behind after a minute, it writes at full speed until it has caught up: perhaps more is published than
    it can write while it yields, or the backlog is so large that fresh documents matter more. It never pauses, and does
    not yield on a cluster, whose masters share each slice.
    """

    def __init__(self, store: Store, settings: ProjectorSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._backlog = min(_BACKLOG_RECORDS, settings.batch_records)
        self._clock = clock
        self._behind_since: float | None = None

    async def pace(self, records: int) -> Pace:
        if records < self._backlog or self._store.sharded:
            self._behind_since = None
            return FULL
        now = self._clock()
        if self._behind_since is None:
            self._behind_since = now
        if now - self._behind_since > _PATIENCE_SECONDS:
            return FULL
        return YIELDING if await readers.slowest(self._store) else FULL

    async def wait(self) -> None:
        return
