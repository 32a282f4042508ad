"""The lock of a job, in the slot of its organization: only its holder may mark the job as done.

It expires if its holder dies or is suspended, and it is gone if Redis was emptied. In both cases the job runs again.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from os import getpid
from secrets import token_hex
from socket import gethostname

import msgspec

from projector.errors import Unavailable
from projector.redis.scripts import expire_lock
from projector.redis.store import Store
from projector.stop import Stop

# Short and renewed, so that a projector that died, or a lock that was restored with an old state of Redis, delays a job
# only briefly.
_SECONDS = 6


class Lock(msgspec.Struct, frozen=True):
    """A lock that this process has taken. `holder` tells it from all others."""

    key: bytes
    holder: bytes
    replication_epoch: int
    """That of the store when the lock was taken: writes from before a restart or failover of Redis may be missing."""


@asynccontextmanager
async def locked(store: Store, key: bytes) -> AsyncIterator[Lock | None]:
    """Hold the lock of this name until the block ends. Yields None if another process holds it. Raises Unavailable."""
    holder = f"{gethostname()}:{getpid()}:{token_hex(8)}".encode()
    if not await store.ask_one(b"SET", key, holder, b"NX", b"EX", _SECONDS):
        yield None
        return
    lock, ended = Lock(key, holder, store.replication_epoch), Stop()
    renewing = asyncio.create_task(_renew(store, lock, ended))
    try:
        yield lock
    finally:
        # It is not cancelled: asyncio.wait_for, with which redis-py sends, may swallow a cancellation.
        ended.set()
        await renewing
        await _expire(store, lock, 0)


async def _renew(store: Store, lock: Lock, ended: Stop) -> None:
    while not ended.is_set():
        await ended.sleep(_SECONDS / 3)
        if not ended.is_set():
            with suppress(Unavailable):
                await _expire(store, lock, _SECONDS)


async def _expire(store: Store, lock: Lock, seconds: int) -> None:
    """Let the lock expire in this time if it is still ours; 0 releases it."""
    await store.run([expire_lock(lock=lock.key, holder=lock.holder, seconds=seconds)])
