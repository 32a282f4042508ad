"""The scripts of organizations and API keys, on a real Redis, alone and in cluster mode."""

from typing import Any

import pytest

from projector.record import Record
from projector.redis.scripts import erase, finish_work
from projector.upkeep import jobs
from runtime.redis.scripts import Command
from schemas import api_keys, names, resources
from schemas.layouts import ERASE_DUE, OLDER, ORGANIZATION_DELETED, REPLAY_DUE, REUSED, STALE, WRITTEN
from tests.harness import crm, stored
from tests.harness.generations import generation
from tests.harness.projection import Projection

OWNER = names.organization(crm.ORGANIZATION)
FIRST, SECOND = names.api_key(OWNER, crm.key_hash(1)), names.api_key(OWNER, crm.key_hash(2))
ERASE, REPLAY = f"erase {crm.ORGANIZATION}", f"replay {crm.ORGANIZATION}"


ANOTHER, THIRD = crm.uuid(0xF2), crm.uuid(0xF3)
LOCK = names.job_lock("replay", crm.ORGANIZATION)


def finish(head: bytes) -> Command:
    """End a job that began when the organization had this head."""
    return finish_work(organization=OWNER, lock=LOCK, head=head, holder=b"ours")


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


def key_gone(offset: int, key_id: str = crm.API_KEY) -> Record:
    return crm.tombstone(resources.API_KEY, key_id).record(offset)


ORGANIZATIONS = [
    pytest.param([organization(1, 0)], [WRITTEN], b"L-1", id="created"),
    pytest.param([organization(1, 0, api_access=False)], [WRITTEN], b"L-0", id="created without access"),
    pytest.param([organization(9, 0), organization(10, 1, api_access=False)], [WRITTEN] * 2, b"L-0", id="9 to 10"),
    pytest.param([organization(2, 0), organization(1, 1, api_access=False)], [WRITTEN, OLDER], b"L-1", id="older"),
    pytest.param([organization(2, 0), organization(2, 1, api_access=False)], [WRITTEN, REUSED], b"L-1", id="equal"),
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
        [WRITTEN + ERASE_DUE, OLDER + ERASE_DUE],
        b"DE",
        id="a marker keeps an older event out",
    ),
    pytest.param([organization(3, 0), organization_gone(1)], [WRITTEN, WRITTEN + ERASE_DUE], b"TE", id="a tombstone"),
    pytest.param(
        [organization(3, 0), organization_gone(1), organization(3, 2), organization(4, 3)],
        [WRITTEN, WRITTEN + ERASE_DUE, REUSED + ERASE_DUE, WRITTEN + REPLAY_DUE],
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
    leads = [crm.lead(1, id=crm.uuid(1000 + n)).record(n) for n in range(600)]
    deleted = crm.deleted(resources.LEAD, 2, crm.uuid(1000)).record(600)
    await projection.apply(organization(1, 0), key(1, 0), crm.contact(1).record(0), *leads, deleted, *other)
    projection.client.set(names.organization_limit(OWNER), "1")
    projection.client.set(names.key_limit(OWNER, crm.key_hash(1)), "1")
    applied = await projection.apply(organization_deleted(2, 1))
    assert applied.written == 1
    assert projection.jobs_due() == {ERASE}
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
        pytest.param(crm.api_key(9, status="revoked").record(9), id="a revoked API key"),
        pytest.param(crm.deleted(resources.LEAD, 9).record(9), id="a deleted lead"),
        pytest.param(crm.deleted(resources.CONTACT, 9).record(9), id="a deleted contact"),
        pytest.param(crm.deleted(resources.API_KEY, 9).record(9), id="a deleted API key"),
        pytest.param(crm.tombstone(resources.LEAD).record(9), id="the tombstone of a lead"),
        pytest.param(crm.tombstone(resources.CONTACT).record(9), id="the tombstone of a contact"),
        pytest.param(crm.tombstone(resources.API_KEY).record(9), id="the tombstone of an API key"),
    ],
)
async def test_what_comes_after_an_organization_was_deleted_is_ignored(projection: Projection, late: Record) -> None:
    await projection.apply(organization_deleted(2, 0))
    await jobs.run_all(projection.writing, projection.settings)
    assert await projection.call(late) in (ORGANIZATION_DELETED, [b"%d" % ORGANIZATION_DELETED])
    assert (await projection.apply(late)).dropped == 1
    assert list(projection.client.scan_iter(names.of_organization(OWNER))) == []


