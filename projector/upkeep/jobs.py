"""Jobs that must survive a crash: each stays in the set `lv:tasks` until it is finished.

    erase <organization>    delete every key of a deleted organization, in batches
    replay <organization>   read the records of an organization that was recreated after a delete

Any projector may run a job, and running one twice is harmless.
"""

import asyncio
import logging
from contextlib import suppress
from os import getpid
from socket import gethostname
from typing import cast

from projector.errors import Unavailable
from projector.ledger.writers import Writing
from projector.redis.calls import Command
from projector.redis.store import Store
from projector.upkeep import reapply
from schemas import names
from schemas.layouts import HEAD
from schemas.resources import API_KEY, RESOURCES
from schemas.settings import ProjectorSettings

# Short and renewed, so that a projector that died, or a lock that was restored with an old state of Redis, delays a job
# only briefly.
_LOCK_SECONDS = 6
_REPLAYED = (API_KEY, *RESOURCES)

logger = logging.getLogger(__name__)


async def run_all(writing: Writing, settings: ProjectorSettings) -> None:
    """Run all jobs that no other projector is running.

    Raises Superseded if this program may not write one of the generations, and Unavailable.
    """
    store = writing.store
    jobs = sorted(member.decode() for member in await store.ask_one(b"SMEMBERS", names.JOBS))
    for job in jobs:
        if not await _lock(store, job):
            continue
        renewing = asyncio.create_task(_renew(store, job))
        try:
            verb, _, organization_id = job.partition(" ")
            if verb == "erase":
                finished = await _erase(store, organization_id)
            else:
                finished = await _replay(writing, settings, organization_id)
            if finished:
                await _forget(store, job)
        finally:
            renewing.cancel()
            await _unlock(store, job)


async def _forget(store: Store, job: str) -> None:
    """Remove a finished job, unless it has become due again meanwhile."""
    verb, _, organization_id = job.partition(" ")
    await store.ask_one(b"SREM", names.JOBS, job)
    # If an event made the job due again while it was still in the set, adding it had no effect: add it again.
    work_due = await store.ask_one(b"GETRANGE", names.organization(organization_id), HEAD, HEAD)
    if work_due == (b"E" if verb == "erase" else b"R"):
        await store.add_jobs([job])


async def _erase(store: Store, organization_id: str) -> bool:
    """Delete the remaining keys of a deleted organization. Returns False if the job has to be run again."""
    owner = names.organization(organization_id)
    head = await _head(store, owner)
    if head.startswith(b"L"):
        return True  # recreated meanwhile: a separate job replays it
    total = 0
    while erased := await _erase_once(store, owner):
        total += erased
        if not store.sharded:
            break  # only on a cluster keys may move to a shard that was already scanned
    logger.info("deleted organization erased", extra={"organization": organization_id, "keys": total})
    return await _finish(store, owner, head)


async def _erase_once(store: Store, owner: bytes) -> int:
    erased = 0
    async for keys in store.scan(names.of_organization(owner)):
        erased += await _drop(store, owner, keys)
    return erased


async def _drop(store: Store, owner: bytes, keys: list[bytes]) -> int:
    [dropped] = await store.run([Command("erase", [owner, *keys], [])])
    return max(0, int(dropped))


async def _replay(writing: Writing, settings: ProjectorSettings, organization_id: str) -> bool:
    """Read the records of an organization from the beginning of the topics to their current end.

    Records of equal events are written, too: an erasure that ran at the same time may have deleted a contact, and with
    it the index entry of a lead that is still stored, or the record by which an API key is found. Returns False if the
    job has to be run again.
    """
    store, owner = writing.store, names.organization(organization_id)
    head = await _head(store, owner)
    if not head.startswith(b"L"):
        return True  # deleted meanwhile: a separate job erases it
    count = await reapply.in_place(writing, settings, organization_id, _REPLAYED)
    logger.info("organization replayed", extra={"organization": organization_id, "records": count})
    return await _finish(store, owner, head)


async def _head(store: Store, owner: bytes) -> bytes:
    return cast(bytes, await store.ask_one(b"GETRANGE", owner, 0, HEAD - 1))


async def _finish(store: Store, owner: bytes, head: bytes) -> bool:
    """Mark the job of an organization as done. Returns False if the organization has changed since it began."""
    if not head:
        return True  # Redis was emptied: the organization's event will be read again, and will add the job again
    [finished] = await store.run([Command("finish_work", [owner], [head])])
    return bool(finished)


async def _lock(store: Store, job: str) -> bool:
    holder = f"{gethostname()}:{getpid()}"
    return bool(await store.ask_one(b"SET", names.job_lock(job), holder, b"NX", b"EX", _LOCK_SECONDS))


async def _renew(store: Store, job: str) -> None:
    """Hold the lock until this is cancelled. If it is lost nevertheless, two projectors run the job, without harm."""
    while True:
        await asyncio.sleep(_LOCK_SECONDS / 3)
        with suppress(Unavailable):
            await store.ask_one(b"EXPIRE", names.job_lock(job), _LOCK_SECONDS)


async def _unlock(store: Store, job: str) -> None:
    await store.ask_one(b"DEL", names.job_lock(job))
