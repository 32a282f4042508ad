"""Work that outlives a crash, noted in the set `lv:tasks` until it is finished.

    erase <organization>    drop every key of a deleted organization, in slices
    replay <organization>   read its records again: it was created again after a delete

Any projector may do it; doing it twice does no harm.
"""

import asyncio
import logging
from contextlib import suppress
from os import getpid
from socket import gethostname
from typing import cast

from projector.errors import Unavailable
from projector.kafka.reader import open_reader
from projector.record import Kind
from projector.redis.calls import Command
from projector.redis.store import Store
from projector.upkeep import reapply
from schemas import names
from schemas.settings import ProjectorSettings

# Short, and renewed: a projector that died, and a lock that came back with an old Redis, hold nobody up for long.
_LOCK_SECONDS = 6
_REPLAYED = (Kind.API_KEY, Kind.CONTACT, Kind.LEAD)

logger = logging.getLogger(__name__)


async def work(store: Store, settings: ProjectorSettings) -> None:
    """Do all that is noted and that no other projector is doing. Raises Unavailable."""
    noted = sorted(member.decode() for member in await store.ask_one(b"SMEMBERS", names.JOBS))
    for job in noted:
        if not await _lock(store, job):
            continue
        renewing = asyncio.create_task(_renew(store, job))
        try:
            verb, _, organization_id = job.partition(" ")
            if verb == "erase":
                finished = await _erase(store, organization_id)
            else:
                finished = await _replay(store, settings, organization_id)
            if finished:
                await _forget(store, job)
        finally:
            renewing.cancel()
            await _unlock(store, job)


async def _forget(store: Store, job: str) -> None:
    """Remove a finished job; unless it has become due once more since, when its note was still there."""
    verb, _, organization_id = job.partition(" ")
    await store.ask_one(b"SREM", names.JOBS, job)
    work_due = await store.ask_one(b"GETRANGE", names.organization(organization_id), 22, 22)
    if work_due == (b"E" if verb == "erase" else b"R"):
        await store.add_jobs([job])


async def _erase(store: Store, organization_id: str) -> bool:
    """Drop what is left of a deleted organization. False where it is to be tried again."""
    owner = names.organization(organization_id)
    head = await _head(store, owner)
    if head.startswith(b"L"):
        return True  # created again meanwhile: it is replayed, which is a job of its own
    total = 0
    while dropped := await _erase_once(store, owner):
        total += dropped
        if not store.sharded:
            break  # on a cluster keys may move to a shard that was looked at already
    logger.info("deleted organization erased", extra={"organization": organization_id, "keys": total})
    return await _finish(store, owner, head)


async def _erase_once(store: Store, owner: bytes) -> int:
    dropped = 0
    async for keys in store.scan(names.of_organization(owner)):
        dropped += await _drop(store, owner, keys)
    return dropped


async def _drop(store: Store, owner: bytes, keys: list[bytes]) -> int:
    [dropped] = await store.run([Command("erase", [owner, *keys], [])])
    return max(0, int(dropped))


async def _replay(store: Store, settings: ProjectorSettings, organization_id: str) -> bool:
    """Read the records of an organization again, from the beginning of the topics to their present end.

    All are written again: an erasure that was overtaken may have dropped a contact, and with it the index of a lead
    that is still there, or what an API key is looked up by.
    """
    owner = names.organization(organization_id)
    head = await _head(store, owner)
    if not head.startswith(b"L"):
        return True  # deleted again meanwhile: it is erased, which is a job of its own
    async with open_reader(settings, _REPLAYED) as reader:
        ranges = await reader.range(await reader.partitions())
        wanted = reapply.of_organization(organization_id)
        count = await reapply.replay(store, reader, ranges, wanted, again=True)
    logger.info("organization replayed", extra={"organization": organization_id, "records": count})
    return await _finish(store, owner, head)


async def _head(store: Store, owner: bytes) -> bytes:
    return cast(bytes, await store.ask_one(b"GETRANGE", owner, 0, 21))


async def _finish(store: Store, owner: bytes, head: bytes) -> bool:
    """Note that the work is done, unless the organization has changed since: then it begins again."""
    if not head:
        return True  # Redis was emptied: the organization's event comes again, and notes its work again
    [finished] = await store.run([Command("finish_work", [owner], [head])])
    return bool(finished)


async def _lock(store: Store, job: str) -> bool:
    holder = f"{gethostname()}:{getpid()}"
    return bool(await store.ask_one(b"SET", names.job_lock(job), holder, b"NX", b"EX", _LOCK_SECONDS))


async def _renew(store: Store, job: str) -> None:
    """Hold the lock until this is cancelled. Where it was lost all the same, two do the work, and do no harm."""
    while True:
        await asyncio.sleep(_LOCK_SECONDS / 3)
        with suppress(Unavailable):
            await store.ask_one(b"EXPIRE", names.job_lock(job), _LOCK_SECONDS)


async def _unlock(store: Store, job: str) -> None:
    await store.ask_one(b"DEL", names.job_lock(job))
