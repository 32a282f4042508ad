"""Three laws of every projection, against a real Redis, byte for byte with the pure reference:

twice is once · any order ends the same · rebuild from empty equals live
"""

import os
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projector.ledger import late_versions
from projector.record import Record
from projector.reference import Reference
from projector.upkeep import jobs, reapply
from schemas import names, resources
from tests.harness import crm, histories, stored
from tests.harness.expected import documents, documents_of, key_expiries
from tests.harness.generations import ids
from tests.harness.histories import History
from tests.harness.projection import Projection
from tests.service.conftest import everywhere

EXAMPLES = int(os.environ.get("LEADVIEW_TEST_EXAMPLES", "30"))
"""`make test-long` tries many more, of every law on every kind of Redis: then all of them are long."""
pytestmark = [pytest.mark.long] if EXAMPLES > 30 else []
law = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
seeds = st.integers(0, 2**32)


@everywhere
@law
@given(history=histories.histories(), seed=seeds)
async def test_any_order_ends_the_same(projection: Projection, history: History, seed: int) -> None:
    random = _begin(projection, seed)
    await _live(projection, history, random)
    _assert_right(projection, history)
    _assert_reference_has_no_order(history, random)


@everywhere
@law
@given(history=histories.in_the_same_moment(), seed=seeds)
async def test_the_order_between_partitions_is_that_of_kafkas_times(
    projection: Projection, history: History, seed: int
) -> None:
    """Whatever is read first, and whatever the clocks of the producers say. At the same time, the tombstone wins."""
    random = _begin(projection, seed)
    await _apply(projection, history, histories.merged(history, random), random)
    assert projection.documents() == documents_of(history.records())
    _assert_reference_has_no_order(history, random)


@law
@given(history=histories.disorders(), seed=seeds)
async def test_late_versions_are_those_of_the_reference(projection: Projection, history: History, seed: int) -> None:
    random = _begin(projection, seed)
    await _apply(projection, history, histories.merged(history, random), random)
    reference = Reference()
    for record in history.records():
        reference.add(record)
    named = (await late_versions.current(projection.store, ids(1)[0])).named
    assert {(one.kind, one.id, one.offset) for one in named} == {
        (kind.topic, id_, last.offset) for (kind, _, id_), last in reference.late.items()
    }
    assert projection.documents() == documents(reference)


@law
@given(history=histories.histories(), seed=seeds)
async def test_history_applied_twice_is_stored_as_once(projection: Projection, history: History, seed: int) -> None:
    random = _begin(projection, seed)
    await _live(projection, history, random)
    before = stored.values(projection.client)
    await _live(projection, history, random)
    assert stored.values(projection.client) == before
    _assert_right(projection, history)


@law
@given(history=histories.histories(again=False), seed=seeds)
async def test_rebuild_from_empty_equals_live(projection: Projection, history: History, seed: int) -> None:
    """From topics that Kafka has compacted meanwhile, as they are when a rebuild reads them."""
    random = _begin(projection, seed)
    await _live(projection, history, random)
    live = projection.documents()
    projection.client.flushdb()
    await _live(projection, history.compacted(), random)
    assert projection.documents() == live
    _assert_right(projection, history)


@law
@given(history=histories.histories(again=False), seed=seeds)
async def test_recreated_organization_is_replayed_from_compacted_topics(
    projection: Projection, history: History, seed: int
) -> None:
    """What was deleted while the organization was deleted may be in no topic any more when it is replayed."""
    random = _begin(projection, seed)
    await _live(projection, history, random, replayed=history.compacted_long_ago())
    _assert_right(projection, history)


@law
@given(history=histories.histories(), seed=seeds)
async def test_the_next_generation_equals_the_live_one(projection: Projection, history: History, seed: int) -> None:
    """It is begun in the middle: from then on both are written, and the replay fills what came before."""
    random = _begin(projection, seed)
    batches = list(histories.merged(history, random))
    begun = random.randint(0, len(batches))
    await _apply(projection, history, batches[:begun], random)
    line = [(batch, (1, 2)) for batch in batches[begun:]]
    rebuild = [(batch, (2,)) for batch in histories.merged(history.of(resources.RESOURCES), random)]
    for batch, generations in _mixed(line, rebuild, random):
        await projection.apply(*batch, generations=generations)
        if random.random() < 0.3:
            await _keep(projection, history, random, (1, 2))
    await _keep(projection, history, random, (1, 2), until_done=True)
    assert projection.documents(2) == projection.documents(1)
    stored.assert_consistent(projection.client, 2)
    _assert_right(projection, history)


@law
@given(history=histories.histories(again=False), seed=seeds)
async def test_crash_before_what_follows_a_script(projection: Projection, history: History, seed: int) -> None:
    """No fan-out, no lead that leaves an index, in one generation or both; then everything comes once more."""
    random = _begin(projection, seed)
    documents = history.of(resources.RESOURCES)
    for batch in histories.merged(documents, random):
        generations = random.choice([(1,), (2,), (1, 2)])
        if random.random() < 0.5:
            await projection.crash(*batch, generations=generations)
        else:
            await projection.apply(*batch, generations=generations)
    for batch in histories.merged(documents, random):
        await projection.apply(*batch, generations=(1, 2))
    for generation in (1, 2):
        assert projection.documents(generation) == documents_of(documents.records())
        stored.assert_consistent(projection.client, generation, after_crash=True)