FULL = [
    organization(1, 0),
    key(1, 0),
    crm.contact(1).record(0),
    crm.lead(1).record(0),
    crm.lead(1, id=crm.OTHER_LEAD).record(1),
]
"""An organization with an entity of each kind."""
KEPT = [
    pytest.param(key(2, 1, status="revoked"), {"a key": 1}, id="a key is revoked"),
    pytest.param(key(2, 1, 2, status="revoked"), {"a key": None}, id="a key is revoked, with another hash"),
    pytest.param(key_deleted(2, 1), {"a key": None}, id="a key is deleted"),
    pytest.param(key_gone(1), {"a key": None}, id="a key has a tombstone"),
    pytest.param(crm.deleted(resources.LEAD, 2).record(2), {"a lead": None}, id="a lead is deleted"),
    pytest.param(crm.tombstone(resources.LEAD).record(2), {"a lead": None}, id="a lead has a tombstone"),
    pytest.param(crm.deleted(resources.CONTACT, 2).record(2), {"a contact": None}, id="a contact is deleted"),
    pytest.param(crm.tombstone(resources.CONTACT).record(2), {"a contact": None}, id="a contact has a tombstone"),
    pytest.param(key(2, 1, expires_at=crm.at(60)), {}, id="another expiry of a key is not kept"),
    pytest.param(key(2, 1, 2), {}, id="another hash of a key is not kept"),
    pytest.param(crm.lead(2, stage="STALE").record(2), {}, id="a change of a lead is not kept"),
    pytest.param(crm.contact(2, first_name="Grace").record(2), {}, id="a change of a contact is not kept"),
]


@pytest.mark.parametrize(("late", "changed"), KEPT)
async def test_what_is_taken_away_while_an_organization_is_deleted_is_kept(
    projection: Projection, late: Record, changed: dict[str, int | None]
) -> None:
    """The organization is created again before its erasure has reached anything."""

    def held() -> dict[str, object]:
        documents = projection.documents()
        return {
            "a key": stored.key_expiry(projection.client, FIRST),
            "a lead": documents.get((resources.LEAD, crm.ORGANIZATION, crm.LEAD)),
            "a contact": documents.get((resources.CONTACT, crm.ORGANIZATION, crm.CONTACT)),
        }

    await projection.apply(*FULL)
    before = held()
    await projection.apply(organization_deleted(2, 1))
    keys = set(projection.client.scan_iter(b"lv3*"))
    await projection.apply(late)
    assert set(projection.client.scan_iter(b"lv3*")) <= keys, "it adds no key"
    await projection.apply(organization(3, 2))
    assert held() == before | changed
    await projection.apply(organization_deleted(4, 3))
    await jobs.run_all(projection.writing, projection.settings)
    assert list(projection.client.scan_iter(names.of_organization(OWNER))) == []


async def test_erasing_stops_if_the_organization_is_recreated(projection: Projection) -> None:
    await projection.apply(organization_deleted(1, 0))
    await projection.apply(organization(2, 1), crm.lead().record())
    name = names.document(resources.LEAD, OWNER, generation(1), crm.LEAD)
    assert await projection.store.run([erase(organization=OWNER, erased=[name])]) == [-1]
    assert projection.client.exists(name)
    await projection.apply(organization_deleted(3, 2))
    for existed in (1, 0):
        assert await projection.store.run([erase(organization=OWNER, erased=[name, name + b"-"])]) == [existed]
    assert not projection.client.exists(name)


async def test_an_erasure_that_comes_too_late_finishes_no_replay(projection: Projection) -> None:
    """Deleted and created again before anything was done: the erasure has nothing to do, the replay is still due."""
    await projection.apply(organization_deleted(1, 0), organization(2, 1))
    assert projection.jobs_due() == {ERASE, REPLAY}
    projection.client.srem(names.JOBS, *(job for job in projection.jobs() if job.startswith(REPLAY)))
    await jobs.run_all(projection.writing, projection.settings)
    assert projection.jobs() == set()
    assert await projection.call(organization(2, 1)) == STALE + REPLAY_DUE


