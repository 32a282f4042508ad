"""What is served, what is written and what was dropped cannot disagree: the control record on real servers."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from msgspec.structs import replace

from devstack.child import Child
from devstack.fault_proxy import Faults, faulty_proxy
from devstack.ports import free_port
from devstack.redis_cluster import RedisCluster
from projector.errors import Refused, Superseded, Unavailable
from projector.ledger import copies, writers
from projector.ledger.control import Change, ControlRecord, Generation, State
from projector.ledger.writers import Sessions
from projector.mapping import VERSION
from projector.rebuild import generations, replay
from projector.redis.store import Store
from projector.upkeep import dead_letters, reapply
from schemas import names, resources
from schemas.api_keys import key_hash, mint, organization_tag
from schemas.control import GenerationId, number_of
from schemas.heartbeat import SILENT_MS, Condition
from schemas.settings import ProjectorSettings
from tests.harness import control, crm
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.generations import any_tag, generation, ids, numbers, pattern
from tests.harness.histories import Changes
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask
from tests.harness.projection import Opened, Projection, open_projection
from tests.harness.services import RedisService, client_of
from tests.harness.waiting import PATIENCE_SECONDS, eventually, wait_until

KEY = mint(crm.ORGANIZATION)
ACCESS = (crm.organization(1), crm.api_key(1, hash=key_hash(KEY)))
OWNER = names.organization(crm.ORGANIZATION)


@contextmanager
def standing_still(child: Child) -> Iterator[None]:
    """The process does nothing until the block ends."""
    os.kill(child.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(child.pid, signal.SIGCONT)


def settings_of(leadview: Leadview) -> ProjectorSettings:
    return ProjectorSettings(
        redis_url=leadview.environment()["LEADVIEW_REDIS_URL"],
        kafka_bootstrap_servers=leadview.kafka.bootstrap_servers,
        topic_prefix=leadview.prefix,
    )


def lead_status(api: ApiServer, lead_id: str = crm.LEAD) -> int:
    return api.get(LEADS + lead_id, key=KEY).status


@pytest.mark.long
@pytest.mark.apache
async def test_any_shard_is_emptied_after_a_promotion(
    leadview_on_cluster: Leadview, three_primaries: RedisCluster
) -> None:
    """Each shard in turn, also the home of the control record: everything comes back into the generation that is
    served,
    and meanwhile the API answers 503 for the shard's organizations, and only for these."""
    leadview = leadview_on_cluster
    leadview.publish(*ACCESS, crm.contact(1), crm.lead(1))
    leadview.publish_all(Changes(leads=40, contacts=20, organization=crm.OTHER_ORGANIZATION).initial())
    projector = leadview.start("run")
    leadview.wait_until_served()
    assert leadview.run("rebuild", "--promote", "--max-latency", "0").status == 0
    assert leadview.run("drop", "1").status == 0
    own = three_primaries.owner(names.tag_slot(organization_tag(crm.ORGANIZATION).encode()))
    with leadview.api() as api:
        assert lead_status(api) == 200
        for primary in three_primaries.primaries:
            with standing_still(projector):
                with primary.client() as client:
                    client.flushall()
                for _ in range(5):
                    assert lead_status(api) == (503 if primary is own else 200)
                    assert lead_status(api, crm.uuid(0xDEAD)) == (503 if primary is own else 404)
                assert "not complete: 1 of the 3 parts (shards) of Redis" in leadview.run("status")
            await eventually(leadview.is_served, "everything is served again")
            await eventually(lambda: leadview.documents(2) == leadview.expected(), "all documents are back")
            assert (number_of(leadview.state().live), numbers(leadview.state().written)) == (2, [2])
            await eventually(lambda: lead_status(api) == 200, "the API serves the shard again")
    assert leadview.documents(1) == {}
    leadview.publish(crm.lead(2, stage="STALE"))
    await eventually(lambda: leadview.documents(2) == leadview.expected(), "later records are applied")


