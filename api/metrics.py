"""The counters of a worker: plain integers, so that counting takes a request almost no time.

Workers are processes, and only one process can listen on the metrics port. Each worker therefore writes its counters to
a file once a second, `<process id>.json`, and the exporter in the main process adds them up.
"""

import asyncio
import logging
import os
import socket
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

import msgspec
from msgspec import Struct, field

from api.redis.links import Links
from api.redis.serving import Serving
from api.waiting import Waiting
from runtime.redis.errors import ErrorKind, Unavailable
from schemas import names
from schemas.heartbeat import APART_MS, SILENT_MS, Clocks, Freshness
from schemas.metrics import LATENCY_BUCKETS
from schemas.resources import RESOURCES

SNAPSHOT_SECONDS = 1.0
STALE_SECONDS = 5.0
"""The worker of a file that is older than this is no longer running."""
READ_SECONDS = 3.0
RENEWED_SECONDS = 20.0
UNWRITTEN_SECONDS = 60.0
_LATENCY_SECONDS = 0.5
_LATENCY_EXPIRY_SECONDS = 60
_BEYOND_BUCKETS_SECONDS = 2 * LATENCY_BUCKETS[-1]

logger = logging.getLogger(__name__)


class RouteCounters(Struct):
    """The responses of one route."""

    statuses: dict[int, int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS) + 1))
    """Responses by duration: bucket i counts those up to LATENCY_BUCKETS[i], the last bucket counts all slower ones."""
    seconds: float = 0.0

    def count(self, status: int, seconds: float) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1
        self.seconds += seconds


class Counters(Struct):
    """Everything that one worker counts. The gauges (`in_flight`, `waiting`, `generation`, `ready`, `unready`,
    `rebuilding`) are set by each snapshot, and `projectors`, `measured_at`, `complete_until` and `problems` by
    `read_heartbeats`.
    """

    routes: dict[str, RouteCounters] = field(default_factory=dict)
    redis_errors: dict[ErrorKind, int] = field(default_factory=lambda: dict.fromkeys(get_args(ErrorKind), 0))
    limiter_failures: int = 0
    """Requests whose charge Redis refused to write. The worker's local limiter decides whether they are served."""
    limiter_refusals: int = 0
    """Those of them that the local limiter refused."""
    in_flight: int = 0
    waiting: int = 0
    generation: int = 0
    ready: bool = False
    unready: str = ""
    """The error that keeps the worker from being ready; empty if it is ready."""
    rebuilding: bool = False
    """It is only that Redis does not hold everything yet."""
    projectors: int | None = None
    """Those with a recent heartbeat; None if Redis could not be read."""
    measured_at: int = 0
    complete_until: int = 0
    """As in the newest heartbeat that this worker has ever read; 0 if there was none."""
    problems: list[str] = field(default_factory=list)
    """Names of `schemas.metrics.API_PROBLEM_LABELS`."""

    def route(self, name: str) -> RouteCounters:
        return self.routes.setdefault(name, RouteCounters())


async def report_counters(
    directory: Path, counters: Counters, servers: Links, serving: Serving, waiting: Waiting
) -> None:
    """Writes the counters once a second, and a last time when it is cancelled, so that no count is lost."""
    try:
        while True:
            counters.in_flight = sum(link.in_flight for link in servers.links)
            counters.waiting = waiting.total
            counters.generation = serving.generation
            counters.ready, counters.unready = serving.ready, serving.unready
            counters.rebuilding = serving.rebuilding
            write_snapshot(directory, counters)
            await asyncio.sleep(SNAPSHOT_SECONDS)
    finally:
        write_snapshot(directory, counters)


def write_snapshot(directory: Path, counters: Counters) -> None:
    """Replace the file atomically: a reader finds either the old counters or the new ones. A full disk is logged."""
    path = directory / f"{os.getpid()}.json"
    fresh = path.with_suffix(".new")
    try:
        fresh.write_bytes(msgspec.json.encode(counters))
        fresh.replace(path)
    except OSError:
        logger.exception("the metrics cannot be written")


def read_snapshots(directory: Path) -> list[Counters]:
    """Returns the counters of all workers that ever ran. The gauges of a worker that no longer runs are 0."""
    return [_read(path) for path in directory.glob("*.json")]


def _read(path: Path) -> Counters:
    counters = msgspec.json.decode(path.read_bytes(), type=Counters)
    if abs(time.time() - path.stat().st_mtime) > STALE_SECONDS:  # one from later than now: the clock was set back
        counters.in_flight, counters.waiting, counters.generation = 0, 0, 0
        counters.ready, counters.unready, counters.projectors = False, "", None
        counters.problems = []
    return counters


async def report_latency(servers: Links, serving: Serving, counters: Counters) -> None:
    """Writes the response times of documents into Redis, so that the projector can yield to requests, twice a second
    until it is cancelled. A report that cannot be written is skipped.

    The hash `lv3:latency` has one field per worker: "<p99 of the last half second in microseconds> <time in ms>".
    `projector/line/pace.py` reads it. While nothing is served, nothing is written: callers that get 503 wait for the
    projector, which must not yield then.
    """
    worker = f"{socket.gethostname()}:{os.getpid()}".encode()
    before = _buckets(counters)
    while True:
        await asyncio.sleep(_LATENCY_SECONDS)
        now = _buckets(counters)
        slow = p99(later - earlier for later, earlier in zip(now, before, strict=True))
        before = now
        if not serving.ready:
            continue
        with suppress(Unavailable):
            await servers.call(
                names.LATENCY, b"HSET", names.LATENCY, worker, b"%d %d" % (slow * 1e6, time.time() * 1000)
            )
            await servers.call(names.LATENCY, b"EXPIRE", names.LATENCY, _LATENCY_EXPIRY_SECONDS)


