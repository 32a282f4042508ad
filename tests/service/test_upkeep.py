"""The work of a projector beside its lines: jobs, their locks, what an erasure leaves, and when a shard is served.

Each moment of a job is held by a proxy in front of Redis, which holds back a request.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from types import NoneType
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from devstack.apache_kafka import ApacheKafka, Login
from devstack.fault_proxy import Faults, FaultyProxy, faulty_proxy
from devstack.redis_cluster import RedisCluster
from devstack.redis_server import RedisServer
from operate.verify import compare
from projector.dead_letter import DeadLetter
from projector.errors import Unavailable
from projector.health.judge import problems
from projector.health.observe import observe
from projector.ledger import acts, copies
from projector.ledger.acts import Act
from projector.ledger.ledger import Sessions
from projector.ledger.writers import Writing, writing
from projector.line.apply import apply
from projector.line.line import without_deleted
from projector.record import Record
from projector.redis.scripts import expire_lock
from projector.redis.store import SLICE, Store
from projector.stop import Stop
from projector.upkeep import dead_letters, jobs, passes, reapply
from projector.upkeep.duty import Duty
from projector.upkeep.keeper import Keeper
from projector.words import say
from schemas import names, resources
from schemas.layouts import STORED_CONTACT_ID
from schemas.settings import ProjectorSettings, load
from tests.harness import control, crm, stored
from tests.harness.generations import generation, ids
from tests.harness.leadview import Leadview
from tests.harness.leftovers import without_leftover_tasks
from tests.harness.projection import Projection, intent_of
from tests.harness.services import Kafka, calls_of
from tests.harness.topics import Topics
from tests.harness.waiting import eventually

OWNER = names.organization(crm.ORGANIZATION)
LEAD = names.document(resources.LEAD, OWNER, generation(1), crm.LEAD)
ERASE = f"erase {crm.ORGANIZATION}"
LOCK = names.job_lock("erase", crm.ORGANIZATION)
ANOTHER = b"another projector"
LOCK_SECONDS, RENEW_SECONDS = jobs._LOCK_SECONDS, jobs._RENEW_SECONDS
LONG_SECONDS = 3600
"""A lock that lasts so long outlives every test, however slow the machine is."""


class Stubborn(Store):
    """A store whose calls may swallow a cancellation, as those that use asyncio.wait_for of Python 3.11 may."""

    async def run(self, commands: Any, **named: Any) -> list[Any]:
        return await _stubbornly(super().run(commands, **named), len(commands))

    async def ask(self, commands: Any, **named: Any) -> list[Any]:
        return await _stubbornly(super().ask(commands, **named), len(commands))


async def _stubbornly(call: Awaitable[list[Any]], replies: int) -> list[Any]:
    try:
        return await call
    except asyncio.CancelledError:
        return [0] * replies


class World:
    """A projection in which an organization with a lead was deleted, and a projector whose way to Redis is a proxy."""

    def __init__(self, projection: Projection, proxy: FaultyProxy) -> None:
        self.projection = projection
        self.client = projection.client
        self.proxy = proxy
        self.settings = ProjectorSettings(redis_url=proxy.url)
        self.store = Stubborn(self.settings)
        self.writing = Writing(self.store, Sessions(self.store))

    def hold(self, request: bytes | None) -> None:
        self.proxy.faults = Faults(held=request)

    @asynccontextmanager
    async def jobs_held_at(self, request: bytes, outcome: type = NoneType) -> AsyncIterator[None]:
        """Run all jobs. The block begins when a request with these bytes is held back. After it they end, perhaps with
        an error of this type."""
        self.hold(request)
        running = asyncio.create_task(jobs.run_all(self.writing, self.settings))
        await eventually(lambda: self.proxy.holding == 1, "the request is held back")
        yield
        self.hold(None)
        [ended] = await asyncio.gather(running, return_exceptions=True)
        assert type(ended) is outcome, ended

    def left(self) -> list[bytes]:
        return list(self.client.scan_iter(names.of_organization(OWNER)))


@pytest.fixture
async def world(alone: Projection, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(jobs, "_LOCK_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(jobs, "_RENEW_SECONDS", 0.05)
    world = World(alone, proxy)
    await alone.apply(crm.organization(1).record(0), crm.lead(1).record(0))
    await alone.apply(crm.deleted(resources.ORGANIZATION, 2).record(1))
    yield world
    proxy.faults = Faults()
    await world.store.close()


async def test_erasure_ends_with_a_pass_that_finds_nothing(world: World) -> None:
    """A key is written when its only SCAN has ended: by a program of an older version, or on its way for long."""
    async with world.jobs_held_at(LEAD):
        world.client.zadd(names.contact_leads(OWNER, generation(1), crm.OTHER_CONTACT), {"a lead": 1})
    assert (world.left(), world.projection.jobs()) == ([], set())


async def test_corrupted_lead_is_erased(world: World) -> None:
    """It names no contact, with whose index it could be deleted."""
    world.client.setrange(LEAD, STORED_CONTACT_ID.start, "not the id of a contact")
    await jobs.run_all(world.writing, world.settings)
    assert world.left() == []


async def test_job_that_becomes_due_while_another_ends_is_not_lost(world: World) -> None:
    """The organization is created and deleted again before the job is removed, and then the projector dies."""
    ended = world.projection.jobs()
    async with world.jobs_held_at(b"SREM", Unavailable):
        await world.projection.apply(crm.organization(3).record(2), crm.lead(1).record(0))
        await world.projection.apply(crm.deleted(resources.ORGANIZATION, 4).record(3))
        world.client.srem(names.JOBS, *ended)  # the request arrives, and nothing after it
        world.proxy.reset_all()
    world.client.delete(LOCK)
    await jobs.run_all(world.writing, world.settings)
    assert (world.left(), world.client.getrange(OWNER, 22, 22)) == ([], b"-")


async def test_lock_is_held_for_as_long_as_the_work_takes(world: World) -> None:
    """It would expire soon if its holder died, or if it were restored with an old state of Redis."""
    assert 3 * RENEW_SECONDS <= LOCK_SECONDS <= 10
    async with world.jobs_held_at(LEAD):
        assert 0 < world.client.ttl(LOCK) <= LONG_SECONDS
        world.client.expire(LOCK, 2 * LONG_SECONDS)
        await eventually(lambda: 0 < world.client.ttl(LOCK) <= LONG_SECONDS, "it is renewed")
    assert not world.client.exists(LOCK)


async def test_job_that_another_projector_runs_is_left_to_it(world: World) -> None:
    world.client.set(LOCK, ANOTHER, ex=3600)
    await jobs.run_all(world.writing, world.settings)
    assert world.client.exists(LEAD)
    assert world.projection.jobs_due() == {ERASE}


async def test_lock_that_was_lost_is_left_to_its_next_holder(world: World) -> None:
    """The projector was suspended for so long that the lock expired, and another one took it: it is neither renewed nor
    released.
    """
    async with world.jobs_held_at(LEAD):
        world.hold(names.PREFIX)  # all requests from now on: the next one renews the lock
        await eventually(lambda: world.proxy.holding == 2, "the renewal is held back")
        world.client.set(LOCK, ANOTHER, ex=2 * LONG_SECONDS)
    assert world.client.get(LOCK) == ANOTHER
    assert world.client.ttl(LOCK) > LONG_SECONDS


async def test_the_lock_of_a_dead_process_ends_although_the_clock_was_set_back(projection: Projection) -> None:
    """Redis stores when a lock expires, so that it would last an hour longer."""
    await projection.apply(crm.organization(1).record(0))
    await projection.apply(crm.deleted(resources.ORGANIZATION, 2).record(1))
    projection.client.set(LOCK, ANOTHER, ex=3600)
    await jobs.run_all(projection.writing, projection.settings)
    assert projection.client.get(LOCK) == ANOTHER, "its holder may be alive, and renew it"
    assert 0 < projection.client.ttl(LOCK) <= LOCK_SECONDS


@without_leftover_tasks
async def test_lock_is_not_renewed_any_more_when_its_job_has_ended(world: World) -> None:
    """The job ends while a renewal is on its way, which swallows a cancellation."""
    async with world.jobs_held_at(LEAD):
        world.hold(names.PREFIX)
        await eventually(lambda: world.proxy.holding == 2, "the renewal is held back")
        world.hold(expire_lock.sha)
        await eventually(lambda: not world.projection.jobs(), "the job has ended")
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


async def test_bad_event_that_may_recreate_an_organization_stays_a_dead_letter(projection: Projection) -> None:
    """The delete has offset 4. What was bad before it is erased."""
    letters = [letter(crm.ORGANIZATION, offset, "crm.organizations") for offset in (3, 5)]
    await projection.apply(crm.deleted(resources.ORGANIZATION, 2).record(4))
    assert await without_deleted(projection.store, letters) == letters
    await dead_letters.park(projection.store, letters)
    await jobs.run_all(projection.writing, projection.settings)
    assert projection.client.hkeys(names.DEAD_LETTERS) == [letters[1].field.encode()]


async def test_erasure_ends_before_the_dead_letters_of_a_recreated_organization(world: World) -> None:
    """The replay may have stored them again by now."""
    own = f"{crm.ORGANIZATION}:{crm.LEAD}"
    await dead_letters.park(world.projection.store, [letter(own)])
    async with world.jobs_held_at(b"HSCAN"):
        await apply(world.projection.store, [intent_of(crm.organization(3).record(2))], ids(1))
    assert keys_of_letters(world.projection) == {own}


async def test_job_without_an_event_is_run(projection: Projection) -> None:
    """As versions before this one stored it."""
    await projection.apply(crm.deleted(resources.ORGANIZATION, 1).record(0))
    projection.client.delete(names.JOBS)
    projection.client.set(LEAD, "left over")
    await projection.store.add_jobs([ERASE])
    await jobs.run_all(projection.writing, projection.settings)
    assert (projection.client.exists(LEAD), projection.jobs()) == (0, set())


async def test_act_that_comes_while_the_first_turn_lasts_is_logged(
    alone: Projection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    control.write(alone.client)
    turn = Keeper(alone.settings, alone.writing)._turn
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Keeper, "_finish_drops", lambda *_: acts.note(alone.store, Act("drop", [], "me")))
        await turn()
    with caplog.at_level("INFO"):
        await turn()
    assert caplog.text.count("an operator has acted") == 1


class Kept:
    """A keeper whose turns the test starts, on a Leadview without lines: the test stores the positions."""

    def __init__(self, leadview: Leadview, store: Store, settings: ProjectorSettings) -> None:
        self.leadview = leadview
        self.store = store
        self.settings = settings
        self.redis: Any = leadview.redis
        self.writing = Writing(store, Sessions(store))
        self.turn = Keeper(settings, self.writing)._turn

    async def apply(self, *records: Record) -> None:
        for record in records:
            await apply(self.store, [intent_of(record)], ids(1))

    def apply_all(self) -> None:
        for partition, end in self.leadview.topics.end_offsets.items():
            self.redis.hset(names.CONTROL, names.position(*partition), f"{end} 0 0 -1 -")


@pytest.fixture
async def kept(leadview: Leadview) -> AsyncIterator[Kept]:
    settings = load(ProjectorSettings, leadview.environment())
    store = Store(settings)
    yield Kept(leadview, store, settings)
    await store.close()


@pytest.mark.apache
async def test_end_offsets_are_read_again_if_another_projector_was_first(kept: Kept) -> None:
    """Redis is emptied, and filled again up to the end offsets that this keeper read first."""
    kept.leadview.publish(crm.lead(1))
    await kept.turn()
    kept.redis.flushall()
    await copies.current(kept.store)
    kept.apply_all()
    kept.leadview.publish(crm.lead(1, id=crm.OTHER_LEAD), crm.contact(1))
    await kept.turn()
    assert not kept.leadview.is_served(), "the API would return 404 for a lead that exists"


@pytest.mark.apache
async def test_drop_whose_command_died_is_finished(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("projector.upkeep.keeper._SWEEP_SECONDS", 0.0)
    control.write(kept.redis, live=2, written=(2,), dropping=(1,))
    left = names.document(resources.LEAD, OWNER, generation(1), crm.LEAD)
    kept.redis.set(left, b"")
    await kept.turn()
    assert kept.redis.exists(left), "its command may still be at work"
    await kept.turn()
    assert not kept.redis.exists(left)
    assert kept.leadview.state().known == {*ids(2)}


@pytest.mark.apache
async def test_shard_is_complete_while_an_organization_is_still_replayed(kept: Kept) -> None:
    """Others do not wait for it. The organization itself is answered with 503 (`test_recreated.py`)."""
    kept.leadview.publish(crm.deleted(resources.ORGANIZATION, 1), crm.lead(1), crm.organization(2))
    await copies.current(kept.store)
    await kept.apply(crm.deleted(resources.ORGANIZATION, 1).record(0), crm.organization(2).record(1))
    assert kept.redis.smembers(names.JOBS)
    kept.apply_all()
    await kept.turn()
    assert kept.leadview.is_served()
    assert (await jobs._head(kept.store, OWNER))[1] == b"R", "it is due to be replayed"


@pytest.mark.apache
@pytest.mark.parametrize(
    "dropped",
    [
        pytest.param(
            names.document(resources.CONTACT, OWNER, generation(1), crm.CONTACT),
            id="a contact, and with it the index of its first lead",
        ),
        pytest.param(names.contact_leads(OWNER, generation(1), crm.CONTACT), id="the index of its other leads"),
        pytest.param(names.document(resources.LEAD, OWNER, generation(1), crm.LEAD), id="a lead"),
        pytest.param(names.api_key(OWNER, crm.key_hash(1)), id="what an API key is looked up by"),
        pytest.param(names.api_key_entity(OWNER, crm.API_KEY), id="an API key"),
    ],
)
async def test_erasure_that_was_overtaken_leaves_nothing_wrong(kept: Kept, dropped: bytes) -> None:
    """The organization is recreated when the first batch of its keys is gone: the keys that are left show the same
    events as the records that are read again."""
    messages = [crm.contact(1), crm.lead(1), crm.lead(1, id=crm.OTHER_LEAD), crm.api_key(1)]
    await control.complete(kept.store)
    kept.leadview.publish_all(messages)
    await kept.apply(crm.organization(1).record(0), *(each.record(at) for at, each in enumerate(messages)))
    before = stored.values(kept.redis)
    await kept.apply(crm.deleted(resources.ORGANIZATION, 2).record(1))
    assert await jobs._drop(kept.store, OWNER, [dropped]) > 0
    await kept.apply(crm.organization(3).record(2))
    await jobs.run_all(kept.writing, kept.settings)
    stored.assert_consistent(kept.redis)
    assert stored.documents(kept.redis).keys() == before.keys()
    assert kept.redis.exists(names.api_key(OWNER, crm.key_hash(1)))
    await kept.apply(crm.contact(2, first_name="Grace").record(9))
    stored.assert_consistent(kept.redis)


@pytest.mark.apache
async def test_bad_records_of_a_recreated_organization_are_parked_again(kept: Kept) -> None:
    bad = msgspec.structs.replace(crm.lead(1), value=b"{")
    others = msgspec.structs.replace(crm.lead(1, organization_id=crm.OTHER_ORGANIZATION), value=b"{")
    [record] = [record for record in kept.leadview.publish(bad, others) if record.key == bad.key]
    for event in (crm.deleted(resources.ORGANIZATION, 1).record(0), crm.organization(2).record(1)):
        await kept.apply(event)
        await jobs.run_all(kept.writing, kept.settings)
    field = names.dead_letter(record.topic, record.partition, record.offset)
    assert list(kept.redis.hgetall(names.DEAD_LETTERS)) == [field.encode()]
    assert (kept.redis.getrange(OWNER, 0, 0), kept.redis.getrange(OWNER, 22, 22)) == (b"L", b"-")


async def test_bad_revocation_is_known_however_many_other_dead_letters_there_are(alone: Projection) -> None:
    """That a revoked key may still work is what an operator must learn first."""
    others = [letter(f"{crm.OTHER_ORGANIZATION}:{crm.uuid(offset)}", offset) for offset in range(10_001)]
    bad = letter(f"{crm.ORGANIZATION}:{crm.API_KEY}", topic="crm.api-keys")
    await dead_letters.park(alone.store, [*others, bad])
    control.write(alone.client)
    observed = (await observe(alone.store, alone.settings)).redis
    assert observed
    assert [found.key for found in observed.bad_access] == [bad.key]


async def test_very_many_dead_letters_are_looked_through_less_often(alone: Projection) -> None:
    others = [letter(f"{crm.OTHER_ORGANIZATION}:{crm.uuid(offset)}", offset) for offset in range(10_001)]
    await dead_letters.park(alone.store, others)
    of_access = dead_letters.OfAccess(alone.store, alone.settings)
    alone.client.config_resetstat()
    await of_access.look(len(others))
    scans = calls_of(alone.client, "hscan")
    assert scans <= 2 * 2 * len(others) / 1_000
    await of_access.look(len(others))
    assert calls_of(alone.client, "hscan") == scans


async def test_dead_letters_that_were_not_looked_at_are_unknown_and_not_none(alone: Projection) -> None:
    """The newest record of each entity is bad, or was: too many to look at all of them again and again."""
    count = dead_letters.MOST_TO_JUDGE + 1
    kind = alone.settings.topic_prefix + resources.LEAD.topic
    await dead_letters.park(
        alone.store,
        [letter(f"{crm.OTHER_ORGANIZATION}:{crm.uuid(it)}", it, topic=kind) for it in range(count + 5 * SLICE)],
    )
    control.write(alone.client)
    found = await observe(alone.store, alone.settings)
    assert found.redis
    assert len(found.redis.newest_bad) + found.redis.unjudged == count + 5 * SLICE
    assert found.redis.unjudged > 0
    said = [f"{say(it)} {say(it).detail}" for it in problems(found)]
    not_known = f"{found.redis.unjudged:,}"
    assert any(f"Of {not_known} more dead letters it is not known" in text for text in said), said
    assert any(f"; of {not_known} it is not known whether readers see an older state" in text for text in said), said


async def test_comparison_says_that_some_differences_were_looked_at_once(alone: Projection) -> None:
    for id_ in (crm.LEAD, crm.OTHER_LEAD):
        await apply(alone.store, [intent_of(crm.lead(id=id_).record())], ids(1))
    said = "1 of those that differ were looked at once: they may have been changing"
    for most, notes in ((2, []), (1, [said])):
        found = await compare.compare(alone.store, generation(1), generation(2), most=most)
        assert (found.missing, found.notes) == (2, notes)


OTHER_KEYS = 5_000


def deletions(count: int) -> list[str]:
    return [crm.uuid(0x5000 + number) for number in range(count)]


async def with_deleted(projection: Projection, organization_ids: Sequence[str]) -> None:
    """Store documents of another organization, and of these, which are deleted then."""
    await control.complete(projection.store)
    for start in range(0, OTHER_KEYS, 500):
        records = [crm.lead(id=crm.uuid(0x9000 + start + number)).record(number) for number in range(500)]
        await projection.apply(*records)
    for organization_id in organization_ids:
        await projection.apply(crm.lead(organization_id=organization_id).record(0))
        await projection.apply(crm.deleted(resources.ORGANIZATION, 2, organization_id=organization_id).record(0))


def scans_of_a_pass(client: Any) -> int:
    """Returns how often SCAN is called in a pass over all keys, and resets the count."""
    client.config_resetstat()
    for _ in client.scan_iter(count=100):
        pass
    scans = calls_of(client, "scan")
    client.config_resetstat()
    return scans


@pytest.mark.parametrize("count", [1, 20])
async def test_deletions_share_the_passes_over_all_keys(alone: Projection, count: int) -> None:
    await with_deleted(alone, deletions(count))
    one_pass = scans_of_a_pass(alone.client)
    await jobs.run_all(alone.writing, alone.settings)
    assert alone.jobs() == set()
    assert calls_of(alone.client, "scan") <= 2 * one_pass, "two passes, however many were deleted"
    for organization_id in deletions(count):
        owner = names.organization(organization_id)
        assert list(alone.client.scan_iter(names.of_organization(owner))) == []


async def test_erasure_that_was_cut_off_continues_where_it_was(
    alone: Projection, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "_STORE_SECONDS", 0.0)
    await with_deleted(alone, deletions(2))
    one_pass = scans_of_a_pass(alone.client)
    settings = ProjectorSettings(redis_url=proxy.url)
    store = Store(settings)
    running = asyncio.create_task(jobs.run_all(Writing(store, Sessions(store)), settings))
    await eventually(lambda: calls_of(alone.client, "scan") > one_pass / 2, "half of a pass is done")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await store.close()
    cut_off = calls_of(alone.client, "scan")
    assert alone.client.hlen(names.ERASURES) == 1
    await jobs.run_all(alone.writing, alone.settings)
    assert (alone.jobs(), alone.client.exists(names.ERASURES)) == (set(), 0)
    # In vain, they would add half a pass. A table of Redis that grows meanwhile adds some.
    assert calls_of(alone.client, "scan") < 2.25 * one_pass, f"the {cut_off} were not in vain"
    for organization_id in deletions(2):
        assert list(alone.client.scan_iter(names.of_organization(names.organization(organization_id)))) == []


async def test_erasure_asks_the_server_of_its_slot(sharded: Projection, cluster: RedisCluster) -> None:
    """Also the one to which the slot is being moved, and no other."""
    organization_id = crm.ORGANIZATION
    owner, slot = names.organization(organization_id), names.tag_slot(names.tag(OWNER))
    await with_deleted(sharded, [])
    await sharded.apply(*(crm.lead(id=crm.uuid(number)).record(number) for number in range(1, 20)))
    source = cluster.owner(slot)
    [target, third] = [primary for primary in cluster.primaries if primary is not source]
    await sharded.apply(crm.deleted(resources.ORGANIZATION, 2).record(0))
    with cluster.moving(slot, target) as move:
        move(2)
        for primary in cluster.primaries:
            with primary.client() as client:
                client.config_resetstat()
        assert {str(node) for node in await sharded.store.nodes_of(owner + b"-")} == {
            f"127.0.0.1:{urlsplit(server.url).port}" for server in (source, target)
        }
        move()
    await jobs.run_all(sharded.writing, sharded.settings)
    left = [key for primary in cluster.primaries for key in keys_of(primary, names.of_organization(owner))]
    assert (left, sharded.jobs()) == ([], set())
    with third.client() as client:
        assert calls_of(client, "scan") <= 1  # that of this test


def keys_of(server: RedisServer, pattern: bytes) -> list[bytes]:
    with server.client() as client:
        return list(client.keys(pattern))


@pytest.mark.apache
async def test_replays_come_first_and_share_one_reading(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers wait for a replay. Nobody waits for an erasure."""
    recreated, deleted = deletions(3), deletions(6)[3:]
    kept.leadview.publish_all([crm.lead(organization_id=id_) for id_ in recreated])
    await control.complete(kept.store)
    for id_ in (*recreated, *deleted):
        await kept.apply(crm.deleted(resources.ORGANIZATION, 1, organization_id=id_).record(0))
    for id_ in recreated:
        await kept.apply(crm.organization(2, organization_id=id_).record(1))
    done: list[str] = []
    monkeypatch.setattr(jobs.logger, "info", lambda _, extra: done.append(extra["organization"]))
    readings, in_place = [0], reapply.in_place

    async def counted(*words: Any, **named: Any) -> int:
        readings[0] += 1
        return await in_place(*words, **named)

    monkeypatch.setattr(reapply, "in_place", counted)
    await jobs.run_all(kept.writing, kept.settings)
    assert (sorted(done[:3]), sorted(done[3:])) == (recreated, deleted)
    assert readings == [1]
    assert not kept.redis.exists(names.JOBS)
    assert len(stored.documents(kept.redis)) == 3


