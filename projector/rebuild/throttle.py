"""Makes a replay yield to readers: it writes little at once while the API answers requests, and pauses while it is
slow.
"""

import asyncio
import time

from projector.line.pace import FULL, YIELDING, YIELDING_ON_CLUSTER, Pace, slowest
from projector.redis.store import Store

_REFRESH_SECONDS = 0.5
# After 5 seconds without API traffic, run at full rate. (Requests that resume are noticed half a second later.)
_IDLE_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5


class Throttle:
    """The replay pauses while the p99 of the API exceeds `limit`, in seconds; with a limit of 0 it never yields."""

    def __init__(self, store: Store, limit: float) -> None:
        self._store = store
        self._limit = limit
        self._pause = 0.0
        self._answered_at = time.monotonic()
        self._read_at = 0.0

    @property
    def pause(self) -> float:
        """The current pause before each batch, in seconds."""
        return self._pause

    @property
    def yields(self) -> bool:
        """Whether the replay writes small batches now."""
        return self._limit > 0 and time.monotonic() - self._answered_at < _IDLE_SECONDS

    async def pace(self, records: int) -> Pace:  # noqa: ARG002 - required by Pacer
        """Returns how many records to write at once."""
        await self._refresh()
        if not self.yields:
            return FULL
        return YIELDING_ON_CLUSTER if self._store.sharded else YIELDING

    async def wait(self) -> None:
        """Pause before the next batch, if the API is slow."""
        await self._refresh()
        if self._pause:
            await asyncio.sleep(self._pause)

    async def _refresh(self) -> None:
        if self._limit and time.monotonic() - self._read_at > _REFRESH_SECONDS:
            self._read_at = time.monotonic()
            self._adapt(await slowest(self._store))

    def _adapt(self, slowest: float) -> None:
        """Double the pause while the API is too slow, and shorten it by a fifth while it is not."""
        if slowest:
            self._answered_at = time.monotonic()
        if slowest > self._limit:
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        else:
            self._pause = 0.8 * self._pause if self._pause > _FIRST_PAUSE / 2 else 0.0
