"""Counts the uses of each key in memory, and writes them to Redis once a minute, never on the path of a request.

The memory is bounded, whatever callers send: refused keys have a small limit of their own (`MAX_REFUSED_KEYS`).
"""

import asyncio
import logging
import time
from itertools import groupby

from msgspec import Struct

from api.redis.links import Links
from api.redis.scripts import UseRow, usage
from api.request import Credentials
from runtime.redis.errors import ErrorReply, Unavailable
from schemas import names

INTERVAL_SECONDS = 60.0
MAX_KEYS = 10_000
"""Maximum number of keys whose counts are not written yet; further keys are not counted."""
MAX_REFUSED_KEYS = 1_000
"""Likewise, keys that were answered with 401."""
EXPIRY_SECONDS = 90 * 24 * 3600
_CHUNK = 50
_LAST_SECONDS = 1.0
_REFUSALS = frozenset((401, 403, 429))

logger = logging.getLogger(__name__)


class Used(Struct):
    """The uses of a key since they were last written to Redis.

    `last` is the time of the last request, on the clock of `time.perf_counter`.
    """

    requests: int = 0
    refusals: int = 0
    last: float = 0.0


class Usage:
    """The counts of one worker. Keys are named as the records of keys in Redis."""

    def __init__(self) -> None:
        self._accepted: dict[bytes, Used] = {}
        self._refused: dict[bytes, Used] = {}
        self._uncounted = 0
        """Requests that were not counted, because too many other keys were used."""

    def count(self, caller: Credentials, status: int, started: float) -> None:
        """Count a response to a request that began at this time, on the clock of `time.perf_counter`."""
        counts, most = (self._refused, MAX_REFUSED_KEYS) if status == 401 else (self._accepted, MAX_KEYS)
        used = counts.get(caller.key_record)
        if used is None:
            if len(counts) >= most:
                self._uncounted += 1
                return
            used = counts[caller.key_record] = Used()
        used.requests += 1
        used.last = started
        if status in _REFUSALS:
            used.refusals += 1

    async def report(self, servers: Links) -> None:
        """Writes the counts once a minute until it is cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            await self.write(servers)

    async def write_last(self, servers: Links) -> None:
        """Write what was counted since the last minute, if that takes no longer than a second."""
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self.write(servers)
        except TimeoutError:
            logger.warning("the use of keys in the last minute was not written")

    async def write(self, servers: Links) -> None:
        """Write all counts. Those that cannot be written now are kept for the next time."""
        found = self._take()
        for owner, group in groupby(sorted(found), names.owner_of_key):
            keys = list(group)
            for start in range(0, len(keys), _CHUNK):
                some = {key: found[key] for key in keys[start : start + _CHUNK]}
                try:
                    await _write(servers, owner, some)
                except ErrorReply as error:
                    logger.warning("Redis refuses to store the use of keys", extra={"error": str(error)})
                except Unavailable:
                    self._keep(some)

    def _take(self) -> dict[bytes, Used]:
        """Returns all counts by key, and sets them to 0. Logs how many requests are missing in them."""
        if self._uncounted:
            logger.warning("too many keys were used to count all of them", extra={"requests": self._uncounted})
            self._uncounted = 0
        found, refused = self._accepted, self._refused
        self._accepted, self._refused = {}, {}
        for key, used in refused.items():
            _add(found, key, used)
        return found

    def _keep(self, some: dict[bytes, Used]) -> None:
        for key, used in some.items():
            if len(self._accepted) < MAX_KEYS:
                _add(self._accepted, key, used)
            else:
                self._uncounted += used.requests


def _add(counts: dict[bytes, Used], key: bytes, used: Used) -> None:
    total = counts.setdefault(key, Used())
    total.requests += used.requests
    total.refusals += used.refusals
    total.last = max(total.last, used.last)


async def _write(servers: Links, owner: bytes, some: dict[bytes, Used]) -> None:
    now = time.time() - time.perf_counter()
    counts = [
        UseRow(names.hash_of_key(key), used.requests, used.refusals, int((now + used.last) * 1000))
        for key, used in some.items()
    ]
    command = usage(uses=names.usage(owner), records=list(some), seconds=EXPIRY_SECONDS, counts=counts)
    await servers.call(names.tag(owner), *command.words(), script=usage)