@pytest.mark.apache
def test_a_sleeping_writer_does_not_bring_back_what_was_dropped(leadview: Leadview) -> None:
    """A proxy holds the write of a lead back, so the projector is in the middle of a batch. It stands still until the
    former generation is dropped. Then the write is let through."""
    held = crm.uuid(0xF00D)
    leadview.publish(*ACCESS, crm.contact(1), crm.lead(1))
    with faulty_proxy(urlsplit(leadview.environment()["LEADVIEW_REDIS_URL"]).port or 6379) as proxy:
        projector = leadview.start("run", redis_url=f"redis://127.0.0.1:{proxy.port}/0")
        leadview.wait_until_served()
        assert leadview.run("rebuild", "--promote", "--max-latency", "0").status == 0
        proxy.faults = Faults(held=any_tag(names.document(resources.LEAD, OWNER, generation(1), held)))
        leadview.publish(crm.lead(1, id=held))
        wait_until(lambda: proxy.holding > 0, "the projector is in the middle of a batch")
        with standing_still(projector):
            done = leadview.run("drop", "1")
            assert done.status == 0, done.output
            proxy.faults = Faults()
        wait_until(lambda: leadview.documents(2) == leadview.expected(), "the projector has begun the batch again")
    assert list(leadview.redis.scan_iter(pattern(1))) == []
    assert numbers(leadview.state().known) == [2]


@pytest.mark.apache
def test_a_batch_from_before_redis_was_emptied_leaves_nothing(leadview: Leadview) -> None:
    """A proxy holds the write of a lead back. Redis is emptied, and the same projector begins another control record,
    which does not know all generations of that write. Then the write is let through."""
    held = crm.uuid(0xF00D)
    leadview.publish(*ACCESS, crm.contact(1), crm.lead(1))
    with faulty_proxy(urlsplit(leadview.environment()["LEADVIEW_REDIS_URL"]).port or 6379) as proxy:
        leadview.start("run", redis_url=f"redis://127.0.0.1:{proxy.port}/0")
        leadview.wait_until_served()
        assert leadview.run("rebuild", "--max-latency", "0").status == 0
        before = leadview.state()
        assert numbers(before.written) == [1, 2]
        proxy.faults = Faults(held=any_tag(names.document(resources.LEAD, OWNER, generation(2), held)))
        leadview.publish(crm.lead(1, id=held))
        wait_until(lambda: proxy.holding > 0, "the projector is in the middle of a batch")
        leadview.redis.flushall()
        wait_until(lambda: leadview.redis.exists(names.CONTROL), "another record has begun")
        proxy.faults = Faults()
        leadview.wait_until_served()
        live = number_of(leadview.state().live)
        wait_until(lambda: leadview.documents(live) == leadview.expected(), "all documents are back")
    wait_until(lambda: numbers(leadview.state().known) == [live], "nothing is left to drop", 2 * PATIENCE_SECONDS)
    assert _generations(leadview.redis) == {live}


def _generations(client: Any) -> set[int]:
    """Returns the generations that have keys."""
    found = map(names.IN_GENERATION.fullmatch, client.scan_iter(names.ALL))
    return {number_of(GenerationId(match[2].decode())) for match in found if match}


async def test_the_first_record_drops_what_was_left(projection: Projection) -> None:
    """Nothing is deleted before there is a record: another program may have begun one, whose documents these are."""
    await projection.apply(crm.lead(1).record(), generations=(1, 3))
    record = await copies.current(projection.store)
    assert (number_of(record.state.live), record.state.dropping, record.state.last) == (4, ids(1, 3), 4)
    assert _generations(projection.client) == {1, 3}
    for old in record.state.dropping:
        await generations.sweep(projection.writing, await copies.current(projection.store), old)
    assert _generations(projection.client) == set()
    assert numbers((await copies.current(projection.store)).state.known) == [4]


