"""What is served, what is written and what was dropped cannot disagree: the control record on real servers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from devstack.fault_proxy import Faults
from devstack.redis_cluster import RedisCluster
from operate.rebuild import generations, replay
from projector.errors import Conflict, Refused, Superseded, Unavailable
from projector.ledger import copies, sweep, writers
from projector.ledger.control import ControlRecord, WentBack
from projector.ledger.ledger import Ledger, Sessions
from projector.mapping import VERSION
from projector.record import Partition
from projector.redis.store import Store
from projector.upkeep import dead_letters, jobs, reapply
from schemas import names, resources
from schemas.api_keys import organization_tag
from schemas.control import GenerationId, number_of
from schemas.heartbeat import Condition
from schemas.settings import ProjectorSettings, load
from tests.chaos.core import first
from tests.harness import control, crm
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.generations import generation, ids, numbers
from tests.harness.leadview import Leadview
from tests.harness.projection import Opened, Projection, behind_proxy
from tests.harness.services import RedisService, calls_of, client_of
from tests.harness.waiting import PATIENCE_SECONDS, eventually

ACCESS = (crm.organization(1), crm.api_key(1))
OWNER = names.organization(crm.ORGANIZATION)


def lead_status(api: ApiServer, lead_id: str = crm.LEAD) -> int:
    return api.get(LEADS + lead_id, key=crm.KEY).status


NOT_COMPLETE = "not complete: 1 of the 3 parts (shards) of Redis"


@pytest.mark.long
@pytest.mark.apache
async def test_any_shard_is_emptied_after_a_promotion(
    leadview_on_cluster: Leadview, three_primaries: RedisCluster
) -> None:
    """Each shard in turn, also the home of the control record: everything comes back into the generation that is
    served. Meanwhile the API answers 503 for the shard's organizations, and only for these.
    """
    leadview = leadview_on_cluster
    leadview.publish(*ACCESS, crm.contact(1), crm.lead(1))
    leadview.publish_all(first(crm.OTHER_ORGANIZATION, leads=40, contacts=20))
    projector = leadview.serve()
    assert leadview.run("rebuild", "--promote", "--max-latency", "0").status == 0
    assert leadview.run("drop", "1").status == 0
    own = three_primaries.owner(names.tag_slot(organization_tag(crm.ORGANIZATION).encode()))
    with leadview.api() as api:
        assert lead_status(api) == 200
        for primary in three_primaries.primaries:
            projector.pause()
            with primary.client() as client:
                client.flushall()
            for _ in range(5):
                assert lead_status(api) == (503 if primary is own else 200)
                assert lead_status(api, crm.uuid(0xDEAD)) == (503 if primary is own else 404)
            await eventually(lambda: NOT_COMPLETE in leadview.run("status"), "status has read it in time")
            projector.resume()
            await eventually(leadview.is_served, "everything is served again")
            await eventually(lambda: leadview.documents(2) == leadview.expected(), "all documents are back")
            assert (number_of(leadview.state().live), numbers(leadview.state().written)) == (2, [2])
            await eventually(lambda: lead_status(api) == 200, "the API serves the shard again")
    assert leadview.documents(1) == {}
    leadview.publish(crm.lead(2, stage="STALE"))
    await eventually(lambda: leadview.documents(2) == leadview.expected(), "later records are applied")


def _begin_again(projection: Projection) -> Awaitable[object]:
    projection.client.flushall()
    return copies.current(projection.store)


@pytest.mark.parametrize(
    "meanwhile",
    [
        pytest.param(lambda projection: generations.drop(projection.writing, 1), id="its generation is dropped"),
        pytest.param(_begin_again, id="Redis is emptied"),
    ],
)
async def test_writer_that_sleeps_in_a_batch_leaves_nothing(
    alone: Projection,
    redis_server: RedisService,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[Projection], Awaitable[object]],
) -> None:
    """Its write is held back, and let through when others have closed its connections. Then it tries again."""
    monkeypatch.setattr(sweep, "_ACKNOWLEDGE_SECONDS", 0.0)
    held = names.document(resources.LEAD, OWNER, generation(1), crm.LEAD)
    control.write(alone.client, live=2, written=(1, 2), previous=1)
    async with behind_proxy(redis_server, held, writer_id="slow") as (slow, proxy):
        with await slow.sessions.open() as session:
            batch = [crm.lead(1).record()], session.generations
            writing = asyncio.create_task(reapply.write(slow.store, *batch, fence=session))
            await eventually(lambda: proxy.holding, "it is in the middle of a batch")
            await meanwhile(alone)
            proxy.faults = Faults()
            with pytest.raises(Unavailable):
                await writing
            with pytest.raises(Unavailable, match="the control record has changed"):
                await reapply.write(slow.store, *batch, fence=session)
    assert _generations(alone.client) == set()


def _generations(client: Any) -> set[int]:
    found = map(names.IN_GENERATION.fullmatch, client.scan_iter(names.ALL))
    return {number_of(GenerationId(match[2].decode())) for match in found if match}


async def test_the_first_record_drops_what_was_left(projection: Projection) -> None:
    """Nothing is deleted before there is a record: another program may have begun one, whose documents these are."""
    await projection.apply(crm.lead(1).record(), generations=(1, 3))
    record = await copies.current(projection.store)
    assert (number_of(record.state.live), record.state.dropping, record.state.last) == (4, ids(1, 3), 4)
    assert _generations(projection.client) == {1, 3}
    for old in record.state.dropping:
        await sweep.sweep(projection.writing, await copies.current(projection.store), old)
    assert _generations(projection.client) == set()
    assert numbers((await copies.current(projection.store)).state.known) == [4]


async def promote_another(projection: Projection, record: ControlRecord) -> ControlRecord:
    """Add a generation, which is complete at once, and serve it."""
    record = await generations.add(projection.store, record)
    second = record.state.next
    assert second
    await copies.mark_filled(projection.store, record, record.copies, (second,), {})
    await generations.flip(projection.store, await copies.current(projection.store), second)
    return await copies.current(projection.store)


def other_tag(record: ControlRecord) -> bytes:
    return next(tag for tag in record.copies if tag != names.HOME)


async def test_failover_brings_back_a_dropped_generation(sharded: Projection) -> None:
    """One shard goes back to a time before a drop: its keys of that generation are dropped once more."""
    record = await promote_another(sharded, await control.complete(sharded.store))
    second = record.state.live
    await sharded.apply(crm.lead(1).record(), generations=(1, 2))
    name = names.copy(names.CONTROL, other_tag(record))
    before = sharded.client.hgetall(name)
    record = await generations.retire(sharded.store, record, generation(1))
    await sweep.sweep(sharded.writing, record, generation(1))
    assert numbers((await copies.current(sharded.store)).state.known) == [2]

    sharded.client.delete(name)
    sharded.client.hset(name, mapping=before)
    record = await copies.current(sharded.store)
    assert (record.state.dropping, record.state.live) == (ids(1), second), "it has to be swept again"
    await sweep.sweep(sharded.writing, record, generation(1))
    assert numbers((await copies.current(sharded.store)).state.known) == [2]


async def test_record_is_found_whatever_the_tags_of_its_copies_are(sharded: Projection) -> None:
    """Slots were moved, so the only copy is where nobody looks at first. No other record may begin beside it."""
    client, store = sharded.client, sharded.store
    record = await control.complete(store)
    stored = client.hgetall(names.CONTROL)
    client.delete(*(names.copy(names.CONTROL, tag) for tag in record.copies))
    elsewhere = names.slot_tag(1)
    assert elsewhere not in record.copies
    client.hset(names.copy(names.CONTROL, elsewhere), mapping=stored | {b"copies": elsewhere})
    assert (await copies.current(store)).stamp.lineage == record.stamp.lineage


async def test_shard_that_went_back_to_a_time_before_the_live_generation_is_filled_again(
    sharded: Projection,
) -> None:
    record = await control.complete(sharded.store)
    tag = other_tag(record)
    name = names.copy(names.CONTROL, tag)
    before = sharded.client.hgetall(name)
    record = await promote_another(sharded, record)
    assert record.serves

    sharded.client.delete(name)
    sharded.client.hset(name, mapping=before | {b"crm.leads:0": b"50 1 1 -1 -"})
    record = await copies.current(sharded.store)
    went_back = record.copies[tag]
    assert went_back is not None
    assert not went_back.serves, "the API answers 503 for its organizations"
    assert went_back.positions == {}, "the lines read the topics again from the beginning"
    assert went_back.unfilled == (generation(1), record.state.live)
    assert not record.serves


async def test_no_program_writes_a_generation_of_a_newer_mapping(projection: Projection) -> None:
    """Neither a line, nor the replay of an organization, nor a redrive. Access depends on no mapping."""
    control.write(projection.client, written=(1, 2), mappings={2: VERSION + 1})
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
    settings = load(ProjectorSettings, leadview.environment())
    async with writers.writing(settings, "test") as writing:
        projection = Projection(writing.store, leadview.redis, settings)
        await control.complete(writing.store)
        await projection.apply(crm.organization(1).record(0))
        await projection.apply(crm.deleted(resources.ORGANIZATION, 2).record(1))
        await projection.apply(crm.organization(3).record(2))
        leadview.redis.srem(names.JOBS, *(job for job in projection.jobs() if job.startswith("erase")))
        [job] = projection.jobs()
        control.write(leadview.redis, written=(1, 2), mappings={2: VERSION + 1})
        await jobs.run_all(writing, settings)
        assert projection.jobs() == {job}
        with pytest.raises(Superseded):
            await reapply.in_place(writing, settings, reapply.of_organizations([crm.ORGANIZATION]), resources.RESOURCES)
    assert leadview.documents(1) == {}


@pytest.mark.apache
async def test_the_target_of_a_rebuild_is_the_end_of_the_topics(leadview: Leadview) -> None:
    """Positions may be low because a shard went back, and higher than what is written in the new generation."""
    leadview.publish_all(crm.lead(1, id=crm.uuid(n)) for n in range(30))
    settings = load(ProjectorSettings, leadview.environment())
    store = Store(settings)
    await control.complete(store)
    leadview.redis.hset(names.CONTROL, f"{leadview.topics.name(resources.LEAD)}:0", "2 1 1 -1 -")
    rebuild = await replay.begin(store, settings)
    await store.close()
    ends = {at: end for at, (_, end) in rebuild.ranges.items() if end}
    assert sum(ends.values()) == 30
    assert ends == {at: end for at, end in leadview.topics.end_offsets.items() if end}


async def test_heartbeat_acknowledges_the_oldest_open_session(
    projection: Projection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program acknowledges a control record only when none of its sessions is older."""
    silent_ms = int(PATIENCE_SECONDS * 1000)  # longer than a busy machine stands still
    monkeypatch.setattr(writers, "SILENT_MS", silent_ms)
    assert await writers.read(projection.store) == []
    await control.complete(projection.store)
    running = Condition(lines={"documents": "running"})
    async with writers.writing(projection.settings, "run", lambda: running) as writing:
        session = await writing.sessions.open()
        record = await control.complete(projection.store)
        record = await generations.add(projection.store, record)
        await writing.sessions.look()
        assert writing.sessions.acknowledged == session.stamp < record.stamp

        stamp = session.stamp.text.encode()
        await eventually(
            lambda: stamp in (projection.client.hget(names.WRITERS, writing.store.writer_id) or b""),
            "a heartbeat is stored",
        )
        [writer] = await writers.read(projection.store)
        assert (writer.id, writer.heartbeat.acknowledged) == (writing.store.writer_id, session.stamp)
        session.close()
        assert writing.sessions.acknowledged == record.stamp
        [writer] = await writers.read(projection.store)
        assert (writer.heartbeat.role, writer.alive) == ("run", True)
        assert writer.heartbeat.lines == {"documents": "running"}
        assert list(await projection.store.writer_connections()) == [writing.store.writer_id]
        at, _, heartbeat = projection.client.hget(names.WRITERS, writing.store.writer_id).partition(b" ")
        assert 0 <= writer.age_ms < silent_ms
        projection.client.hset(names.WRITERS, "silent", b"%d %b" % (int(at) - silent_ms, heartbeat))
        assert {each.id: each.alive for each in await writers.read(projection.store)} == {
            writing.store.writer_id: True,
            "silent": False,
        }
        projection.client.hdel(names.WRITERS, "silent")
    assert await writers.read(projection.store) == []