def p99(buckets: Iterable[int]) -> float:
    """Returns the upper bound, in seconds, of the bucket that holds the 99th percentile; 0 if there were no responses.

    `buckets` is as in RouteCounters.
    """
    counts = list(buckets)
    allowed = sum(counts) // 100
    for bound, count in zip((_BEYOND_BUCKETS_SECONDS, *reversed(LATENCY_BUCKETS)), reversed(counts), strict=True):
        allowed -= count
        if allowed < 0:
            return bound
    return 0.0


def _buckets(counters: Counters) -> list[int]:
    """Returns the responses of all documents together, by duration."""
    return [sum(counts) for counts in zip(*(counters.route(it.noun).buckets for it in RESOURCES), strict=True)]


class Silence:
    """Measures for how long no projector has written to the Redis that this worker reads. It compares heartbeats, and
    not the times in them: clocks may be wrong.

    After a promotion by hand, the address may lead to another Redis while the former one still runs. Existing
    connections stay at the former one, where nothing is written any more. So other connections are opened after
    `RENEWED_SECONDS`. Silence for `UNWRITTEN_SECONDS` is a problem, but the worker still serves what there is.
    """

    def __init__(self, clock: Callable[[], float], renew: Callable[[], Awaitable[None]]) -> None:
        self._clock = clock
        self._renew = renew
        self._heartbeats: Mapping[bytes, bytes] | None = None
        self._heard_at = self._renewed_at = clock()

    def forget(self) -> None:
        """Begin again with the next heartbeats: Redis cannot be read."""
        self._heartbeats = None

    async def hear(self, heartbeats: Mapping[bytes, bytes]) -> bool:
        """Returns whether it has been silent for longer than `UNWRITTEN_SECONDS`, which is a problem."""
        now, before, self._heartbeats = self._clock(), self._heartbeats, heartbeats
        if before is None or any(before.get(writer) != heartbeat for writer, heartbeat in heartbeats.items()):
            self._heard_at = self._renewed_at = now
        elif now - self._renewed_at > RENEWED_SECONDS:
            self._renewed_at = now
            logger.warning("no projector writes to this Redis: other connections are opened")
            with suppress(Unavailable):
                await self._renew()
        return now - self._heard_at > UNWRITTEN_SECONDS


async def read_heartbeats(servers: Links, counters: Counters) -> None:
    """Reads the heartbeats of the projectors every three seconds until it is cancelled. They say how old the served
    data is.

    A projector that has died exports nothing. Its last heartbeat still says until when everything was visible.
    """
    was_read = True
    silence = Silence(time.monotonic, servers.renew)
    await servers.first_attempt()  # otherwise every start would warn that there is no connection
    while True:
        try:
            before = time.time()
            seconds, microseconds = await servers.call(names.HOME, b"TIME")
            now, after = int(seconds) * 1000 + int(microseconds) // 1000, time.time()
            stored = await servers.call(names.HOME, b"HGETALL", names.WRITERS)
            _note(counters, now, stored[1::2])
            found = {
                "not_written": await silence.hear(_of_projectors(stored)),
                "clock_differs": Clocks.read(int(before * 1000), now, int(after * 1000)).differ,
            }
            counters.problems = [name for name, is_problem in found.items() if is_problem]
            was_read = True
        except (Unavailable, ValueError) as error:  # a ValueError: a heartbeat that this program cannot read
            if was_read:  # once per outage
                logger.warning("the heartbeats of the projectors cannot be read", extra={"error": str(error)})
            counters.projectors, was_read = None, False
            counters.problems = []
            silence.forget()
        await asyncio.sleep(READ_SECONDS)


def _of_projectors(stored: Sequence[bytes]) -> dict[bytes, bytes]:
    """Returns the heartbeats of projectors, from names and values in turn. Raises ValueError."""
    writers = zip(stored[::2], stored[1::2], strict=True)
    return {
        writer: value
        for writer, value in writers
        if msgspec.json.decode(value.partition(b" ")[2], type=Freshness).role == "run"
    }


def _note(counters: Counters, now: int, heartbeats: Sequence[bytes]) -> None:
    """Note what the heartbeats say at this time, in milliseconds since 1970. Raises ValueError."""
    alive = 0
    if counters.measured_at > now + APART_MS:  # the clock was set back
        counters.measured_at, counters.complete_until = 0, 0
    for value in heartbeats:
        at, _, text = value.partition(b" ")
        heartbeat = msgspec.json.decode(text, type=Freshness)
        alive += heartbeat.role == "run" and abs(now - int(at)) < SILENT_MS
        # The newest one, not the best: after Redis was emptied, less is visible than before. One from later than now
        # comes from a wrong clock.
        if counters.measured_at < heartbeat.measured_at <= now + APART_MS:
            counters.measured_at, counters.complete_until = heartbeat.measured_at, heartbeat.complete_until
    counters.projectors = alive
