"""Stores the response times of this worker in Redis, so that the projector can yield to requests.

The hash `lv3:latency` has one field per worker: "<p99 of the last half second in microseconds> <time in ms>".
`projector/line/pace.py` reads it.
"""

import asyncio
import os
import socket
import time
from collections.abc import Collection, Iterable
from contextlib import suppress

from api.errors import Unavailable
from api.metrics.counters import BUCKETS_SECONDS, Counters
from api.redis.servers import Servers
from api.redis.serving import Serving
from schemas import names

_INTERVAL_SECONDS = 0.5
_EXPIRY_SECONDS = 60
_BEYOND_BUCKETS_SECONDS = 2 * BUCKETS_SECONDS[-1]


async def report(servers: Servers, serving: Serving, counters: Counters, routes: Collection[str]) -> None:
    """Writes the latency twice a second until it is cancelled. A report that cannot be written is skipped.

    While nothing is served, it writes none: who gets 503 waits for the projector, which must not yield then.
    """
    worker = f"{socket.gethostname()}:{os.getpid()}".encode()
    before = _buckets(counters, routes)
    while True:
        await asyncio.sleep(_INTERVAL_SECONDS)
        now = _buckets(counters, routes)
        slow = p99(later - earlier for later, earlier in zip(now, before, strict=True))
        before = now
        if not serving.ready:
            continue
        with suppress(Unavailable):
            await servers.call(
                names.LATENCY, b"HSET", names.LATENCY, worker, b"%d %d" % (slow * 1e6, time.time() * 1000)
            )
            await servers.call(names.LATENCY, b"EXPIRE", names.LATENCY, _EXPIRY_SECONDS)


def p99(buckets: Iterable[int]) -> float:
    """Returns the upper bound, in seconds, of the bucket that holds the 99th percentile; 0 if there were no responses.

    `buckets` is as in RouteCounters.
    """
    counts = list(buckets)
    allowed = sum(counts) // 100
    for bound, count in zip((_BEYOND_BUCKETS_SECONDS, *reversed(BUCKETS_SECONDS)), reversed(counts), strict=True):
        allowed -= count
        if allowed < 0:
            return bound
    return 0.0


def _buckets(counters: Counters, routes: Collection[str]) -> list[int]:
    """Returns the responses of all these routes together, by duration."""
    return [sum(counts) for counts in zip(*(counters.route(route).buckets for route in routes), strict=True)]
