"""A worker's counters as a file, `<process id>.json`, which the exporter reads."""

import asyncio
import logging
import os
import time
from pathlib import Path

import msgspec

from api.metrics.counters import Counters
from api.redis.servers import Servers
from api.redis.serving import Serving

INTERVAL_SECONDS = 1.0
STALE_SECONDS = 5.0
"""The worker of a file that is older than this is no longer running."""

logger = logging.getLogger(__name__)


async def report(directory: Path, counters: Counters, servers: Servers, serving: Serving) -> None:
    """Writes the counters once a second, and a last time when it is cancelled, so that no count is lost."""
    try:
        while True:
            counters.in_flight = servers.in_flight
            counters.generation = serving.generation
            counters.ready = serving.ready
            write(directory, counters)
            await asyncio.sleep(INTERVAL_SECONDS)
    finally:
        write(directory, counters)


def write(directory: Path, counters: Counters) -> None:
    """Replace the file atomically: a reader finds either the old counters or the new ones. A full disk is logged."""
    path = directory / f"{os.getpid()}.json"
    fresh = path.with_suffix(".new")
    try:
        fresh.write_bytes(msgspec.json.encode(counters))
        fresh.replace(path)
    except OSError:
        logger.exception("the metrics cannot be written")


def read(directory: Path) -> list[Counters]:
    """Returns the counters of all workers that ever ran. The gauges of a worker that no longer runs are 0."""
    return [_read(path) for path in directory.glob("*.json")]


def _read(path: Path) -> Counters:
    counters = msgspec.json.decode(path.read_bytes(), type=Counters)
    if time.time() - path.stat().st_mtime > STALE_SECONDS:
        counters.in_flight, counters.generation, counters.ready, counters.projectors = 0, 0, False, None
    return counters
