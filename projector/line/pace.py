"""Limits how fast a line writes. Redis is single-threaded, so API reads queue behind what the line has in flight."""

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from projector.errors import Unavailable
from projector.redis.store import Store
from schemas import names
from schemas.settings import ProjectorSettings

_BACKLOG_RECORDS = 1000
"""A poll that returns this many records meets a backlog. Otherwise it returns those of a few milliseconds."""
_PATIENCE_SECONDS = 60.0
# A replay runs at full rate after 5 seconds without API traffic. Requests that resume are noticed half a second later.
_IDLE_SECONDS, _REFRESH_SECONDS = 5.0, 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
_FRESH_MS = 3000


class Pace(NamedTuple):
    """Records per slice, slices in flight at the same time, and maximum documents per script call."""

    slice_records: int
    slices_in_flight: int
    max_documents: int


# Decoding shares the event loop with Kafka's heartbeat and with the other line, so slices are not larger. Several are
# in flight: with one only, Redis and the projector would take turns waiting for each other.
FULL = Pace(slice_records=200, slices_in_flight=3, max_documents=20)
"""The pace with the highest throughput."""
YIELDING = Pace(slice_records=6, slices_in_flight=1, max_documents=3)
"""Occupies Redis for about 0.15 ms, less than a reader's own round trip. Has a third to a half of the throughput."""
YIELDING_ON_CLUSTER = Pace(slice_records=15, slices_in_flight=1, max_documents=5)
"""The same for a cluster, whose masters share each slice, and where a slice takes longer."""


class Pacer:
    """Makes a line yield to readers: it writes small slices while the API answers requests. Its methods never raise.

    It yields for polls of `backlog` records or more, for up to `patience` seconds of such polls in a row, and until the
    API has answered no request for `idle` seconds. While the p99 of the API exceeds `limit` seconds, it also pauses
    before each slice.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        backlog: int = 0,
        patience: float = inf,
        idle: float = 0.0,
        limit: float = inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a store it never yields."""
        self._store = store
        self._backlog = backlog
        self._patience = patience
        self._idle = idle
        self._limit = limit
        self._clock = clock
        self._behind_since: float | None = None
        self._read_at = -inf
        self._answers = False
        self._answered_at = clock()
        self.pause = 0.0
        """The present pause before each slice, in seconds."""

    @classmethod
    def of_live_line(
        cls, store: Store, settings: ProjectorSettings, clock: Callable[[], float] = time.monotonic
    ) -> "Pacer":
        """Returns the pacer of the live line for documents: it yields while it works through a backlog.

        If the line is still behind after a minute, it writes at full speed until it has caught up: perhaps more is
        published than it can write while it yields, or the backlog is so large that fresh documents matter more. It
        never pauses, and does not yield on a cluster, whose masters share each slice.
        """
        if store.sharded:
            return cls()
        backlog = min(_BACKLOG_RECORDS, settings.batch_records)
        return cls(store, backlog=backlog, patience=_PATIENCE_SECONDS, clock=clock)

    @classmethod
    def of_replay(cls, store: Store, limit: float) -> "Pacer":
        """Returns the pacer of a replay, which has time. With a limit of 0 it never yields."""
        return cls(store, idle=_IDLE_SECONDS, limit=limit) if limit else cls()

    @property
    def yields(self) -> bool:
        """True if the API answers requests, or did so within `idle` seconds, according to the last reading."""
        return self._store is not None and (self._answers or self._clock() - self._answered_at < self._idle)

    async def pace(self, records: int) -> Pace:
        """Returns the pace for a poll that has returned this number of records."""
        if self._store is None or records < self._backlog:
            self._behind_since = None
            return FULL
        now = self._clock()
        if self._behind_since is None:
            self._behind_since = now
        await self._refresh()
        if now - self._behind_since > self._patience or not self.yields:
            return FULL
        return YIELDING_ON_CLUSTER if self._store.sharded else YIELDING

    async def wait(self) -> None:
        """Pause before the next slice, if the API is slow."""
        if self._limit < inf:
            await self._refresh()
        if self.pause:
            await asyncio.sleep(self.pause)

    async def _refresh(self) -> None:
        now = self._clock()
        if self._store and now - self._read_at > _REFRESH_SECONDS:
            self._read_at = now
            self._adapt(await slowest(self._store))

    def _adapt(self, slowest: float) -> None:
        """Double the pause while the API is too slow, and shorten it by a fifth while it is not."""
        self._answers = slowest > 0
        if self._answers:
            self._answered_at = self._clock()
        if slowest > self._limit:
            self.pause = min(max(2 * self.pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        else:
            self.pause = 0.8 * self.pause if self.pause > _FIRST_PAUSE / 2 else 0.0


async def slowest(store: Store) -> float:
    """Returns the p99 of the slowest API worker in seconds; 0 if no worker answers requests.

    Every half second each API worker that is ready stores "<p99 of its response times in microseconds> <time in ms>" in
    the hash `lv3:latency` (`api/metrics.py`).
    """
    now = time.time() * 1000
    try:
        values = await store.ask_one(b"HVALS", names.LATENCY)
        reports = [[int(number) for number in value.split()] for value in values]
        return max((latency / 1e6 for latency, at in reports if now - at < _FRESH_MS), default=0.0)
    except (Unavailable, ValueError):
        return 0.0  # if Redis is not available, the next write will report it
