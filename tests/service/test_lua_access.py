"""The scripts of organizations and API keys, on a real Redis, alone and in cluster mode."""

from typing import Any

import pytest

from projector.record import Record
from projector.redis.applier import ERASE_DUE, ORGANIZATION_DELETED, REPLAY_DUE, STALE, WRITTEN
from projector.redis.calls import Command
from projector.upkeep import jobs
from schemas import api_keys, names, resources
from tests.harness import crm, stored
from tests.harness.projection import Projection

OWNER = names.organization(crm.ORGANIZATION)
ENTITY = names.api_key_entity(OWNER, crm.API_KEY)
FIRST, SECOND = names.api_key(OWNER, crm.key_hash(1)), names.api_key(OWNER, crm.key_hash(2))
ERASE, REPLAY = f"erase {crm.ORGANIZATION}", f"replay {crm.ORGANIZATION}"


def organization(version: int, offset: int, **fields: Any) -> Record:
    return crm.organization(version, **fields).record(offset)


def organization_deleted(version: int, offset: int) -> Record:
    return crm.deleted(resources.ORGANIZATION, version).record(offset)


def organization_gone(offset: int) -> Record:
    return crm.tombstone(resources.ORGANIZATION).record(offset)


def key(version: int, offset: int, number: int = 1, **fields: Any) -> Record:
    return crm.api_key(version, hash=crm.key_hash(number), **fields).record(offset)


def key_deleted(version: int, offset: int) -> Record:
    return crm.deleted(resources.API_KEY, version).record(offset)


def key_gone(offset: int) -> Record:
    return crm.tombstone(resources.API_KEY).record(offset)


ORGANIZATIONS = [
    pytest.param([organization(1, 0)], [WRITTEN], b"L-1", id="created"),
    pytest.param([organization(1, 0, api_access=False)], [WRITTEN], b"L-0", id="created without access"),
    pytest.param([organization(9, 0), organization(10, 1, api_access=False)], [WRITTEN] * 2, b"L-0", id="9 to 10"),
    pytest.param([organization(2, 0), organization(1, 1, api_access=False)], [WRITTEN, STALE], b"L-1", id="older"),
    pytest.param([organization(2, 0), organization(2, 1, api_access=False)], [WRITTEN, STALE], b"L-1", id="equal"),
    pytest.param([organization(1, 0), organization_deleted(2, 1)], [WRITTEN, WRITTEN + ERASE_DUE], b"DE", id="deleted"),
    pytest.param([organization_deleted(2, 0)], [WRITTEN + ERASE_DUE], b"DE", id="deleted before ever heard of"),
    pytest.param(
        [organization_deleted(2, 0), organization_deleted(2, 0)],
        [WRITTEN + ERASE_DUE, STALE + ERASE_DUE],
        b"DE",
        id="read again: what is due is said again",
    ),
    pytest.param(
        [organization_deleted(2, 0), organization(1, 1)],
        [WRITTEN + ERASE_DUE, STALE + ERASE_DUE],
        b"DE",
        id="a marker keeps an older event out",
    ),
    pytest.param([organization(3, 0), organization_gone(1)], [WRITTEN, WRITTEN + ERASE_DUE], b"TE", id="a tombstone"),
    pytest.param(
        [organization(3, 0), organization_gone(1), organization(3, 2), organization(4, 3)],
        [WRITTEN, WRITTEN + ERASE_DUE, STALE + ERASE_DUE, WRITTEN + REPLAY_DUE],
        b"LR1",
        id="created again after a tombstone, which keeps the version",
    ),
    pytest.param(
        [organization_deleted(2, 0), organization(3, 1), organization(3, 1), organization(4, 2)],
        [WRITTEN + ERASE_DUE, WRITTEN + REPLAY_DUE, STALE + REPLAY_DUE, WRITTEN + REPLAY_DUE],
        b"LR1",
        id="created again: to be replayed until that is done",
    ),
    pytest.param(
        [organization_deleted(2, 0), organization(3, 1), organization_deleted(4, 2)],
        [WRITTEN + ERASE_DUE, WRITTEN + REPLAY_DUE, WRITTEN + ERASE_DUE],
        b"DE",
        id="deleted again before it was replayed",
    ),
]


