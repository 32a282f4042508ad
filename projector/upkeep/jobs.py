"""Jobs that must survive a crash: each stays in the set `lv3:tasks` until it is finished.

    erase <organization> <event>    delete every key and dead letter of a deleted organization, in passes over the keys
    replay <organization> <event>   read the records of an organization that was recreated after a delete

`<event>` is the head of the event that made the job due, in hex; without it, the job is to erase dead letters that were
stored after the erasure. So a later event of the organization adds another
member, which is not removed when an earlier job is finished.

Any projector may run a job, and running one twice is harmless. It holds a lock, in the slot of the organization: only
its holder may mark the job as done. The lock expires if its holder dies or is suspended, and it is gone if Redis was
emptied. In both cases the job runs again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import islice
from os import getpid
from secrets import token_hex
from socket import gethostname
from typing import NamedTuple, cast

import msgspec

from projector.dead_letter import DeadLetter
from projector.errors import Superseded, Unavailable
from projector.kafka.reader import held_back
from projector.ledger import late_versions
from projector.ledger.writers import Writing
from projector.liveness import WorkHealth
from projector.redis.scripts import erase, expire_lock, finish_work, take_lock
from projector.redis.store import Store
from projector.stop import Stop, repeat
from projector.upkeep import dead_letters, reapply
from projector.upkeep.passes import Passes
from schemas import names
from schemas.control import GenerationId
from schemas.fields import UUID_BYTES
from schemas.layouts import API_KEY_HASH, HEAD, JOB_DUE, JOB_ERASE, JOB_REPLAY, STORED_CONTACT_ID, Head, read_head
from schemas.resources import API_KEY, LEAD, ORGANIZATION, RESOURCES
from schemas.settings import ProjectorSettings

_REPLAYED = (API_KEY, *RESOURCES)
_DUE = {"erase": JOB_ERASE, "replay": JOB_REPLAY}
_PAUSE_SECONDS = 1.0
_MOST_AT_ONCE = 100
"""The number of jobs of a kind that run at the same time; each has a lock that is renewed."""

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
    """Hold the lock of this name until the block ends; if this process dies, until `seconds` later. Yields None if
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

    A job may take long, so nothing else waits for it: neither records nor the upkeep. Readers wait for a replay, and
    nobody waits for an erasure: so replays wait for no erasure either.
    """
    erasing: asyncio.Task[None] | None = None

    async def turn() -> None:
        nonlocal erasing
        due = await _read(writing.store)
        if erasing and erasing.done():
            ended, erasing = erasing, None
            ended.result()
        if due.erasures and erasing is None:
            erasing = asyncio.create_task(_erase_all(writing, due.erasures))
        await _replay_all(writing, due.replays, partial(_read_again, writing, settings))

    try:
        await repeat("the run of jobs", turn, stop, lambda: often(_PAUSE_SECONDS), health)
    finally:
        if erasing:
            erasing.cancel()
            await asyncio.gather(erasing, return_exceptions=True)


async def run_all(writing: Writing, settings: ProjectorSettings) -> None:
    """Run all jobs that no other projector is running, and that this program may run: first the replays. Raises
    Unavailable.
    """
    due = await _read(writing.store)
    await _replay_all(writing, due.replays, partial(_read_again, writing, settings))
    await _erase_all(writing, due.erasures)


async def _remove(writing: Writing, verb: str, organization_id: str, members: list[str]) -> None:
    """Remove a job from the set, unless it is due again.

    If Redis was emptied, its event is read again and adds the same members. Therefore this is done in a session, which
    no program continues after that (`projector/redis/node.py`), and never while that event may still be read again.
    """
    with await writing.sessions.open(documents=False) as session:
        head, due = await _head(writing.store, names.organization(organization_id))
        if due != _DUE[verb] and (head or session.record.serves):
            await writing.store.ask([(b"SREM", names.JOBS, *members)], fence=session)


class _Due(NamedTuple):
    """The jobs: for each organization, the members of the set that name its job."""

    erasures: dict[str, list[str]]
    replays: dict[str, list[str]]


async def _read(store: Store) -> _Due:
    due = _Due({}, {})
    for member in sorted(member.decode() for member in await store.ask_one(b"SMEMBERS", names.JOBS)):
        verb, organization_id, *_ = member.split(" ")
        (due.erasures if verb == "erase" else due.replays).setdefault(organization_id, []).append(member)
    return due


class _Job(NamedTuple):
    """A job whose lock this process holds. `head` is that of the organization when it began."""

    organization_id: str
    owner: bytes
    members: list[str]
    lock: Lock
    head: bytes
    due: bytes


@asynccontextmanager
async def _taken(store: Store, verb: str, members: Mapping[str, list[str]]) -> AsyncIterator[list[_Job]]:
    """Hold the locks of these jobs until the block ends, as far as no other process holds them. Raises Unavailable."""
    async with AsyncExitStack() as stack:
        jobs = []
        for organization_id, some in islice(members.items(), _MOST_AT_ONCE):
            lock = await stack.enter_async_context(locked(store, names.job_lock(verb, organization_id)))
            if lock:
                owner = names.organization(organization_id)
                jobs.append(_Job(organization_id, owner, some, lock, *await _head(store, owner)))
        yield jobs


async def _erase_all(writing: Writing, members: Mapping[str, list[str]]) -> None:
    """Delete the remaining keys and the dead letters of deleted organizations. Raises Unavailable."""
    if members:
        async with _taken(writing.store, "erase", members) as taken:
            async for job in _erase(writing.store, taken):
                await _remove(writing, "erase", job.organization_id, job.members)


async def _erase(store: Store, jobs: Sequence[_Job]) -> AsyncIterator[_Job]:
    """Erase these organizations, and yield each job that is done; others have to be run again.

    They share each pass over the keys, so the passes cost the same, however many organizations were deleted. An
    organization is done when a pass has found nothing of it: a pass may miss a key that was written, or moved to
    another server, behind it.
    """
    left = {job.owner: job for job in jobs if _is_deleted(job.head)}
    for job in jobs:
        if job.owner not in left:
            # It was recreated meanwhile: a separate job replays it; or Redis was emptied: its event is read again.
            yield job
    keys: Counter[bytes] = Counter()
    passes = Passes(store, {owner: job.head for owner, job in left.items()}, partial(_drop, store))
    while left:
        found = await passes.run(left)
        keys.update(found)
        done = [job for owner, job in left.items() if found.get(owner) == 0]
        recreated = await _erase_letters(store, done)
        for job in done:
            del left[job.owner]
            if job.organization_id in recreated:
                continue  # its replay stores dead letters again
            await late_versions.delete_of_organization(store, job.organization_id)
            logger.info(
                "everything of a deleted organization was erased",
                extra={"organization": job.organization_id, "keys": keys[job.owner]},
            )
            if await _finish(store, job.owner, job.head, job.lock):
                yield job


async def _erase_letters(store: Store, jobs: Sequence[_Job]) -> set[str]:
    """Delete the dead letters of deleted organizations. Returns the organizations that were recreated meanwhile."""
    of_ids, recreated = {job.organization_id: job for job in jobs}, set[str]()
    if not jobs:
        return recreated
    async for letters in dead_letters.in_slices(store):
        own: dict[str, list[DeadLetter]] = {}
        for letter in letters:
            if letter.organization_id in of_ids:
                own.setdefault(letter.organization_id, []).append(letter)
        for organization_id, some in own.items():
            job = of_ids[organization_id]
            if organization_id in recreated or (await _head(store, job.owner))[0] != job.head:
                recreated.add(organization_id)
            else:
                await dead_letters.delete(store, [it for it in some if not _is_later(it, read_head(job.head))])
    return recreated


async def _drop(store: Store, owner: bytes, keys: list[bytes]) -> int:
    """Delete these keys, with what must not outlive them, if their organization is deleted. Returns how many existed.

    The erasure may be cut off after any call, because the organization is recreated.
    """
    linked = [*await _records_of_keys(store, owner, keys), *await _contacts_of_leads(store, owner, keys)]
    [dropped] = await store.run([erase(organization=owner, erased=[*keys, *linked])])
    return max(0, int(dropped))


async def _records_of_keys(store: Store, owner: bytes, keys: list[bytes]) -> list[bytes]:
    """Returns the records of the hashes of the API keys among these keys.

    Both have to be deleted together: without the stored API key, nothing tells which record belongs to it. A record
    that is left when the organization is recreated would admit a key that was deleted meanwhile.
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


