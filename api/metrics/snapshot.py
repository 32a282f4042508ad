"""A worker's numbers as a file, `<process id>.json`, that the exporter reads."""

import asyncio
import logging
import os
import time
from pathlib import Path

import msgspec

from api.metrics.counters import Counters
from api.redis.generation import LiveGeneration
from api.redis.servers import Servers

EVERY_SECONDS = 1.0
GONE_SECONDS = 5.0

logger = logging.getLogger(__name__)


async def keep(directory: Path, counters: Counters, servers: Servers, generation: LiveGeneration) -> None:
    """Writes them once a second, and a last time when it is cancelled: what was counted stays counted."""
    try:
        while True:
            counters.in_flight = servers.in_flight
            counters.generation = generation.last_known
            counters.ready = generation.current() is not None
            write(directory, counters)
            await asyncio.sleep(EVERY_SECONDS)
    finally:
        write(directory, counters)


def write(directory: Path, counters: Counters) -> None:
    """Replaces the file in one step: a reader finds the old numbers or the new ones. A full disk is logged."""
    path = directory / f"{os.getpid()}.json"
    fresh = path.with_suffix(".new")
    try:
        fresh.write_bytes(msgspec.json.encode(counters))
        fresh.replace(path)
    except OSError:
        logger.exception("the metrics cannot be written")


def read(directory: Path) -> list[Counters]:
    """Those of all workers that ever ran. One that no longer runs has counts, but is not ready."""
    return [_read(path) for path in directory.glob("*.json")]


def _read(path: Path) -> Counters:
    counters = msgspec.json.decode(path.read_bytes(), type=Counters)
    if time.time() - path.stat().st_mtime > GONE_SECONDS:
        counters.in_flight, counters.generation, counters.ready = 0, 0, False
    return counters
