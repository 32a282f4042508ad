"""How many writes a line keeps in flight. Redis is single-threaded, so API reads queue behind them."""

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from projector.errors import Unavailable
from projector.redis.store import Store
from schemas import names
from schemas.settings import ProjectorSettings

_FRESH_MS = 3000
_BACKLOG_RECORDS = 1000
"""So many records in one batch have waited. Without a backlog, a batch has those of a few milliseconds."""
_PATIENCE_SECONDS = 60.0


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


class Pacer(Protocol):
    """Decides how fast a line writes. Its methods never raise."""

    async def pace(self, records: int) -> Pace:
        """Returns the pace of the next batch, which has so many records."""

    async def wait(self) -> None:
        """Wait as long as necessary before the next slice."""


class FullSpeed:
    """The `Pacer` of a line that never yields to readers."""

    async def pace(self, records: int) -> Pace:  # noqa: ARG002 - required by Pacer
        return FULL

    async def wait(self) -> None:
        return


async def slowest(store: Store) -> float:
    """Returns the p99 of the slowest API worker in seconds; 0 if no worker answers requests. Never raises.

    Every half second each API worker that is ready stores "<p99 of its response times in microseconds> <time in ms>" in
    the hash `lv3:latency` (`api/metrics/latency.py`).
    """
    now = time.time() * 1000
    try:
        values = await store.ask_one(b"HVALS", names.LATENCY)
        reports = [[int(number) for number in value.split()] for value in values]
        return max((latency / 1e6 for latency, at in reports if now - at < _FRESH_MS), default=0.0)
    except (Unavailable, ValueError):
        return 0.0  # if Redis is not available, the next write will report it


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
        return YIELDING if await slowest(self._store) else FULL

    async def wait(self) -> None:
        return