@pytest.mark.apache
def test_a_drop_whose_command_died_is_finished_by_a_projector(leadview: Leadview) -> None:
    leadview.publish(*ACCESS, crm.contact(1), crm.lead(1))
    leadview.start("run")
    leadview.wait_until_served()
    held = names.document(resources.LEAD, OWNER, leadview.generation(1), crm.LEAD)
    assert leadview.run("rebuild", "--promote", "--max-latency", "0").status == 0
    with faulty_proxy(urlsplit(leadview.environment()["LEADVIEW_REDIS_URL"]).port or 6379) as proxy:
        proxy.faults = Faults(held=b"UNLINK")
        dropping = leadview.start("drop", "1", redis_url=f"redis://127.0.0.1:{proxy.port}/0")
        wait_until(lambda: proxy.holding > 0, "the drop is about to delete keys")
        dropping.kill()
    assert leadview.redis.exists(held)
    assert numbers(leadview.state().dropping) == [1]
    wait_until(
        lambda: numbers(leadview.state().known) == [2], "a projector has finished the drop", 2 * PATIENCE_SECONDS
    )
    assert list(leadview.redis.scan_iter(pattern(1))) == []


def next_of(record: ControlRecord) -> GenerationId:
    assert record.state.next
    return record.state.next


async def test_a_failover_brings_back_a_dropped_generation(redis_shards: RedisService) -> None:
    """One shard goes back to a time before a drop: its keys of that generation are dropped once more."""
    async with open_projection(redis_shards) as projection:
        record = await generations.add(projection.store, await control.complete(projection.store))
        await copies.mark_filled(projection.store, record, record.copies, (second := next_of(record),), {})
        record = await generations.flip(projection.store, await copies.current(projection.store), second)
        await projection.apply(crm.lead(1).record(), generations=(1, 2))
        tag = next(tag for tag in record.copies if tag != names.HOME)
        name = names.copy(names.CONTROL, tag)
        before = projection.client.hgetall(name)
        record = await generations.retire(projection.store, record, generation(1))
        await generations.sweep(projection.writing, record, generation(1))
        assert numbers((await copies.current(projection.store)).state.known) == [2]

        projection.client.delete(name)
        projection.client.hset(name, mapping=before)
        record = await copies.current(projection.store)
        assert (record.state.dropping, record.state.live) == (ids(1), second), "it has to be swept again"
        await generations.sweep(projection.writing, record, generation(1))
        assert numbers((await copies.current(projection.store)).state.known) == [2]


async def test_a_record_is_found_whatever_the_tags_of_its_copies_are(redis_shards: RedisService) -> None:
    """Slots were moved, so the only copy is where nobody looks at first. No other record may begin beside it."""
    async with open_projection(redis_shards) as projection:
        client, store = projection.client, projection.store
        record = await control.complete(store)
        stored = client.hgetall(names.CONTROL)
        client.delete(*(names.copy(names.CONTROL, tag) for tag in record.copies))
        elsewhere = names.slot_tag(1)
        assert elsewhere not in record.copies
        client.hset(names.copy(names.CONTROL, elsewhere), mapping=stored | {b"copies": elsewhere})
        assert (await copies.current(store)).stamp.lineage == record.stamp.lineage


async def test_a_shard_that_went_back_to_a_time_before_the_live_generation_is_filled_again(
    redis_shards: RedisService,
) -> None:
    async with open_projection(redis_shards) as projection:
        record = await control.complete(projection.store)
        tag = next(tag for tag in record.copies if tag != names.HOME)
        name = names.copy(names.CONTROL, tag)
        before = projection.client.hgetall(name)
        record = await generations.add(projection.store, record)
        await copies.mark_filled(projection.store, record, record.copies, (second := next_of(record),), {})
        record = await generations.flip(projection.store, await copies.current(projection.store), second)
        assert record.serves

        projection.client.delete(name)
        projection.client.hset(name, mapping=before | {b"crm.leads:0": b"50 1 1 -1 -"})
        record = await copies.current(projection.store)
        went_back = record.copies[tag]
        assert went_back is not None
        assert not went_back.serves, "the API answers 503 for its organizations"
        assert went_back.positions == {}, "the lines read the topics again from the beginning"
        assert went_back.unfilled == (generation(1), second)
        assert not record.serves


def newer(number: int) -> Change:
    """Returns a change of the control record: one more generation, which requires a newer mapping."""

    def compute(state: State) -> State:
        known = state.generations | {generation(number): Generation(VERSION + 1, "2026-01-01T00:00:00Z")}
        return replace(state, written=(*state.written, generation(number)), generations=known, last=number)

    return compute


