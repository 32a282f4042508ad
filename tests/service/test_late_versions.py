"""Late versions: records that were published behind a newer one of their entity. Compaction would keep them alone."""

from typing import Any

import msgspec
import orjson
import pytest

from devstack.ports import free_port
from projector.ledger import late_versions
from projector.record import Record
from projector.upkeep import jobs, reapply
from schemas import names, resources
from tests.harness import crm
from tests.harness.crm import Message
from tests.harness.generations import generation
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import metric
from tests.harness.projection import Projection
from tests.harness.waiting import wait_until
from tests.service.conftest import everywhere

CONTACT, LEAD = (f"{kind}:{crm.ORGANIZATION}:{id_}" for kind, id_ in (("contacts", crm.CONTACT), ("leads", crm.LEAD)))
ORGANIZATION, KEY = f"organizations:{crm.ORGANIZATION}", f"api-keys:{crm.ORGANIZATION}:{crm.API_KEY}"
SHOW_CONTACT = ("show", "contact", crm.ORGANIZATION, crm.CONTACT)
Noted = dict[str, tuple[str | None, int, int]]


def contact(version: int, offset: int, partition: int = 0, history: int = 0, **fields: Any) -> Record:
    found = crm.contact(version, **fields).record(offset, partition)
    return msgspec.structs.replace(found, history=history)


def deleted(version: int, offset: int, kind: resources.Kind = resources.CONTACT) -> Record:
    return crm.deleted(kind, version).record(offset)


def gone(offset: int) -> Record:
    return crm.tombstone(resources.CONTACT).record(offset)


def key(version: int, offset: int, number: int = 1, **fields: Any) -> Record:
    return crm.api_key(version, hash=crm.key_hash(number), **fields).record(offset)


async def noted(projection: Projection) -> Noted:
    """Cause, late version and newest version of each entity that is listed now."""
    found = await late_versions.current(projection.store, generation(1))
    return {one.field: (one.cause, one.version, one.newest) for one in found.named}


LATE = [
    pytest.param([contact(6, 0), contact(5, 1)], {CONTACT: ("older", 5, 6)}, id="an older version"),
    pytest.param([contact(10, 0), contact(9, 1)], {CONTACT: ("older", 9, 10)}, id="versions are numbers"),
    pytest.param(
        [contact(5, 0), contact(6, 1), contact(5, 2)], {CONTACT: ("older", 5, 6)}, id="one that was published before"
    ),
    pytest.param([deleted(7, 0), contact(5, 1)], {CONTACT: ("older", 5, 7)}, id="an older version after a delete"),
    pytest.param([contact(6, 0), deleted(5, 1)], {CONTACT: ("older", 5, 6)}, id="an older delete"),
    pytest.param(
        [contact(6, 0), gone(1), contact(5, 2)], {CONTACT: ("older", 5, 6)}, id="an older version after a tombstone"
    ),
    pytest.param(
        [contact(6, 0), gone(1), contact(6, 2)], {CONTACT: ("reused", 6, 6)}, id="the same version after a tombstone"
    ),
    pytest.param([contact(5, 0), contact(5, 1, first_name="Zoë")], {CONTACT: ("reused", 5, 5)}, id="other content"),
    pytest.param([contact(5, 0), deleted(5, 1)], {CONTACT: ("reused", 5, 5)}, id="a delete with the same version"),
    pytest.param([deleted(5, 0), contact(5, 1)], {CONTACT: ("reused", 5, 5)}, id="the version of the delete"),
    pytest.param([crm.lead(6).record(0), crm.lead(5).record(1)], {LEAD: ("older", 5, 6)}, id="a lead"),
    pytest.param(
        [crm.lead(5).record(0), crm.lead(5, stage="STALE").record(1)], {LEAD: ("reused", 5, 5)}, id="a lead, reused"
    ),
    pytest.param(
        [crm.organization(2).record(0), crm.organization(1).record(1)], {ORGANIZATION: ("older", 1, 2)}, id="access"
    ),
    pytest.param(
        [crm.organization(2).record(0), crm.organization(2, api_access=False).record(1)],
        {ORGANIZATION: ("reused", 2, 2)},
        id="access, reused",
    ),
    pytest.param(
        [deleted(2, 0, resources.ORGANIZATION), crm.organization(1).record(1)],
        {ORGANIZATION: ("older", 1, 2)},
        id="a deleted organization",
    ),
    pytest.param([key(2, 0, status="revoked"), key(1, 1)], {KEY: ("older", 1, 2)}, id="a revoked key"),
    pytest.param([key(2, 0), key(2, 1, status="revoked")], {KEY: ("reused", 2, 2)}, id="a key, reused"),
    pytest.param([key(2, 0), key(2, 1, 2)], {KEY: ("reused", 2, 2)}, id="a key, reused with another hash"),
    pytest.param(
        [key(1, 0), key(2, 1, 2, status="revoked"), key(1, 2)], {KEY: ("older", 1, 2)}, id="a key with another hash"
    ),
    pytest.param([deleted(2, 0, resources.API_KEY), key(1, 1)], {KEY: ("older", 1, 2)}, id="a deleted key"),
]
NORMAL = [
    pytest.param([contact(5, 0), contact(6, 1)], id="versions grow"),
    pytest.param([contact(5, 0), contact(5, 0)], id="read again"),
    pytest.param([contact(5, 0), contact(6, 1), contact(5, 0), contact(6, 1)], id="both are read again"),
    pytest.param([contact(5, 0), contact(5, 1)], id="a retry"),
    pytest.param([deleted(5, 0), deleted(5, 1)], id="a retry of a delete"),
    pytest.param([deleted(5, 0), gone(1)], id="a delete, and a tombstone behind it"),
    pytest.param([gone(0), gone(1)], id="two tombstones"),
    pytest.param([contact(6, 0), gone(1), deleted(6, 2)], id="a tombstone, and a delete behind it"),
    pytest.param([contact(6, 0), contact(5, 1, partition=1)], id="another partition tells nothing"),
    pytest.param([contact(6, 0), contact(5, 1, history=1)], id="another history of the topic tells nothing"),
    pytest.param([crm.organization(2).record(0), crm.organization(2).record(1)], id="a retry for an organization"),
    pytest.param([key(2, 0), key(2, 1)], id="a retry for a key"),
    pytest.param([key(2, 0, status="revoked"), key(2, 1, status="revoked")], id="a retry for a revoked key"),
    pytest.param([crm.lead(2).record(0), contact(1, 0), crm.lead(2).record(1)], id="a retry for a lead with a contact"),
]
AGAIN = [
    pytest.param([contact(7, 2)], id="a higher version"),
    pytest.param([contact(6, 2)], id="the newest version once more"),
    pytest.param([contact(7, 0, partition=1)], id="a higher version in another partition"),
    pytest.param([deleted(7, 2)], id="a delete"),
    pytest.param([gone(2)], id="a tombstone"),
    pytest.param([deleted(2, 1, resources.ORGANIZATION)], id="its organization is deleted"),
]


