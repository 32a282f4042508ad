"""Nothing destructive without a precondition: what was decided before Redis lost its state, and is carried out after.

Each test holds the late step by construction: a proxy keeps its request, a process stands still, or a task waits.
"""

import asyncio
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from operate.rebuild import generations, replay
from operate.rebuild.replay import Rebuild
from projector.dead_letter import DeadLetter
from projector.errors import Refused, Unavailable
from projector.health.observe import Observer
from projector.kafka.accepted import AcceptedRecords
from projector.ledger import copies, sweep, writers
from projector.ledger.control import ControlRecord
from projector.ledger.writers import Writing
from projector.line.apply import apply
from projector.record import Partition
from projector.redis.scripts import change_control, register_writer
from projector.redis.store import Store
from projector.upkeep import dead_letters, jobs
from schemas import names, resources
from schemas.control import GenerationId
from schemas.faults import Fault
from tests.harness import control, crm
from tests.harness.generations import generation, ids, numbers
from tests.harness.projection import Projection, held_back, intent_of
from tests.harness.services import RedisService
from tests.harness.waiting import eventually

AT = Partition("crm.leads", 0)
LEADS = [crm.lead(1, id=crm.uuid(0x1000 + number)).record(offset=number) for number in range(150)]


def keys_of(client: Any, wanted: GenerationId) -> list[bytes]:
    return list(client.scan_iter(names.of_generation(wanted), count=1000))


async def fill(projection: Projection, *wanted: GenerationId) -> None:
    await apply(projection.store, [intent_of(record) for record in LEADS], wanted)


async def test_delete_that_is_still_under_way_meets_nothing(alone: Projection, redis_server: RedisService) -> None:
    """Redis went back to a late replica's state, so that a number is assigned twice. The connection was never closed,
    so Redis executes the delete."""
    client, store = alone.client, alone.store
    await control.complete(store)
    earlier = client.dump(names.CONTROL)
    record, lost = await control.with_next(store)
    await fill(alone, lost)
    record = await generations.retire(store, record, lost)
    async with held_back(redis_server, b"UNLINK", lambda slow: sweep.sweep(slow, record, lost)):
        client.restore(names.CONTROL, 0, earlier, replace=True)
        _, again = await control.with_next(store)
        assert again.partition(".")[0] == lost.partition(".")[0], "the number is used again"
        await fill(alone, again)
        before = sorted(keys_of(client, again))
    assert sorted(keys_of(client, again)) == before
    assert len(keys_of(client, lost)) < len(before), "the delete was executed"


def go_back(client: Any, offset: int) -> None:
    client.hset(names.CONTROL, names.position(*AT), f"{offset} 1 1 -1 -")


def change_stamp(client: Any, record: ControlRecord) -> None:
    client.hset(names.CONTROL, "stamp", record.stamp.next().text)


@pytest.mark.parametrize(
    ("meanwhile", "filled"),
    [
        pytest.param(lambda _, __: None, True, id="nothing has changed"),
        pytest.param(lambda client, _: go_back(client, 99), False, id="the positions went back"),
        pytest.param(lambda client, _: client.hdel(names.CONTROL, names.position(*AT)), False, id="no position"),
        pytest.param(change_stamp, False, id="the record has changed"),
        pytest.param(lambda client, _: client.hset(names.CONTROL, "incarnation", "x"), False, id="emptied"),
    ],
)
async def test_shard_that_has_changed_is_not_called_complete(
    projection: Projection, meanwhile: Callable[[Any, ControlRecord], None], filled: bool
) -> None:
    """The script judges what the copy says now, not what a keeper has read."""
    control.write(projection.client, filled=())
    go_back(projection.client, 100)
    record = await copies.current(projection.store)
    meanwhile(projection.client, record)
    marked = await copies.mark_filled(projection.store, record, [names.HOME], ids(1), {AT: 100})
    assert marked is filled
    assert control.home(projection.client).filled == (ids(1) if filled else ())


