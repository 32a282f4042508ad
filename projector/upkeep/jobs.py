"""Jobs that must survive a crash: each stays in the set `lv3:tasks` until it is finished.

    erase <organization> <event>    delete every key and dead letter of a deleted organization, in batches
    replay <organization> <event>   read the records of an organization that was recreated after a delete

`<event>` is the head of the event that made the job due, in hex. So a later event of the organization adds another
member, which is not removed when an earlier job is finished.

Any projector may run a job, and running one twice is harmless. It holds a lock, in the slot of the organization: only
its holder may mark the job as done. The lock expires if its holder dies or is suspended, and it is gone if Redis was
emptied. In both cases the job runs again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from os import getpid
from secrets import token_hex
from socket import gethostname
from typing import cast

import msgspec

from projector.dead_letter import DeadLetter
from projector.errors import Superseded, Unavailable
from projector.kafka.reader import held_back
from projector.ledger.writers import Writing
from projector.line.health import WorkHealth
from projector.redis import late_versions
from projector.redis.scripts import erase, expire_lock, finish_work, take_lock
from projector.redis.store import Store
from projector.stop import Stop, repeat
from projector.upkeep import dead_letters, reapply
from schemas import names
from schemas.control import GenerationId
from schemas.fields import UUID_BYTES
from schemas.layouts import API_KEY_HASH, HEAD, JOB_DUE, JOB_ERASE, JOB_REPLAY, STORED_CONTACT_ID, Head, read_head
from schemas.resources import API_KEY, LEAD, ORGANIZATION, RESOURCES
from schemas.settings import ProjectorSettings

_REPLAYED = (API_KEY, *RESOURCES)
_DUE = {"erase": JOB_ERASE, "replay": JOB_REPLAY}
_PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


# Short and renewed, so that a projector that died, or a lock that was restored with an old state of Redis, delays a job
# only briefly.
_LOCK_SECONDS, _RENEW_SECONDS = 6, 2.0


class Lock(msgspec.Struct, frozen=True):
    """A lock that this process has taken. `holder` tells it from all others."""

    key: bytes
    holder: bytes
    replication_epoch: int
    """That of the store when the lock was taken: writes from before a restart or failover of Redis may be missing."""
    lost: Stop
    """Set as soon as another process may hold it."""


@asynccontextmanager
async def locked(store: Store, key: bytes, seconds: int = _LOCK_SECONDS) -> AsyncIterator[Lock | None]:
    """Hold the lock of this name until the block ends; if this process dies, for so many seconds. Yields None if
    another process holds it. Raises Unavailable.
    """
    holder = f"{gethostname()}:{getpid()}:{token_hex(8)}".encode()
    [is_taken] = await store.run([take_lock(lock=key, holder=holder, seconds=seconds)])
    if not is_taken:
        yield None
        return
    lock, ended = Lock(key, holder, store.replication_epoch, Stop()), Stop()
    renewing = asyncio.create_task(_renew(store, lock, ended, seconds))
    try:
        yield lock
    finally:
        # It ends by itself and is not cancelled: a renewal that is under way is finished before the lock is released.
        ended.set()
        await renewing
        await _expire(store, lock, 0)


async def _renew(store: Store, lock: Lock, ended: Stop, seconds: int) -> None:
    while not ended.is_set():
        await ended.sleep(min(_RENEW_SECONDS, seconds / 3))
        if not ended.is_set():
            with suppress(Unavailable):
                if not await _expire(store, lock, seconds):
                    lock.lost.set()


async def _expire(store: Store, lock: Lock, seconds: int) -> bool:
    """Let the lock expire in this time if it is still ours; 0 releases it. Returns whether it was ours."""
    [is_ours] = await store.run([expire_lock(lock=lock.key, holder=lock.holder, seconds=seconds)])
    return bool(is_ours)


async def run(
    writing: Writing,
    settings: ProjectorSettings,
    stop: Stop,
    health: WorkHealth,
    often: Callable[[float], float] = float,
) -> None:
    """Run all jobs once a second, or as `often` says (`Duty.often`), until `stop` is set. Retries while Redis or Kafka
    is unavailable; `health` is told.

    A job may take long, so nothing else waits for it: neither records nor the upkeep.
    """
    await repeat("the run of jobs", lambda: run_all(writing, settings), stop, lambda: often(_PAUSE_SECONDS), health)


async def run_all(writing: Writing, settings: ProjectorSettings) -> None:
    """Run all jobs that no other projector is running, and that this program may run. Raises Unavailable."""
    store = writing.store
    for (verb, organization_id), members in (await _read(store)).items():
        async with locked(store, names.job_lock(verb, organization_id)) as lock:
            if lock is None:
                continue
            if verb == "erase":
                finished = await _erase(store, organization_id, lock)
            else:
                try:
                    finished = await _replay(writing, settings, organization_id, lock)
                except Superseded as error:
                    logger.warning("a job is left to newer programs", extra={"job": members[0], "error": str(error)})
                    continue
            if finished:
                await _remove(writing, verb, organization_id, members)


async def _remove(writing: Writing, verb: str, organization_id: str, members: list[str]) -> None:
    """Remove a job from the set, unless it is due again.

    If Redis was emptied, its event is read again and adds the same members. Therefore this is done in a session, which
    no program continues after that (`projector/redis/servers.py`), and never while that event may still be read again.
    """
    with await writing.sessions.open(documents=False) as session:
        head, due = await _head(writing.store, names.organization(organization_id))
        if due != _DUE[verb] and (head or session.record.serves):
            await writing.store.ask([(b"SREM", names.JOBS, *members)], fence=session)


async def _read(store: Store) -> dict[tuple[str, str], list[str]]:
    """Returns the jobs by verb and organization, with the members of the set that name them."""
    jobs: dict[tuple[str, str], list[str]] = {}
    for member in sorted(member.decode() for member in await store.ask_one(b"SMEMBERS", names.JOBS)):
        verb, organization_id, *_ = member.split(" ")
        jobs.setdefault((verb, organization_id), []).append(member)
    return jobs


async def _erase(store: Store, organization_id: str, lock: Lock) -> bool:
    """Delete the remaining keys and the dead letters of a deleted organization. Returns False if the job has to be run
    again.
    """
    owner = names.organization(organization_id)
    head, _ = await _head(store, owner)
    if not _is_deleted(head):
        return True  # recreated meanwhile: a separate job replays it; or Redis was emptied: its event is read again
    keys, erased = 0, -1
    while erased:  # a pass may miss a key that was written, or moved to another shard, behind it
        erased = 0
        async for some in store.scan(names.of_organization(owner)):
            erased += await _drop(store, owner, some)
        keys += erased
    async for letters in dead_letters.in_slices(store):
        own = [letter for letter in letters if letter.organization_id == organization_id]
        if own and (await _head(store, owner))[0] != head:
            return False  # recreated meanwhile: its replay stores dead letters again
        await dead_letters.delete(store, [letter for letter in own if not _is_later(letter, read_head(head))])
    await late_versions.delete_of_organization(store, organization_id)
    logger.info(
        "everything of a deleted organization was erased", extra={"organization": organization_id, "keys": keys}
    )
    return await _finish(store, owner, head, lock)


async def _drop(store: Store, owner: bytes, keys: list[bytes]) -> int:
    """Delete these keys, with what must not outlive them, if their organization is deleted. Returns how many existed.

    The erasure may be cut off after any call, because the organization is recreated.
    """
    linked = [*await _records_of_keys(store, owner, keys), *await _contacts_of_leads(store, owner, keys)]
    [dropped] = await store.run([erase(organization=owner, erased=[*keys, *linked])])
    return max(0, int(dropped))


async def _records_of_keys(store: Store, owner: bytes, keys: list[bytes]) -> list[bytes]:
    """Returns the records of the hashes of the API keys among these keys.

    If only the record were left when the organization is recreated, it would open to a key that was deleted meanwhile:
    without the API key, nothing tells which record it is.
    """
    if not (api_keys := names.api_key_entities(owner, keys)):
        return []
    hashes = await store.ask([(b"GETRANGE", api_key, API_KEY_HASH, -1) for api_key in api_keys])
    return [names.api_key(owner, key_hash.decode()) for key_hash in hashes if key_hash]


async def _contacts_of_leads(store: Store, owner: bytes, keys: list[bytes]) -> set[bytes]:
    """Returns the contacts of the leads among these keys, and the indexes of their leads.

    If only the index were left when the organization is recreated, it would keep a lead that was deleted meanwhile or
    has another contact by then: without the lead, nothing tells in which index it is. The replay writes the contact
    again, and puts its other leads into the index.
    """
    leads = [match for key in keys if (match := names.IN_GENERATION.fullmatch(key)) and match[3] == LEAD.letter]
    if not leads:
        return set()
    first, last = STORED_CONTACT_ID.start, STORED_CONTACT_ID.stop - 1
    contact_ids = await store.ask([(b"GETRANGE", lead[0], first, last) for lead in leads])
    return {
        name
        for lead, contact_id in zip(leads, contact_ids, strict=True)
        if UUID_BYTES.fullmatch(contact_id)  # a marker has no contact; otherwise the lead was corrupted
        for name in names.contact_with_leads(owner, GenerationId(lead[2].decode()), names.short_id(contact_id.decode()))
    }


async def _replay(writing: Writing, settings: ProjectorSettings, organization_id: str, lock: Lock) -> bool:
    """Read the records of an organization from the beginning of the topics to their current end.

    The API serves nothing of the organization before. Records of equal events are written, too: an erasure that ran at
    the same time may have deleted a contact, and with it the index entry of a lead that is still stored, or the record
    by which an API key is found. Bad records become dead letters again. Returns False if the job has to be run again,
    such as because a transaction holds back records that Kafka has acknowledged: one of them may revoke a key.
    """
    store, owner = writing.store, names.organization(organization_id)
    head, due = await _head(store, owner)
    if due != JOB_REPLAY:
        return True  # deleted meanwhile: a separate job erases it; or an earlier job has replayed it already
    if await held_back(settings, _REPLAYED):
        return False
    count = await reapply.in_place(writing, settings, organization_id, _REPLAYED, parks=True)
    logger.info(
        "the records of a recreated organization were applied again",
        extra={"organization": organization_id, "records": count},
    )
    return await _finish(store, owner, head, lock)


async def _head(store: Store, owner: bytes) -> tuple[bytes, bytes]:
    """Returns the head of an organization and which job is due; both are empty if nothing is stored."""
    value = cast(bytes, await store.ask_one(b"GETRANGE", owner, 0, JOB_DUE.stop - 1))
    return value[:HEAD], value[JOB_DUE]


def _is_later(dead_letter: DeadLetter, delete: Head) -> bool:
    """Returns whether the record of a dead letter is one of an organization itself, from after its delete.

    It may have been meant to recreate the organization, so the dead letter stays for an operator.
    """
    if not dead_letter.is_of_organization or not dead_letter.topic.endswith(ORGANIZATION.topic):
        return False
    return dead_letter.partition != delete.partition or dead_letter.offset > delete.offset


def _is_deleted(head: bytes) -> bool:
    return head.startswith((b"D", b"T"))


async def _finish(store: Store, owner: bytes, head: bytes, lock: Lock) -> bool:
    """Mark the job of an organization as done.

    Returns False if the organization has changed since the job began, or if the lock was lost. Raises Unavailable also
    if Redis has restarted or failed over since then: what the job wrote before may be missing.
    """
    command = finish_work(organization=owner, lock=lock.key, head=head, holder=lock.holder)
    [finished] = await store.run([command], replication_epoch=lock.replication_epoch)
    return bool(finished)
