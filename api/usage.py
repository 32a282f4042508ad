"""How often each key is used: counted in memory, and written to Redis once a minute, never on the path of a request.

The memory is bounded, whatever callers send: a key that was never accepted has a place only among a few others.
"""

import asyncio
import logging
import time
from hashlib import sha1
from importlib import resources

from msgspec import Struct

from api.errors import ErrorReply, Unavailable
from api.redis.servers import Servers
from schemas import names

INTERVAL_SECONDS = 60.0
MAX_KEYS = 10_000
"""Keys that are counted between two writes; further ones are not counted."""
MAX_REFUSED_KEYS = 1_000
"""Likewise, keys that got no other answer than 401."""
EXPIRY_SECONDS = 90 * 24 * 3600
_CHUNK = 50
_LAST_SECONDS = 1.0
_REFUSALS = frozenset((401, 403, 429))
SCRIPT = resources.files("api.redis").joinpath("lua", "usage.lua").read_bytes()
_SHA = sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()

logger = logging.getLogger(__name__)


class Used(Struct):
    """The use of one key since the last write. `last` is in seconds since 1970."""

    requests: int = 0
    refusals: int = 0
    last: float = 0.0


class Usage:
    """The counts of one worker, by the name of the record of a key."""

    def __init__(self) -> None:
        self._used: dict[bytes, Used] = {}
        self._refused: dict[bytes, Used] = {}

    def count(self, key: bytes, status: int) -> None:
        """Count a response to a request with this key."""
        used = self._used.get(key)
        if used is None:
            used = self._new(key, status)
            if used is None:
                return
        used.requests += 1
        used.last = time.time()
        if status in _REFUSALS:
            used.refusals += 1

    async def report(self, servers: Servers) -> None:
        """Writes the counts once a minute until it is cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            await self.write(servers)

    async def write_last(self, servers: Servers) -> None:
        """Write what was counted since the last minute, if that takes no longer than a second."""
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self.write(servers)
        except TimeoutError:
            logger.warning("the use of keys in the last minute was not written")

    async def write(self, servers: Servers) -> None:
        """Write all counts. Those that cannot be written now are kept for the next time."""
        found = self._refused | self._used
        self._used, self._refused = {}, {}
        by_organization: dict[bytes, list[bytes]] = {}
        for key in found:
            by_organization.setdefault(names.owner_of_key(key), []).append(key)
        for owner, keys in by_organization.items():
            for start in range(0, len(keys), _CHUNK):
                some = {key: found[key] for key in keys[start : start + _CHUNK]}
                try:
                    await _write(servers, owner, some)
                except ErrorReply as error:
                    logger.warning("Redis refuses to store the use of keys", extra={"error": str(error)})
                except Unavailable:
                    self._keep(some)

    def _new(self, key: bytes, status: int) -> Used | None:
        refused = self._refused.pop(key, None) if status != 401 else self._refused.get(key)
        table, most = (self._refused, MAX_REFUSED_KEYS) if status == 401 else (self._used, MAX_KEYS)
        if refused is not None and table is self._refused:
            return refused
        if len(table) >= most:
            return None
        table[key] = refused or Used()
        return table[key]

    def _keep(self, some: dict[bytes, Used]) -> None:
        for key, before in some.items():
            if len(self._used) >= MAX_KEYS and key not in self._used:
                return
            used = self._used.setdefault(key, Used())
            used.requests += before.requests
            used.refusals += before.refusals
            used.last = max(used.last, before.last)


async def _write(servers: Servers, owner: bytes, some: dict[bytes, Used]) -> None:
    arguments = [b"%d" % EXPIRY_SECONDS]
    for key, used in some.items():
        arguments += (
            names.hash_of_key(key).encode(),
            b"%d" % used.requests,
            b"%d" % used.refusals,
            b"%d" % (used.last * 1000),
        )
    command = (b"EVALSHA", _SHA, 1 + len(some), names.usage(owner), *some, *arguments)
    await servers.call(names.tag(owner), *command, script=SCRIPT)