async def test_nothing_is_marked_after_a_failover(projection: Projection) -> None:
    """A command does not count what it has read or deleted before a server restarted or failed over."""
    control.write(projection.client, live=2, written=(2,), dropping=(1,), filled=())
    now = await copies.current(projection.store)
    before = replace(now, replication_epoch=now.replication_epoch - 1)
    for mark in (
        copies.mark_filled(projection.store, before, [names.HOME], ids(2), {}),
        copies.mark_swept(projection.store, before, generation(1)),
    ):
        with pytest.raises(Unavailable, match="restarted or failed over"):
            await mark
    copy = control.home(projection.client)
    assert (copy.filled, copy.swept) == ((), ())


@pytest.mark.parametrize(
    ("offset", "is_emptied", "left"),
    [
        pytest.param(100, False, 0, id="all was replayed"),
        pytest.param(99, False, 3, id="Redis has lost a part"),
        pytest.param(100, True, 1, id="a shard was emptied between the replay and this: the lines fill it"),
    ],
)
async def test_replay_calls_a_shard_complete_only_if_all_was_replayed(
    sharded: Projection, offset: int, is_emptied: bool, left: int
) -> None:
    """The replay fills an emptied shard up to the targets. That is not all: the lines had applied later records."""
    client, store = sharded.client, sharded.store
    record, new = await control.with_next(store)
    if is_emptied:
        client.delete(names.copy(names.CONTROL, next(tag for tag in record.copies if tag != names.HOME)))
    record = await copies.current(store)
    for tag in record.copies:
        client.hset(names.copy(names.rebuild(new), tag), names.position(*AT), f"{offset} 1 1 -1 -")
    await replay._note_filled(store, record, Rebuild(new, {AT: (0, 100)}))
    found = (await copies.current(store)).copies
    assert sum(copy is None or new not in copy.filled for copy in found.values()) == left


async def test_targets_belong_to_the_record_they_were_measured_under(projection: Projection) -> None:
    """Otherwise a program may have written the live generation alone meanwhile, and the targets are too low."""
    store = projection.store
    record, new = await control.with_next(store)
    changed = await copies.change(store, record, lambda state: replace(state, last=state.last + 1))
    assert not await copies.store_targets(store, record, new, {AT: 5})
    assert not projection.client.exists(names.rebuild(new))
    assert await copies.store_targets(store, changed, new, {AT: 7})
    assert await copies.store_targets(store, changed, new, {AT: 9}), "the first one counts"
    assert projection.client.hget(names.rebuild(new), names.target(*AT)) == b"7"


async def test_only_what_is_swept_loses_its_positions(projection: Projection) -> None:
    store, client = projection.store, projection.client
    control.write(client, live=2, written=(2,), dropping=(1,))
    client.hset(names.rebuild(generation(1)), "f", "v")
    record = await copies.current(store)
    await copies.delete_rebuild(store, record, generation(1))
    assert client.exists(names.rebuild(generation(1))), "it is not swept"
    await copies.mark_swept(store, record, generation(1))
    client.hset(names.CONTROL, "incarnation", "x")
    await copies.delete_rebuild(store, record, generation(1))
    assert client.exists(names.rebuild(generation(1))), "the shard was emptied"
    await copies.delete_rebuild(store, await copies.current(store), generation(1))
    assert not client.exists(names.rebuild(generation(1)))


async def test_writer_that_is_alive_again_is_not_forgotten(projection: Projection) -> None:
    await projection.store.run([register_writer(writers=names.WRITERS, writer="alive", heartbeat=b"{}")])
    projection.client.hset(names.WRITERS, "gone", "1000 {}")
    projection.client.hset(names.WRITERS, "from before the clock was set back", "9000000000000 {}")
    await writers.forget_silent(projection.store)
    assert set(projection.client.hgetall(names.WRITERS)) == {b"alive"}


async def test_dead_letter_that_was_parked_again_is_another_one(projection: Projection) -> None:
    """Of a topic that was deleted and created again: the offsets belong to other records."""
    store = projection.store
    old = replace(DeadLetter.of(crm.lead(1).record(), Fault("other")), time=1)
    await dead_letters.park(store, [replace(old, time=2)])
    assert await dead_letters.delete(store, [old]) == 0
    assert await dead_letters.replace(store, [old.accept("known", 1)]) == 0
    assert await dead_letters.all_dead_letters(store) == [replace(old, time=2)]