@everywhere
@pytest.mark.parametrize(("records", "expected"), LATE)
@pytest.mark.parametrize("batched", [pytest.param(True, id="one batch"), pytest.param(False, id="one by one")])
async def test_late_version_is_listed(
    projection: Projection, records: list[Record], expected: Noted, batched: bool
) -> None:
    for batch in [records] if batched else [[record] for record in records]:
        await projection.apply(*batch)
    assert await noted(projection) == expected
    await projection.apply(*records)  # read again
    assert await noted(projection) == expected


@everywhere
@pytest.mark.parametrize("records", NORMAL)
async def test_what_is_normal_is_not_listed(projection: Projection, records: list[Record]) -> None:
    for record in records:
        await projection.apply(record)
    await projection.apply(*records)
    assert await noted(projection) == {}


@everywhere
@pytest.mark.parametrize("records", AGAIN)
async def test_entity_leaves_the_list_as_soon_as_its_last_record_is_the_newest(
    projection: Projection, records: list[Record]
) -> None:
    await projection.apply(crm.organization(1).record(0), contact(6, 0), contact(5, 1))
    assert set(await noted(projection)) == {CONTACT}
    await projection.apply(*records)
    assert await noted(projection) == {}
    await late_versions.clear(projection.store, generation(1))
    assert not await late_versions.read(projection.store)
    await projection.apply(contact(6, 0), contact(5, 1), *records)  # read again
    assert await noted(projection) == {}


async def test_late_version_that_is_read_alone_ends_nothing(projection: Projection) -> None:
    """The topic was compacted, and the documents are lost: a rebuild, or one shard of several was emptied."""
    await projection.apply(contact(6, 0), contact(5, 1))
    projection.client.delete(*projection.client.keys("lv3*}1.*"))
    await projection.apply(contact(5, 1))
    assert await noted(projection) == {CONTACT: ("older", 5, 6)}
    assert await late_versions.clear(projection.store, generation(1)) == 0