async def test_no_program_writes_a_generation_of_a_newer_mapping(projection: Projection) -> None:
    """Neither a line, nor the replay of an organization, nor a redrive. Access depends on no mapping."""
    record = await control.complete(projection.store)
    await copies.change(projection.store, record, newer(2))
    sessions = projection.writing.sessions
    with pytest.raises(Superseded, match=f"generation 2 requires mapping version {VERSION + 1}"):
        await sessions.open()
    assert (await sessions.open(documents=False)).generations == ids(1, 2)
    with pytest.raises(Superseded):
        await dead_letters._apply(projection.writing, crm.lead(1).record())
    assert await dead_letters._apply(projection.writing, crm.api_key(1).record()) == (
        dead_letters.Redriven.APPLIED,
        None,
    )


@pytest.mark.apache
async def test_the_replay_of_an_organization_is_left_to_a_newer_program(leadview: Leadview) -> None:
    leadview.publish(crm.contact(1))
    settings = settings_of(leadview)
    async with writers.writing(settings, "test") as writing:
        record = await control.complete(writing.store)
        await copies.change(writing.store, record, newer(2))
        with pytest.raises(Superseded):
            await reapply.in_place(writing, settings, crm.ORGANIZATION)
    assert leadview.documents(1) == {}


@pytest.mark.apache
async def test_a_key_is_revoked_while_documents_stand_by(leadview: Leadview) -> None:
    """A deployment was rolled back: the documents wait for the newer program, but a revoked key does not. The health
    says
    what is wrong."""
    port = free_port()
    leadview.publish(*ACCESS, crm.contact(1), crm.lead(1))
    leadview.start("run", metrics_port=port)
    leadview.wait_until_served()
    store = Store(settings_of(leadview))
    await copies.change(store, await copies.current(store), newer(2))
    await store.close()
    await eventually(lambda: ask(port, "/healthz")[0] == 503, "the health says that something is wrong")
    [problem] = ask(port, "/healthz")[1]["problems"]
    assert problem.startswith("line documents is standing by: generation 2 requires mapping version")
    with leadview.api() as api:
        assert lead_status(api) == 200
        leadview.publish(crm.api_key(2, hash=key_hash(KEY), status="revoked"), crm.lead(2, stage="STALE"))
        await eventually(lambda: lead_status(api) == 401, "the key is revoked")
    done = leadview.run("status", "--json")
    assert done.status == 1, done.output
    status = orjson.loads(done.stdout)
    [writer] = status["writers"]
    assert writer["lines"]["documents"].startswith("standing by")
    assert writer["lines"]["access"] == "running"
    assert "line documents is standing by: generation 2 requires mapping version" in status["verdict"]


@pytest.mark.apache
async def test_the_target_of_a_rebuild_is_the_end_of_the_topics(leadview: Leadview) -> None:
    """Positions may be low because a shard went back, and higher than what is written in the new generation."""
    leadview.publish_all(crm.lead(1, id=crm.uuid(n)) for n in range(30))
    settings = settings_of(leadview)
    store = Store(settings)
    await control.complete(store)
    leadview.redis.hset(names.CONTROL, f"{leadview.topics.name(resources.LEAD)}:0", "2 1 1 -1 -")
    rebuild = await replay.begin(store, settings)
    await store.close()
    ends = {at: end for at, (_, end) in rebuild.ranges.items() if end}
    assert sum(ends.values()) == 30
    assert ends == {at: end for at, end in leadview.topics.end_offsets.items() if end}