async def test_the_lock_of_the_accepted_records_belongs_to_its_holder(alone: Projection) -> None:
    """It expired while its holder stood still, and another process has it now."""
    async with AcceptedRecords(alone.settings, alone.store)._locked():
        alone.client.set(names.ACCEPT_LOCK, "another")
    assert alone.client.get(names.ACCEPT_LOCK) == b"another"
    alone.client.delete(names.ACCEPT_LOCK)
    async with AcceptedRecords(alone.settings, alone.store)._locked():
        assert alone.client.exists(names.ACCEPT_LOCK)
    assert not alone.client.exists(names.ACCEPT_LOCK)


@pytest.mark.parametrize(
    ("found", "filled", "left"),
    [
        pytest.param(crm.deleted(resources.ORGANIZATION, 1), True, True, id="due again"),
        pytest.param(None, False, True, id="Redis was emptied: its event may be read again"),
        pytest.param(None, True, False, id="Redis was emptied, and everything was read again"),
        pytest.param(crm.organization(2), True, False, id="recreated"),
    ],
)
async def test_only_a_job_that_is_not_due_is_removed(
    projection: Projection, found: crm.Message | None, filled: bool, left: bool
) -> None:
    control.write(projection.client, filled=(1,) if filled else ())
    if found:
        await projection.apply(found.record())
    await projection.store.add_jobs(["erase x y"])
    await jobs._remove(projection.writing, "erase", crm.ORGANIZATION, ["erase x y"])
    assert ("erase x y" in projection.jobs()) is left


async def test_job_is_not_removed_after_redis_was_emptied(alone: Projection, redis_server: RedisService) -> None:
    """Its removal is under way when another record begins: the connection is closed, and it is not sent again."""
    await control.complete(alone.store)

    def remove(slow: Writing) -> Coroutine[Any, Any, None]:
        return jobs._remove(slow, "erase", crm.ORGANIZATION, ["erase x y"])

    async with held_back(redis_server, b"SREM", remove, writer_id="slow") as removing:
        alone.client.flushall()
        await copies.current(alone.store)
        await alone.store.add_jobs(["erase x y"])
    with pytest.raises(Unavailable):
        await removing
    assert alone.jobs() == {"erase x y"}


async def test_programs_of_other_layouts_do_not_meet(alone: Projection) -> None:
    """Keys as programs of other layouts leave them: this program sees its own ones only, and says that others exist."""
    client, store = alone.client, alone.store
    lead = names.document(resources.LEAD, names.organization(crm.ORGANIZATION), generation(1), crm.LEAD)
    others = {
        b"lv:generations": "live",
        b"lv:{ledger}:positions": "crm.leads:0",
        b"lv:{ledger}:control": "layout",
        b"lv9{ledger}:control": "layout",
        lead.replace(names.PREFIX, b"lv:").replace(b".Test00", b""): "a document of layout 2",
    }
    for name, field in others.items():
        client.hset(name, field, "1")
    record = await copies.current(store)
    assert (record.state.dropping, record.state.last) == ((), 1), "what is left belongs to others"
    assert (await Observer(store, alone.settings)._read_redis([])).other_layouts == [1, 2, 9]
    assert {key async for keys in store.scan(names.ALL) for key in keys} == {
        names.CONTROL,
        names.COMPLETE,
        names.EVICTIONS,
    }
    for name, field in others.items():
        assert client.hgetall(name) == {field.encode(): b"1"}
    client.delete(*others)


# A drop, while Redis loses its state, which must stop it, and while others change the control record.
LEAD = names.document(resources.LEAD, names.organization(crm.ORGANIZATION), generation(1), crm.LEAD)