@pytest.mark.parametrize(
    ("newer", "due"),
    [
        pytest.param(organization_deleted(3, 2), ERASE_DUE, id="deleted again"),
        pytest.param(organization(3, 2), REPLAY_DUE, id="only changed"),
    ],
)
async def test_work_is_finished_only_under_the_event_that_it_was_begun_for(
    projection: Projection, newer: Record, due: int
) -> None:
    await projection.apply(organization_deleted(1, 0), organization(2, 1))
    begun_under = projection.client.getrange(OWNER, 0, 21)
    await projection.apply(newer)
    projection.client.set(LOCK, "ours")
    assert await projection.store.run([finish(begun_under)]) == [0]
    assert await projection.call(newer) == STALE + due
    assert await projection.store.run([finish(projection.client.getrange(OWNER, 0, 21))]) == [1]
    assert await projection.call(newer) == STALE


@pytest.mark.parametrize(
    "holder", [pytest.param(None, id="expired, or Redis was emptied"), pytest.param("theirs", id="taken")]
)
async def test_work_is_finished_only_by_the_holder_of_its_lock(projection: Projection, holder: str | None) -> None:
    """Otherwise a projector that was suspended could finish a job whose writes were lost meanwhile."""
    await projection.apply(organization_deleted(1, 0), organization(2, 1))
    if holder:
        projection.client.set(LOCK, holder)
    assert await projection.store.run([finish(projection.client.getrange(OWNER, 0, 21))]) == [0]
    assert await projection.call(organization(2, 1)) == STALE + REPLAY_DUE


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
    pytest.param([key(1, 0), key(1, 0, 2, id=ANOTHER), key_deleted(2, 1)], {SECOND}, (3, 0), id="another key stays"),
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
    not_revoked = {name for name, expiry in stored.key_expiries(projection.client).items() if expiry != 1}
    assert not_revoked == active
    if not batched:  # in a batch, an event whose hash was not known yet may be overtaken by a newer one
        assert (written, stale) == counts


async def test_what_the_api_finds_under_the_hash_of_a_key(projection: Projection) -> None:
    await projection.apply(key(1, 0, expires_at=crm.at(60)))
    value = projection.client.get(FIRST)
    assert value[:22].decode() == api_keys.organization_tag(crm.ORGANIZATION)
    assert int.from_bytes(value[22:28], "little") == crm.at_ms(60)
    assert value[28:] == names.short_id(crm.API_KEY) + b"A" + value[22:28]


SHARED = [
    pytest.param([key(1, 0), key(1, 0, id=ANOTHER)], 0, id="both are active"),
    pytest.param([key(1, 0), key(1, 0, id=ANOTHER, status="revoked")], 1, id="one is revoked"),
    pytest.param(
        [key(1, 0), key(1, 0, id=ANOTHER, status="revoked"), key(2, 1, id=ANOTHER)], 0, id="one was revoked before"
    ),
    pytest.param([key(1, 0), key(1, 0, id=ANOTHER, expires_at=crm.at(60))], crm.at_ms(60), id="one expires"),
    pytest.param(
        [key(1, 0, expires_at=crm.at(90)), key(1, 0, id=ANOTHER, expires_at=crm.at(60))],
        crm.at_ms(60),
        id="the earlier one counts",
    ),
    pytest.param(
        [key(1, 0, status="revoked"), key(1, 0, id=ANOTHER, expires_at=crm.at(60)), key(1, 0, id=THIRD)],
        1,
        id="a revoked one counts before all",
    ),
    pytest.param(
        [key(1, 0), key(1, 0, id=ANOTHER, status="revoked"), key_gone(1, ANOTHER)], 0, id="the revoked is deleted"
    ),
    pytest.param(
        [key(1, 0, status="revoked"), key(1, 0, id=ANOTHER), key_gone(1, ANOTHER)], 1, id="the active is deleted"
    ),
    pytest.param([key(1, 0), key(1, 0, id=ANOTHER), key_gone(1), key_gone(1, ANOTHER)], None, id="both are deleted"),
    pytest.param(
        [key(1, 0), key(1, 0, id=ANOTHER, status="revoked"), key(2, 1, 2, id=ANOTHER)],
        0,
        id="the revoked changes its hash",
    ),
]


@pytest.mark.parametrize(("records", "expiry"), SHARED)
@pytest.mark.parametrize("turned", [pytest.param(False, id="in order"), pytest.param(True, id="the other key first")])
async def test_api_keys_with_one_hash(
    projection: Projection, records: list[Record], expiry: int | None, turned: bool
) -> None:
    for record in sorted(records, key=lambda record: (record.key != records[0].key) != turned):
        await projection.apply(record)
    assert stored.key_expiries(projection.client).get(FIRST) == expiry