async def test_heartbeats(projection: Projection) -> None:
    """A program acknowledges a control record only when none of its sessions is older."""
    assert await writers.read(projection.store) == []
    await control.complete(projection.store)
    running = Condition(lines={"documents": "running"})
    async with writers.writing(projection.settings, "run", lambda: running) as writing:
        session = await writing.sessions.open()
        record = await control.complete(projection.store)
        record = await generations.add(projection.store, record)
        await writing.sessions.look()
        assert writing.sessions.acknowledged == session.stamp < record.stamp

        stored = session.stamp.text.encode()
        await eventually(
            lambda: stored in (projection.client.hget(names.WRITERS, writing.id) or b""), "a heartbeat is stored"
        )
        [writer] = await writers.read(projection.store)
        assert (writer.id, writer.heartbeat.acknowledged) == (writing.id, session.stamp)
        session.close()
        assert writing.sessions.acknowledged == record.stamp
        [writer] = await writers.read(projection.store)
        assert (writer.heartbeat.role, writer.alive) == ("run", True)
        assert writer.heartbeat.lines == {"documents": "running"}
        assert list(await projection.store.writer_connections()) == [writing.id]
        at, _, heartbeat = projection.client.hget(names.WRITERS, writing.id).partition(b" ")
        assert 0 <= writer.age_ms < PATIENCE_SECONDS * 1000
        projection.client.hset(names.WRITERS, "silent", b"%d %b" % (int(at) - SILENT_MS, heartbeat))
        assert {each.id: each.alive for each in await writers.read(projection.store)} == {
            writing.id: True,
            "silent": False,
        }
        projection.client.hdel(names.WRITERS, "silent")
    assert await writers.read(projection.store) == []


async def test_a_batch_is_not_continued_over_a_new_connection_after_a_change(projection: Projection) -> None:
    """What `drop` relies on when it closes the connections of a writer that does not answer."""
    await control.complete(projection.store)
    async with writers.writing(projection.settings, "run") as writing:
        session = await writing.sessions.open()
        clients = [client for found in (await projection.store.writer_connections()).values() for client in found]
        await projection.store.close_connections(clients)
        lead = reapply.write(writing.store, [crm.lead(1).record()], session.generations, fence=session)
        assert (await lead).written == 1, "nothing has changed"
        await generations.add(projection.store, await copies.current(projection.store))
        await projection.store.close_connections(
            [client for found in (await projection.store.writer_connections()).values() for client in found]
        )
        late = crm.lead(1, id=crm.OTHER_LEAD).record(1)
        with pytest.raises(Unavailable):
            await reapply.write(writing.store, [late], session.generations, fence=session)
    assert (resources.LEAD, crm.ORGANIZATION, crm.OTHER_LEAD) not in projection.documents()


async def test_concurrent_changes(projection: Projection) -> None:
    """The second of two commands that have read the same record is refused."""
    record = await control.complete(projection.store)
    first = await generations.add(projection.store, record)
    with pytest.raises(Refused, match="Another command, or a projector, has just changed"):
        await generations.add(projection.store, record)
    assert (await copies.current(projection.store)).stamp == first.stamp


async def test_many_programs_begin_at_once(projection: Projection) -> None:
    """An empty Redis gets one record."""
    stores = [Store(projection.settings) for _ in range(5)]
    found = await asyncio.gather(*(Sessions(store).look() for store in stores))
    assert len({record.stamp.lineage for record in found}) == 1
    assert (await copies.current(projection.store)).agrees
    for store in stores:
        await store.close()


async def test_connections_that_are_opened_at_once_are_confirmed_by_two_readings(redis_server: RedisService) -> None:
    """Not by the reading that is under way when they come: it may have begun before their connections were opened."""
    with faulty_proxy(urlsplit(redis_server.url).port or 6379) as proxy, client_of(redis_server.url) as client:
        store = Store(ProjectorSettings(redis_url=f"redis://127.0.0.1:{proxy.port}/0"))
        try:
            session = (await Opened.open(store)).session
            before = _readings(client)
            proxy.faults = Faults(held=b"HGETALL")
            first = asyncio.create_task(session.confirm())
            await eventually(lambda: proxy.holding > 0, "the record is being read")
            others = [asyncio.create_task(session.confirm()) for _ in range(20)]
            await asyncio.sleep(0)  # all of them begin
            proxy.faults = Faults()
            await asyncio.gather(first, *others)
            assert _readings(client) - before == 2
            control.write(client, live=2)
            for _ in range(2):
                with pytest.raises(Unavailable, match="has changed while a batch"):
                    await session.confirm()
        finally:
            await store.close()


def _readings(client: Any) -> int:
    return int(client.info("commandstats")["cmdstat_hgetall"]["calls"])