@pytest.mark.parametrize("back", [pytest.param(True, id="went back"), pytest.param(False, id="emptied")])
async def test_redis_forgets_a_drop(alone: Projection, back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the drop continued, projectors would write no generation and cover no batch, or served keys would be lost."""
    monkeypatch.setattr(sweep, "_ACKNOWLEDGE_SECONDS", inf)
    client = alone.client
    writer = Store(alone.settings, writer_id="slow")  # the drop waits for it before its sweep
    await writer.info("memory")
    control.write(client, live=2, written=(1, 2), previous=1)
    await alone.apply(crm.lead().record(), generations=(1, 2))
    dropping = asyncio.create_task(generations.drop(alone.writing, 1))
    await eventually(lambda: control.home(client).state.dropping == ids(1), "it is being dropped")
    client.flushall()
    if back:
        control.write(client)
    await copies.current(alone.store)
    await alone.apply(crm.lead().record())
    await writer.close()
    with pytest.raises(Refused, match="emptied or went back in time"):
        await dropping
    assert numbers(control.home(client).state.written) == [1]
    assert client.exists(LEAD)


async def test_one_generation_is_always_written(projection: Projection) -> None:
    record = await control.complete(projection.store)
    with pytest.raises(Refused, match="Generation 1 is live"):
        await generations.drop(projection.writing, 1)
    assert (await copies.current(projection.store)).stamp == record.stamp


async def test_redis_is_emptied_in_the_last_pass(projection: Projection) -> None:
    """Nothing is left to sweep, but that does not mean that the drop is done."""
    record = await control.complete(projection.store)
    with pytest.raises(Refused, match="emptied or went back"):
        await sweep.sweep(projection.writing, record, generation(1))


async def _begin_drop(projection: Projection) -> ControlRecord:
    control.write(projection.client, live=2, written=(2,), dropping=(1,))
    await projection.apply(crm.lead().record())
    return await copies.current(projection.store)


async def test_the_last_pass_of_a_drop_finds_nothing(alone: Projection, redis_server: RedisService) -> None:
    """A key that comes to stand behind the cursor, as slots that move make it, is found by another pass."""
    record = await _begin_drop(alone)
    behind = names.document(resources.LEAD, names.organization(crm.OTHER_ORGANIZATION), generation(1), crm.OTHER_LEAD)
    async with held_back(redis_server, b"UNLINK", lambda slow: sweep.sweep(slow, record, generation(1))) as dropping:
        alone.client.set(behind, b"")
    assert await dropping == 3
    assert not alone.client.exists(behind)


@pytest.mark.parametrize("finished", [pytest.param(True, id="finished"), pytest.param(False, id="changed")])
async def test_the_control_record_changes_at_the_end_of_a_drop(
    alone: Projection, redis_server: RedisService, finished: bool
) -> None:
    """A projector finishes the same drop at the same moment, or changes something else: the drop is not refused."""
    record = await _begin_drop(alone)
    async with held_back(
        redis_server, change_control.sha, lambda slow: sweep.sweep(slow, record, generation(1))
    ) as dropping:
        if finished:
            assert await sweep.sweep(alone.writing, record, generation(1)) == 0
        else:
            now = await copies.current(alone.store)
            await copies.change(alone.store, now, lambda state: replace(state, last=state.last + 1))
    assert await dropping == 2
    assert numbers((await copies.current(alone.store)).state.known) == [2]


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(change_control.sha, id="the first change: the comparison is noted"),
        pytest.param(b'"previous":"1', id="the second change: the generation is promoted"),
    ],
)
async def test_drop_ends_at_the_end_of_a_promotion(alone: Projection, redis_server: RedisService, held: bytes) -> None:
    """The generations were compared, which may have taken an hour: the promotion is not refused."""
    control.write(alone.client, written=(1, 2), dropping=(3,))
    async with held_back(
        redis_server, held, lambda slow: generations.verify_and_promote(slow.store, generations.Criteria())
    ) as promoting:
        await sweep.sweep(alone.writing, await copies.current(alone.store), generation(3))
    assert (await promoting).flip == generations.Flip(1, 2)
    state = (await copies.current(alone.store)).state
    assert (state.live, bool(state.generations[generation(2)].verified_at), state.known) == (
        generation(2),
        True,
        {*ids(1, 2)},
    )


async def test_drop_that_is_begun_again_changes_nothing(projection: Projection) -> None:
    record, filling = await control.with_next(projection.store)
    begun = await generations.retire(projection.store, record, filling)
    assert begun.state.dropping == (filling,)
    assert (await generations.retire(projection.store, begun, filling)).stamp == begun.stamp