ReadAgain = Callable[[reapply.Wanted], Awaitable[int | None]]
"""Applies these records again, from the beginning of the topics to their current end, and returns how many there are.
None if a transaction holds back records that Kafka has acknowledged. Raises Superseded or Unavailable.
"""


async def _read_again(writing: Writing, settings: ProjectorSettings, wanted: reapply.Wanted) -> int | None:
    if await held_back(settings, _REPLAYED):
        return None
    return await reapply.in_place(writing, settings, wanted, _REPLAYED, parks=True)


async def _replay_all(writing: Writing, members: Mapping[str, list[str]], read_again: ReadAgain) -> None:
    """Apply the records of recreated organizations again, once for all of them. Raises Unavailable.

    The API serves nothing of them before. Records of equal events are written, too: an erasure that ran at the same
    time may have deleted a contact, and with it the index entry of a lead that is still stored, or the record by which
    an API key is found. Bad records become dead letters again. The jobs have to be run again if a transaction holds
    back records that Kafka has acknowledged: one of them may revoke a key.
    """
    if not members:
        return
    async with _taken(writing.store, "replay", members) as taken:
        jobs = [job for job in taken if job.due == JOB_REPLAY]
        for job in taken:
            if job.due != JOB_REPLAY:
                # It was deleted meanwhile: a separate job erases it; or an earlier job has replayed it already.
                await _remove(writing, "replay", job.organization_id, job.members)
        if not jobs:
            return
        try:
            count = await read_again(reapply.of_organizations(job.organization_id for job in jobs))
        except Superseded as error:
            logger.warning("a job is left to newer programs", extra={"job": jobs[0].members[0], "error": str(error)})
            return
        if count is None:
            return
        for job in jobs:
            logger.info(
                "the records of a recreated organization were applied again",
                extra={"organization": job.organization_id, "records": count},
            )
            if await _finish(writing.store, job.owner, job.head, job.lock):
                await _remove(writing, "replay", job.organization_id, job.members)


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