@pytest.mark.parametrize(("records", "replies", "left"), ORGANIZATIONS)
async def test_organizations(projection: Projection, records: list[Record], replies: list[int], left: bytes) -> None:
    assert [await projection.call(record) for record in records] == replies
    value = projection.client.get(OWNER)
    assert value[:1] + value[22:24] == left
    assert len(value) == (40 if left[:1] == b"L" else 23)


async def test_a_deleted_organization_leaves_its_marker_alone(projection: Projection) -> None:
    other = [
        crm.organization(1, id=crm.OTHER_ORGANIZATION, organization_id=crm.OTHER_ORGANIZATION).record(9),
        crm.lead(1, organization_id=crm.OTHER_ORGANIZATION).record(9),
    ]
    await projection.apply(organization(1, 0), key(1, 0), *_documents(600), *other)
    projection.client.set(names.organization_limit(OWNER), "1")
    projection.client.set(names.key_limit(OWNER, crm.key_hash(1)), "1")
    applied = await projection.apply(organization_deleted(2, 1))
    assert applied.written == 1
    assert projection.jobs() == {ERASE}
    await jobs.run_all(projection.writing, projection.settings)
    assert projection.jobs() == set()
    assert list(projection.client.scan_iter(names.of_organization(OWNER))) == []
    marker = projection.client.get(OWNER)
    assert (marker[:1], marker[22:]) == (b"D", b"-")
    assert {entity[1] for entity in projection.documents()} == {crm.OTHER_ORGANIZATION}


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(crm.lead(9).record(9), id="a lead"),
        pytest.param(crm.contact(9).record(9), id="a contact"),
        pytest.param(crm.api_key(9).record(9), id="an API key"),
        pytest.param(crm.deleted(resources.LEAD, 9).record(9), id="a deleted lead"),
        pytest.param(crm.deleted(resources.CONTACT, 9).record(9), id="a deleted contact"),
        pytest.param(crm.deleted(resources.API_KEY, 9).record(9), id="a deleted API key"),
    ],
)
async def test_what_comes_after_an_organization_was_deleted_is_ignored(projection: Projection, late: Record) -> None:
    await projection.apply(organization_deleted(2, 0))
    await jobs.run_all(projection.writing, projection.settings)
    assert await projection.call(late) in (ORGANIZATION_DELETED, [b"%d" % ORGANIZATION_DELETED])
    assert (await projection.apply(late)).dropped == 1
    assert list(projection.client.scan_iter(names.of_organization(OWNER))) == []


async def test_erasing_stops_if_the_organization_is_recreated(projection: Projection) -> None:
    await projection.apply(organization_deleted(1, 0))
    await projection.apply(organization(2, 1), crm.lead().record())
    name = names.document(resources.LEAD, OWNER, 1, crm.LEAD)
    assert await projection.store.run([Command("erase", [OWNER, name], [])]) == [-1]
    assert projection.client.exists(name)


async def test_an_erasure_that_comes_too_late_finishes_no_replay(projection: Projection) -> None:
    """Deleted and created again before anything was done: the erasure has nothing to do, the replay is still due."""
    await projection.apply(organization_deleted(1, 0), organization(2, 1))
    assert projection.jobs() == {ERASE, REPLAY}
    projection.client.srem(names.JOBS, REPLAY)
    await jobs.run_all(projection.writing, projection.settings)
    assert projection.jobs() == set()
    assert await projection.call(organization(2, 1)) == STALE + REPLAY_DUE


async def test_work_is_finished_only_under_the_event_that_it_was_begun_for(projection: Projection) -> None:
    await projection.apply(organization_deleted(1, 0))
    begun_under = projection.client.getrange(OWNER, 0, 21)
    await projection.apply(organization(2, 1), organization_deleted(3, 2))
    finish = Command("finish_work", [OWNER], [begun_under])
    assert await projection.store.run([finish]) == [0]
    assert await projection.call(organization_deleted(3, 2)) == STALE + ERASE_DUE
    finish = Command("finish_work", [OWNER], [projection.client.getrange(OWNER, 0, 21)])
    assert await projection.store.run([finish]) == [1]
    assert await projection.call(organization_deleted(3, 2)) == STALE


