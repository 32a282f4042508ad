"""Jobs: their locks, what an erasure leaves, and what remains to be done if a projector dies at any moment.

Each moment is held by a proxy in front of Redis, which holds back a request.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from projector.dead_letter import DeadLetter
from projector.errors import Unavailable
from projector.ledger.writers import Sessions, Writing
from projector.line.line import erase_late, without_deleted
from projector.redis.apply import apply
from projector.redis.scripts import expire_lock
from projector.redis.store import Store
from projector.upkeep import dead_letters, jobs
from schemas import names, resources
from schemas.layouts import STORED_CONTACT_ID
from schemas.settings import ProjectorSettings
from tests.harness import crm
from tests.harness.faulty_proxy import Faults, FaultyProxy, faulty_proxy
from tests.harness.generations import generation, ids
from tests.harness.leftovers import without_leftover_tasks
from tests.harness.projection import Projection, intent_of, open_projection
from tests.harness.services import RedisService
from tests.harness.waiting import eventually

OWNER = names.organization(crm.ORGANIZATION)
LEAD = names.document(resources.LEAD, OWNER, generation(1), crm.LEAD)
ERASE = f"erase {crm.ORGANIZATION}"
LOCK = names.job_lock("erase", crm.ORGANIZATION)
ANOTHER = b"another projector"


class Stubborn(Store):
    """A store whose calls may swallow a cancellation, as those that use asyncio.wait_for of Python 3.11 may."""

    async def run(self, commands: Any, **named: Any) -> list[Any]:
        try:
            return await super().run(commands, **named)
        except asyncio.CancelledError:
            return [0] * len(commands)

    async def ask(self, commands: Any, **named: Any) -> list[Any]:
        try:
            return await super().ask(commands, **named)
        except asyncio.CancelledError:
            return [0] * len(commands)


class World:
    """A projection, and a projector whose way to Redis is a proxy."""

    def __init__(self, projection: Projection, proxy: FaultyProxy) -> None:
        self.projection = projection
        self.client = projection.client
        self.proxy = proxy
        self.settings = ProjectorSettings(redis_url=proxy.url)
        self.store = Stubborn(self.settings)
        self.writing = Writing(self.store, Sessions(self.store), "test")

    async def deleted_organization(self) -> None:
        """Store an organization with a lead, and delete the organization."""
        await self.projection.apply(crm.organization(1).record(0), crm.lead(1).record(0))
        await self.projection.apply(crm.deleted(resources.ORGANIZATION, 2).record(1))

    def hold(self, request: bytes | None) -> None:
        self.proxy.faults = Faults(held=request)

    async def run_until(self, holding: bytes) -> asyncio.Task[None]:
        """Start all jobs. Returns when a request with these bytes is held back."""
        self.hold(holding)
        running = asyncio.create_task(jobs.run_all(self.writing, self.settings))
        await eventually(lambda: self.proxy.holding == 1, "the request is held back")
        return running

    def left(self) -> list[bytes]:
        return list(self.client.scan_iter(names.of_organization(OWNER)))


@pytest.fixture
async def world(redis_server: RedisService) -> AsyncIterator[World]:
    with faulty_proxy(urlsplit(redis_server.url).port or 6379) as proxy:
        async with open_projection(redis_server) as projection:
            world = World(projection, proxy)
            try:
                yield world
            finally:
                proxy.faults = Faults()
                await world.store.close()


async def test_an_erasure_ends_with_a_pass_that_finds_nothing(world: World) -> None:
    """A key is written when its only SCAN has ended: by a program of an older version, or on its way for long."""
    await world.deleted_organization()
    running = await world.run_until(holding=LEAD)
    world.client.zadd(names.contact_leads(OWNER, generation(1), crm.OTHER_CONTACT), {"a lead": 1})
    world.hold(None)
    await running
    assert world.left() == []
    assert world.projection.jobs() == set()


async def test_a_corrupted_lead_is_erased(world: World) -> None:
    """It names no contact, with whose index it could be deleted."""
    await world.deleted_organization()
    world.client.setrange(LEAD, STORED_CONTACT_ID.start, "not the id of a contact")
    await jobs.run_all(world.writing, world.settings)
    assert world.left() == []


async def test_a_job_that_becomes_due_while_another_ends_is_not_lost(world: World) -> None:
    """The organization is created and deleted again before the job is removed, and then the projector dies."""
    await world.deleted_organization()
    ended = world.projection.jobs()
    running = await world.run_until(holding=b"SREM")
    await world.projection.apply(crm.organization(3).record(2), crm.lead(1).record(0))
    await world.projection.apply(crm.deleted(resources.ORGANIZATION, 4).record(3))
    world.client.srem(names.JOBS, *ended)  # the request arrives, and nothing after it
    world.proxy.reset_all()
    with pytest.raises(Unavailable):
        await running
    world.hold(None)
    world.client.delete(LOCK)
    await jobs.run_all(world.writing, world.settings)
    assert world.left() == []
    assert world.client.getrange(OWNER, 22, 22) == b"-"


async def test_a_lock_is_held_for_as_long_as_the_work_takes(world: World) -> None:
    """It would expire soon if its holder died, or if it were restored with an old state of Redis."""
    await world.deleted_organization()
    running = await world.run_until(holding=LEAD)
    assert 0 < world.client.ttl(LOCK) <= 10
    world.client.expire(LOCK, 3600)  # so that it is still there when it is renewed, however late that is
    await eventually(lambda: 0 < world.client.ttl(LOCK) <= 10, "it is renewed")
    world.hold(None)
    await running
    assert not world.client.exists(LOCK)


async def test_a_job_that_another_projector_runs_is_left_to_it(world: World) -> None:
    await world.deleted_organization()
    world.client.set(LOCK, ANOTHER, ex=3600)
    await jobs.run_all(world.writing, world.settings)
    assert world.client.exists(LEAD)
    assert world.projection.jobs_due() == {ERASE}


async def test_a_lock_that_was_lost_is_left_to_its_next_holder(world: World) -> None:
    """The projector was suspended for so long that the lock expired, and another one took it: it is neither renewed nor
    released.
    """
    await world.deleted_organization()
    running = await world.run_until(holding=LEAD)
    world.hold(names.PREFIX)  # all requests from now on: the next one renews the lock
    await eventually(lambda: world.proxy.holding == 2, "the renewal is held back")
    world.client.set(LOCK, ANOTHER, ex=3600)
    world.hold(None)
    await running
    assert world.client.get(LOCK) == ANOTHER
    assert world.client.ttl(LOCK) > 10


@without_leftover_tasks
async def test_a_lock_is_not_renewed_any_more_when_its_job_has_ended(world: World) -> None:
    """The job ends while a renewal is on its way, which swallows a cancellation."""
    await world.deleted_organization()
    running = await world.run_until(holding=LEAD)
    world.hold(names.PREFIX)
    await eventually(lambda: world.proxy.holding == 2, "the renewal is held back")
    world.hold(expire_lock.sha)
    await eventually(lambda: not world.projection.jobs(), "the job has ended")
    world.hold(None)
    await running
    assert not world.client.exists(LOCK)


def letter(key: str, offset: int = 0, topic: str = "crm.leads") -> DeadLetter:
    return DeadLetter(topic, 0, offset, key, "bad", 0)


def keys_of_letters(projection: Projection) -> set[str]:
    values = projection.client.hvals(names.DEAD_LETTERS)
    return {msgspec.json.decode(value, type=DeadLetter).key for value in values}


OTHERS = {f"{crm.OTHER_ORGANIZATION}:{crm.LEAD}", "", "no key", f"{crm.LEAD}:{crm.ORGANIZATION}"}


async def test_the_dead_letters_of_a_deleted_organization_are_erased(projection: Projection) -> None:
    own = {f"{crm.ORGANIZATION}:{crm.uuid(number)}" for number in range(300)}
    own |= {crm.ORGANIZATION, f"{crm.ORGANIZATION}:{crm.LEAD}".upper(), f"{crm.ORGANIZATION}X"}
    await dead_letters.park(projection.store, [letter(key, offset) for offset, key in enumerate(own | OTHERS)])
    await projection.apply(crm.organization(1).record(0))
    await projection.apply(crm.deleted(resources.ORGANIZATION, 2).record(1))
    await jobs.run_all(projection.writing, projection.settings)
    assert keys_of_letters(projection) == OTHERS


async def test_a_bad_event_that_may_recreate_an_organization_stays_a_dead_letter(projection: Projection) -> None:
    """The delete has offset 4. What was bad before it is erased."""
    letters = [letter(crm.ORGANIZATION, offset, "crm.organizations") for offset in (3, 5)]
    await projection.apply(crm.deleted(resources.ORGANIZATION, 2).record(4))
    assert await without_deleted(projection.store, letters) == letters
    await dead_letters.park(projection.store, letters)
    await jobs.run_all(projection.writing, projection.settings)
    assert projection.client.hkeys(names.DEAD_LETTERS) == [letters[1].field.encode()]


async def test_an_erasure_ends_before_the_dead_letters_of_a_recreated_organization(world: World) -> None:
    """The replay may have stored them again by now."""
    await world.deleted_organization()
    own = f"{crm.ORGANIZATION}:{crm.LEAD}"
    await dead_letters.park(world.projection.store, [letter(own)])
    running = await world.run_until(holding=b"HSCAN")
    await apply(world.projection.store, [intent_of(crm.organization(3).record(2))], ids(1))
    world.hold(None)
    await running
    assert keys_of_letters(world.projection) == {own}


async def test_bad_records_of_a_deleted_organization_are_dropped(projection: Projection) -> None:
    parked = [letter(key, offset) for offset, key in enumerate(sorted(OTHERS | {f"{crm.ORGANIZATION}:{crm.LEAD}"}))]
    assert await without_deleted(projection.store, parked) == parked
    await projection.apply(crm.deleted(resources.ORGANIZATION, 1).record(0))
    assert {found.key for found in await without_deleted(projection.store, parked)} == OTHERS


async def test_a_dead_letter_that_is_stored_after_the_erasure_is_erased(projection: Projection) -> None:
    """The organization is deleted and erased between the question whether it is, and the checkpoint."""
    late = letter(f"{crm.ORGANIZATION}:{crm.LEAD}")
    await projection.apply(crm.deleted(resources.ORGANIZATION, 1).record(0))
    await jobs.run_all(projection.writing, projection.settings)
    await dead_letters.park(projection.store, [late])
    await erase_late(projection.store, [late])
    await jobs.run_all(projection.writing, projection.settings)
    assert keys_of_letters(projection) == set()
    assert projection.jobs() == set()


async def test_a_job_without_an_event_is_run(projection: Projection) -> None:
    """As versions before this one stored it."""
    await projection.apply(crm.deleted(resources.ORGANIZATION, 1).record(0))
    projection.client.delete(names.JOBS)
    projection.client.set(LEAD, "left over")
    await projection.store.add_jobs([ERASE])
    await jobs.run_all(projection.writing, projection.settings)
    assert not projection.client.exists(LEAD)
    assert projection.jobs() == set()