async def test_batch_is_continued_over_a_new_connection_if_nothing_has_changed(projection: Projection) -> None:
    await control.complete(projection.store)
    async with writers.writing(projection.settings, "run") as writing:
        session = await writing.sessions.open()
        [clients] = (await projection.store.writer_connections()).values()
        await projection.store.close_connections(clients)
        lead = reapply.write(writing.store, [crm.lead(1).record()], session.generations, fence=session)
        assert (await lead).written == 1


async def test_second_of_two_concurrent_changes_is_refused(projection: Projection) -> None:
    """The second of two commands that have read the same record is refused. A second rebuild joins the first one; any
    other change meanwhile is a conflict.
    """
    record = await control.complete(projection.store)
    changed = await copies.change(projection.store, record, lambda state: replace(state, last=7))
    with pytest.raises(Conflict):
        await replay.add_next(projection.store, record)
    first = await generations.add(projection.store, changed)
    for _ in range(2):
        with pytest.raises(Refused, match="Another command, or a projector, has just changed"):
            await generations.add(projection.store, record)
        assert (await replay.add_next(projection.store, record)).state.next == first.state.next
        await copies.change(projection.store, first, lambda state: replace(state, last=state.last + 1))
        first = await copies.current(projection.store)
    assert (await copies.current(projection.store)).stamp == first.stamp