@pytest.mark.parametrize("first", [1, 2])
async def test_rebuild_lists_what_one_of_the_generations_knows(projection: Projection, first: int) -> None:
    await projection.apply(contact(6, 0), generations=(first,))
    await projection.apply(contact(5, 1), generations=(1, 2))
    assert set(await noted(projection)) == {CONTACT}


async def test_the_list_has_a_bound_and_counts_the_rest(projection: Projection) -> None:
    ids = [crm.uuid(1000 + number) for number in range(late_versions.MOST + 5)]
    await projection.apply(*(contact(6, number, id=id_) for number, id_ in enumerate(ids)))
    await projection.apply(*(contact(5, len(ids) + number, id=id_) for number, id_ in enumerate(ids)))
    found = await late_versions.read(projection.store)
    assert (len(found.named), found.more) == (late_versions.MOST, {"contacts": 5})
    await projection.apply(contact(4, 5000, id=ids[0]))
    assert (await late_versions.read(projection.store)).more == {"contacts": 5}, "a known entity is no further one"


async def test_the_list_holds_ids_alone_and_a_deleted_organization_leaves_it(projection: Projection) -> None:
    await projection.apply(crm.organization(1).record(0), contact(6, 0, first_name="Hidden"), contact(5, 1))
    assert b"Hidden" not in b"".join(projection.client.hvals(names.LATE_VERSIONS))
    await projection.apply(deleted(2, 1, resources.ORGANIZATION))
    await jobs.run_all(projection.writing, projection.settings)
    assert not projection.client.exists(names.LATE_VERSIONS)


async def test_repair_in_place_keeps_the_first_of_two_contents_of_one_version(projection: Projection) -> None:
    records = [contact(5, 0, first_name="First"), contact(5, 1, first_name="Second")]
    await projection.apply(*records)
    before = projection.documents()
    await reapply.write(projection.store, records, (generation(1),))
    assert projection.documents() == before


@pytest.mark.parametrize(
    ("messages", "said", "show", "repair"),
    [
        pytest.param(
            [crm.contact(6), crm.contact(5, first_name="Late")],
            f"contact {crm.CONTACT}",
            SHOW_CONTACT,
            crm.contact(7),
            id="an older version",
        ),
        pytest.param(
            [crm.contact(6), crm.contact(6, first_name="Late")],
            "published twice",
            SHOW_CONTACT,
            crm.contact(7),
            id="one version twice",
        ),
        pytest.param(
            [crm.deleted(resources.CONTACT, 7), crm.contact(5)],
            f"contact {crm.CONTACT}",
            SHOW_CONTACT,
            crm.deleted(resources.CONTACT, 8),
            id="a deleted person",
        ),
        pytest.param(
            [crm.api_key(2, status="revoked"), crm.api_key(1)],
            f"API key {crm.API_KEY}",
            ("show", "key", crm.API_KEY),
            crm.api_key(3, status="revoked"),
            id="a revoked key",
        ),
    ],
)
def test_status_and_show_name_the_entity_until_it_is_published_again(
    leadview: Leadview, messages: list[Message], said: str, show: tuple[str, ...], repair: Message
) -> None:
    port = free_port()
    leadview.serve(crm.organization(1), crm.lead(1), *messages, metrics_port=port)
    leadview.wait_until_current()
    found = leadview.run("status", "--json")
    status = orjson.loads(found.stdout)
    assert (found.status, status["kinds"]) == (1, ["older_published"])
    assert said in status["verdict"]
    assert said in leadview.run("doctor").ends(1)
    leadview.run(*show).ends(0, "Its last record, at ", " was ignored: its version ")
    wait_until(lambda: metric(port, "leadview_projector_older_published") == 1, "the metric says so")
    leadview.publish(repair)
    leadview.wait_until_current()
    wait_until(lambda: leadview.run("status").status == 0, "all is well")
    assert "was ignored" not in leadview.run(*show).stdout
    wait_until(lambda: not leadview.redis.exists(names.LATE_VERSIONS), "the list is empty")


def test_rebuild_neither_ends_nor_adds_anything(leadview: Leadview) -> None:
    leadview.serve(crm.organization(1), crm.contact(5), crm.contact(6), crm.contact(6), crm.lead(1))
    leadview.publish(crm.lead(2), crm.lead(1))
    leadview.wait_until_current()
    before = leadview.redis.hkeys(names.LATE_VERSIONS)
    assert before == [LEAD.encode()]
    assert leadview.run("rebuild", "--max-latency", "0").status == 0
    assert leadview.redis.hkeys(names.LATE_VERSIONS) == before
