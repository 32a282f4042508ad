"""How old what is served is, from the heartbeats of the projectors in Redis.

A projector that has died exports nothing. Its last heartbeat still says until when everything was visible.
"""

import logging
import time
from collections.abc import Sequence

import msgspec

from api.errors import Unavailable
from api.metrics.counters import Counters
from api.redis.servers import Servers
from schemas import names
from schemas.heartbeat import SILENT_MS, Freshness

READ_SECONDS = 3.0

logger = logging.getLogger(__name__)


class Projectors:
    """Reads the heartbeats into the counters of this worker, every few seconds."""

    def __init__(self, servers: Servers, counters: Counters) -> None:
        self._servers = servers
        self._counters = counters
        self._next = 0.0
        self._warned = False

    async def look(self) -> None:
        """Read the heartbeats if it is time to."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + READ_SECONDS
        try:
            seconds, microseconds = await self._servers.call(names.HOME, b"TIME")
            stored = await self._servers.call(names.HOME, b"HGETALL", names.WRITERS)
            self._note(int(seconds) * 1000 + int(microseconds) // 1000, stored[1::2])
        except (Unavailable, ValueError) as error:  # a ValueError: a heartbeat that this program cannot read
            if self._counters.projectors is not None or not self._warned:
                logger.warning("the heartbeats of the projectors cannot be read", extra={"error": str(error)})
            self._counters.projectors, self._warned = None, True

    def _note(self, now: int, stored: Sequence[bytes]) -> None:
        alive = 0
        for value in stored:
            at, _, text = value.partition(b" ")
            heartbeat = msgspec.json.decode(text, type=Freshness)
            alive += heartbeat.role == "run" and now - int(at) < SILENT_MS
            # The newest one, not the best: after Redis was emptied, less is visible than before.
            if heartbeat.measured_at > self._counters.measured_at:
                self._counters.measured_at = heartbeat.measured_at
                self._counters.complete_until = heartbeat.complete_until
        self._counters.projectors = alive