async def test_many_programs_begin_at_once(projection: Projection) -> None:
    stores = [Store(projection.settings) for _ in range(5)]
    found = await asyncio.gather(*(Sessions(store).look() for store in stores))
    assert len({record.stamp.lineage for record in found}) == 1
    assert (await copies.current(projection.store)).agrees
    for store in stores:
        await store.close()


async def test_connections_that_are_opened_at_once_are_confirmed_by_two_readings(redis_server: RedisService) -> None:
    """Not by the reading that is under way when they come: it may have begun before their connections were opened."""

    def readings() -> int:
        return calls_of(client, "hgetall")

    async with behind_proxy(redis_server) as (slow, proxy):
        with client_of(redis_server.url) as client:
            session = (await Opened.open(slow.store)).session
            before = readings()
            proxy.faults = Faults(held=b"HGETALL")
            first = asyncio.create_task(session.confirm())
            await eventually(lambda: proxy.holding > 0, "the record is being read")
            others = [asyncio.create_task(session.confirm()) for _ in range(20)]
            await asyncio.sleep(0)  # all of them begin
            proxy.faults = Faults()
            await asyncio.gather(first, *others)
            assert readings() - before == 2
            control.write(client, live=2)
            for _ in range(2):
                with pytest.raises(Unavailable, match="has changed while a batch"):
                    await session.confirm()


