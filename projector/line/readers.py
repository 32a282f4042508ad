"""What the API says about its readers: how long they wait for responses.

Every half second each API worker that is ready stores "<p99 of its response times in microseconds> <time in ms>" in the
hash `lv3:latency` (`api/metrics.py`).
"""

import time

from projector.errors import Unavailable
from projector.redis.store import Store
from schemas import names

_FRESH_MS = 3000


async def slowest(store: Store) -> float:
    """Returns the p99 of the slowest API worker in seconds; 0 if no worker answers requests. Never raises."""
    now = time.time() * 1000
    try:
        values = await store.ask_one(b"HVALS", names.LATENCY)
        reports = [[int(number) for number in value.split()] for value in values]
        return max((latency / 1e6 for latency, at in reports if now - at < _FRESH_MS), default=0.0)
    except (Unavailable, ValueError):
        return 0.0  # if Redis is not available, the next write will report it