@pytest.mark.apache
async def test_one_projector_does_what_one_does_for_all(kept: Kept) -> None:
    """The others look less often for what any of them may do. If it ends, another one takes its place."""
    kept.leadview.topics.create()
    await control.complete(kept.store)
    stops = [Stop(), Stop()]
    duties = [Duty(kept.settings, kept.writing) for _ in stops]
    running = [asyncio.create_task(duty.run(stop)) for duty, stop in zip(duties, stops, strict=True)]

    def pauses() -> list[float]:
        return [duty.often(1.0) for duty in duties]

    await eventually(lambda: sorted(pauses()) == [1.0, 5.0], "one has the duty")
    await eventually(lambda: kept.redis.exists(names.AS_OF), "it measures Data-As-Of")
    first, other = sorted(range(2), key=lambda number: pauses()[number])
    stops[first].set()
    await running[first]
    assert not kept.redis.exists(names.DUTY_LOCK), "it is given back at once"
    await eventually(lambda: duties[other].often(1.0) == 1.0 and kept.redis.exists(names.DUTY_LOCK), "the other has it")
    stops[other].set()
    await running[other]


@pytest.mark.apache
@pytest.mark.parametrize("lost", [Faults(refusing=True), Faults(stalled=True)], ids=["cut off", "silent"])
async def test_projector_that_loses_kafka_gives_the_duty_up(
    tmp_path: Path, own_redis: RedisServer, lost: Faults
) -> None:
    """It reaches Redis still, and another one reaches both."""
    with faulty_proxy(0) as way, own_redis.client() as client, ExitStack() as stack:
        named = Login("PLAINTEXT", {}, named_ports=[way.port])
        broker = stack.enter_context(ApacheKafka.start(tmp_path / "kafka", login=named))
        way.server_port = int(broker.sasl_servers.rpartition(":")[2])
        Topics(Kafka("apache", broker.bootstrap_servers, broker.create_topic), "crm.").create(partitions=1)
        stop, duties, running = Stop(), [], []
        async with AsyncExitStack() as programs:
            for brokers in (f"127.0.0.1:{way.port}", broker.bootstrap_servers):
                settings = ProjectorSettings(redis_url=own_redis.url, kafka_bootstrap_servers=brokers)
                here = await programs.enter_async_context(writing(settings, "run"))
                await control.complete(here.store)
                duties.append(Duty(settings, here))
                running.append(asyncio.create_task(duties[-1].run(stop)))
                await eventually(lambda: client.exists(names.AS_OF), "the first one measures Data-As-Of")
            first, second = duties
            await eventually(lambda: (first.often(1.0), second.often(1.0)) == (1.0, 5.0), "both have looked")
            way.faults = lost
            if lost.refusing:
                way.reset_all()
            await eventually(lambda: second.often(1.0) == 1.0, "the other one has the duty")
            client.delete(names.AS_OF)
            await eventually(lambda: client.exists(names.AS_OF), "it measures Data-As-Of")
            assert first.often(1.0) == 5.0
            stop.set()
            way.faults = Faults()
            await asyncio.gather(*running)