@pytest.mark.parametrize("partitions", [4, 800])
async def test_look_at_the_record_costs_the_same_however_many_partitions_there_are(
    alone: Projection, partitions: int
) -> None:
    """While nothing changes: a program that writes looks each second, and a line compares its own positions."""
    await control.complete(alone.store)
    own = {Partition("crm.leads", number): 7 for number in range(4)}
    everything = {f"crm.leads:{number}": "7 1 1 0 -" for number in range(partitions)}
    alone.client.hset(names.CONTROL, mapping=everything)
    sessions = Sessions(alone.store)
    ledger = Ledger(alone.store, sessions)
    before = await sessions.look()
    with await ledger.open() as session:
        alone.client.config_resetstat()
        sent = alone.client.info("stats")["total_net_output_bytes"]
        for _ in range(10):
            assert (await sessions.look()).stamp == before.stamp
            assert await ledger.check(session, own) is None
        stats = alone.client.info("stats")
        commands = alone.client.info("commandstats")
        assert commands["cmdstat_hmget"]["calls"] == 20
        assert "cmdstat_hgetall" not in commands
        assert stats["total_net_output_bytes"] - sent < 30_000, "and nothing of the other partitions is sent"
        alone.client.hset(names.CONTROL, "crm.leads:3", "6 1 1 0 -")
        assert await ledger.check(session, own) == WentBack(["crm.leads:3"])
        alone.client.hset(names.CONTROL, "filled", "")
        assert not (await sessions.look()).serves, "what has changed is seen"