KEYS: list[Any] = [
    pytest.param([key(1, 0)], {FIRST}, (1, 0), id="created"),
    pytest.param([key(1, 0, status="revoked")], set(), (1, 0), id="created revoked"),
    pytest.param([key(9, 0), key(10, 1, status="revoked")], set(), (2, 0), id="revoked, 9 to 10"),
    pytest.param([key(2, 0, status="revoked"), key(1, 1)], set(), (1, 1), id="an older event brings nothing back"),
    pytest.param([key(2, 0), key(2, 1, status="revoked")], {FIRST}, (1, 1), id="equal is ignored"),
    pytest.param([key(1, 0), key(2, 1, status="revoked"), key(3, 2)], {FIRST}, (3, 0), id="active again"),
    pytest.param([key(1, 0), key(2, 1, 2)], {SECOND}, (2, 0), id="another hash: the former opens nothing"),
    pytest.param([key(1, 0), key(2, 1, 2), key(3, 2)], {FIRST}, (3, 0), id="another hash and back"),
    pytest.param([key(1, 0), key(2, 1, 2, status="revoked")], set(), (2, 0), id="another hash, revoked"),
    pytest.param([key(2, 0), key(1, 1, 2)], {FIRST}, (1, 1), id="an older event with another hash"),
    pytest.param([key(1, 0), key_deleted(2, 1)], set(), (2, 0), id="deleted"),
    pytest.param([key(2, 0), key_deleted(1, 1)], {FIRST}, (1, 1), id="an older delete"),
    pytest.param([key_deleted(2, 0), key(1, 1)], set(), (1, 1), id="a marker keeps an older event out"),
    pytest.param([key(1, 0), key_deleted(2, 1), key(3, 2, 2)], {SECOND}, (3, 0), id="created again, another hash"),
    pytest.param([key(7, 0), key_gone(1)], set(), (2, 0), id="a tombstone"),
    pytest.param([key(7, 0), key_gone(1), key(7, 2)], set(), (2, 1), id="a tombstone keeps the version"),
    pytest.param([key(7, 5), key_gone(3)], {FIRST}, (1, 1), id="a tombstone read again"),
]


@pytest.mark.parametrize(("records", "active", "counts"), KEYS)
@pytest.mark.parametrize("batched", [pytest.param(True, id="one batch"), pytest.param(False, id="one by one")])
async def test_api_keys(
    projection: Projection, records: list[Record], active: set[bytes], counts: tuple[int, int], batched: bool
) -> None:
    written = stale = 0
    for batch in [records] if batched else [[record] for record in records]:
        applied = await projection.apply(*batch)
        written, stale = written + applied.written, stale + applied.stale
    assert set(projection.client.scan_iter(OWNER + b"k*")) == active
    if not batched:  # in a batch, an event whose hash was not known yet may be overtaken by a newer one
        assert (written, stale) == counts


async def test_what_the_api_finds_under_the_hash_of_a_key(projection: Projection) -> None:
    await projection.apply(key(1, 0, expires_at=crm.at(60)))
    value = projection.client.get(FIRST)
    assert value[:22].decode() == api_keys.organization_tag(crm.ORGANIZATION)
    assert int.from_bytes(value[22:], "little") == crm.at_ms(60)


@pytest.mark.parametrize(
    ("record", "left"),
    [pytest.param(key(2, 1, 2), b"L", id="another hash"), pytest.param(key_deleted(2, 1), b"D", id="deleted")],
)
async def test_an_unknown_stored_hash_takes_two_calls(projection: Projection, record: Record, left: bytes) -> None:
    """The record to be removed must be among the keys, and only the first call tells its name."""
    await projection.apply(key(1, 0))
    assert (await projection.call(record)).decode() == crm.key_hash(1)
    assert projection.client.get(ENTITY)[:1] == b"L"
    assert projection.client.exists(FIRST)
    assert (await projection.apply(record)).written == 1
    assert projection.client.get(ENTITY)[:1] == left
    assert not projection.client.exists(FIRST)


async def test_two_keys_of_an_organization_do_not_touch_each_other(projection: Projection) -> None:
    other = crm.api_key(1, id=crm.uuid(0xF2), hash=crm.key_hash(2)).record()
    await projection.apply(key(1, 0), other, key_deleted(2, 1))
    assert set(projection.client.scan_iter(OWNER + b"k*")) == {SECOND}


def _documents(number: int) -> list[Record]:
    leads = [crm.lead(1, id=crm.uuid(1000 + n)).record(n) for n in range(number)]
    return [crm.contact(1).record(0), *leads, crm.deleted(resources.LEAD, 2, crm.uuid(1000)).record(number)]


def test_short_ids_are_those_of_the_index() -> None:
    assert stored.short(crm.LEAD) == names.short_id(crm.LEAD)