@law
@given(history=histories.histories(), seed=seeds)
async def test_compression_changes_no_document(projection: Projection, history: History, seed: int) -> None:
    """Some projectors compress and others do not."""
    random = _begin(projection, seed)

    def batches() -> Iterator[list[Record]]:
        for batch in histories.merged(history, random):
            projection.store.compresses = random.random() < 0.5
            yield batch

    await _apply(projection, history, batches(), random)
    await _keep(projection, history, random, (1,), until_done=True)
    _assert_right(projection, history)


def _begin(projection: Projection, seed: int) -> Random:
    """Empty Redis. Returns what decides the order of everything that follows."""
    projection.client.flushdb()
    return Random(seed)


async def _live(projection: Projection, history: History, random: Random, replayed: History | None = None) -> None:
    """Apply all of a history. What is `replayed` of it by then may be less."""
    await _apply(projection, replayed or history, histories.merged(history, random), random)
    await _keep(projection, replayed or history, random, (1,), until_done=True)


async def _apply(projection: Projection, history: History, batches: Iterable[list[Record]], random: Random) -> None:
    for batch in batches:
        await projection.apply(*batch)
        if random.random() < 0.3:
            await _keep(projection, history, random, (1,))


async def _keep(
    projection: Projection,
    history: History,
    random: Random,
    generations: tuple[int, ...],
    *,
    until_done: bool = False,
) -> None:
    """What the keeper does once a second: erase deleted organizations, replay those that were created again."""
    while noted := sorted(projection.jobs()):
        for job in noted:
            verb, organization_id, _ = job.split(" ")
            if verb == "erase" and not until_done and random.random() < 0.5:
                finished = await _erase_some(projection, organization_id, random)
            elif verb == "erase":
                async with jobs._taken(projection.store, verb, {organization_id: [job]}) as taken:
                    assert taken
                    finished = bool([ended async for ended in jobs._erase(projection.store, taken)])
            else:
                finished = await _replay(projection, history, random, organization_id, generations)
            if finished:
                projection.client.srem(names.JOBS, job)
        if not until_done:
            return


async def _erase_some(projection: Projection, organization_id: str, random: Random) -> bool:
    """The slices of an erasure that were dropped before a crash, or before the organization was created again."""
    owner = names.organization(organization_id)
    keys = sorted(projection.client.scan_iter(names.of_organization(owner)))
    await jobs._drop(projection.store, owner, random.sample(keys, random.randint(0, len(keys))))
    return False


async def _replay(
    projection: Projection, history: History, random: Random, organization_id: str, generations: tuple[int, ...]
) -> bool:
    """As `jobs._replay_all` does, from this history in place of Kafka."""
    owner = names.organization(organization_id)
    head, due = await jobs._head(projection.store, owner)
    if due != b"R":
        return True
    wanted = reapply.of_organizations([organization_id])
    async with jobs.locked(projection.store, names.job_lock("replay", organization_id)) as held:
        assert held
        for batch in histories.merged(history, random):
            await reapply.write(
                projection.store,
                [record for record in batch if wanted(record)],
                ids(*generations),
            )
        return await jobs._finish(projection.store, owner, head, held)


def _mixed(first: list[Any], second: list[Any], random: Random) -> Iterator[Any]:
    """Both, each in its own order."""
    while first or second:
        yield random.choice([queue for queue in (first, second) if queue]).pop(0)


def _assert_right(projection: Projection, history: History) -> None:
    reference = Reference()
    for record in history.records():
        reference.add(record)
    assert projection.documents() == documents(reference)
    stored.assert_consistent(projection.client)
    assert stored.key_expiries(projection.client) == _expected_keys(reference)
    assert _access(projection) == _expected_access(reference, history)
    _assert_erased(projection, reference)


def _assert_reference_has_no_order(history: History, random: Random) -> None:
    straight, mixed = Reference(), Reference()
    for record in history.records():
        straight.add(record)
    for batch in histories.merged(history, random):
        for record in batch:
            mixed.add(record)
    assert documents(straight) == documents(mixed)
    assert key_expiries(straight) == key_expiries(mixed)


def _expected_keys(reference: Reference) -> dict[bytes, int]:
    return {
        names.api_key(names.organization(organization_id), key_hash): expiry
        for (organization_id, key_hash), expiry in key_expiries(reference).items()
    }


def _access(projection: Projection) -> dict[str, bytes]:
    """The state of each organization and whether its API access is on."""
    owners = {organization_id: names.organization(organization_id) for organization_id in histories.ORGANIZATIONS}
    values = {organization_id: projection.client.get(owner) for organization_id, owner in owners.items()}
    return {at: value[22:24] if value[:1] == b"L" else b"gone" for at, value in values.items() if value}


def _expected_access(reference: Reference, history: History) -> dict[str, bytes]:
    return {
        organization_id: (
            b"-%d" % _data(history.at(kind, newest.partition, newest.offset))["api_access"] if newest.live else b"gone"
        )
        for (kind, organization_id, _), newest in reference.newest.items()
        if kind is resources.ORGANIZATION
    }


def _assert_erased(projection: Projection, reference: Reference) -> None:
    for organization_id in histories.ORGANIZATIONS:
        if reference.is_erased(organization_id):
            left = list(projection.client.scan_iter(names.of_organization(names.organization(organization_id))))
            assert not left, f"a deleted organization left {left}"


def _data(record: Record) -> crm.Json:
    data: crm.Json = orjson.loads(record.value or b"")["data"]
    return data
