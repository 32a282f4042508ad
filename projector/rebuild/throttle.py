"""Makes a replay yield: it writes little at once while the API answers requests, and waits while its answers are slow.

Each API worker writes into the hash `lv:latency`, every half second, "<p99 of its calls in microseconds> <time in ms>".
"""

import asyncio
import time

from projector.errors import Unavailable
from projector.line.pace import NARROW, WIDE, Burst
from projector.redis.store import Store
from schemas import names

_LOOK_SECONDS = 0.5
_FRESH_MS = 3000
# Without an answer for so long, nobody is there to yield to; a caller may come back before we hear of it.
_ALONE_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5


class Throttle:
    """`limit` is the latency, in seconds, above which the replay waits; with 0 it yields to nobody."""

    def __init__(self, store: Store, limit: float) -> None:
        self._store = store
        self._limit = limit
        self._pause = 0.0
        self._answered_at = time.monotonic()
        self._looked_at = 0.0

    @property
    def pause(self) -> float:
        """Seconds that each slice waits now."""
        return self._pause

    @property
    def yields(self) -> bool:
        """Whether it writes little at once now."""
        return self._limit > 0 and time.monotonic() - self._answered_at < _ALONE_SECONDS

    async def burst(self) -> Burst:
        """How much to write at once."""
        await self._look()
        return NARROW if self.yields else WIDE

    async def wait(self) -> None:
        """Wait as long as is needed before the next slice."""
        await self._look()
        if self._pause:
            await asyncio.sleep(self._pause)

    async def _look(self) -> None:
        if self._limit and time.monotonic() - self._looked_at > _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._adapt(await self._slowest())

    def _adapt(self, slowest: float) -> None:
        """Twice the pause while it is too slow, a fifth less while it is not."""
        if slowest:
            self._answered_at = time.monotonic()
        if slowest > self._limit:
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        else:
            self._pause = 0.8 * self._pause if self._pause > _FIRST_PAUSE / 2 else 0.0

    async def _slowest(self) -> float:
        """The slowest worker's latency in seconds; 0 where no API answers anything."""
        try:
            found = await self._store.ask_one(b"HVALS", names.LATENCY)
        except Unavailable:
            return 0.0  # the write that follows says so itself
        now = time.time() * 1000
        reports = [[int(number) for number in value.split()] for value in found]
        return max((latency / 1e6 for latency, at in reports if now - at < _FRESH_MS), default=0.0)
