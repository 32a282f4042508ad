"""The scripts of leads and contacts, on a real Redis, alone and in cluster mode: what each event leaves behind."""

from typing import Any

import orjson
import pytest

from projector.errors import Unavailable
from projector.line.apply import Applied, apply
from projector.record import Record
from projector.redis import calls
from projector.upkeep import jobs
from runtime.redis.scripts import Command
from schemas import names, resources
from schemas.layouts import FIRST_LEAD, NO_CONTACT, Head, read_head
from tests.harness import crm, stored
from tests.harness.expected import documents_of
from tests.harness.generations import generation, ids
from tests.harness.projection import Projection, intent_of
from tests.harness.records import Records

LEAD = (resources.LEAD, crm.ORGANIZATION, crm.LEAD)
CONTACT = (resources.CONTACT, crm.ORGANIZATION, crm.CONTACT)
OWNER = names.organization(crm.ORGANIZATION)


def lead(version: int, offset: int, partition: int = 0, seconds: float = 0, **fields: Any) -> Record:
    return crm.lead(version, seconds=seconds, **fields).record(offset, partition)


def contact(version: int, offset: int, name: str = "Ada", **fields: Any) -> Record:
    return crm.contact(version, first_name=name, **fields).record(offset)


def lead_deleted(version: int, offset: int) -> Record:
    return crm.deleted(resources.LEAD, version).record(offset)


def contact_deleted(version: int, offset: int) -> Record:
    return crm.deleted(resources.CONTACT, version).record(offset)


def lead_gone(offset: int, partition: int = 0, seconds: float = 0) -> Record:
    return crm.tombstone(resources.LEAD, seconds=seconds).record(offset, partition)


def contact_gone(offset: int) -> Record:
    return crm.tombstone(resources.CONTACT).record(offset)


def resplices(*lead_ids: bytes) -> list[Command]:
    fan = calls.Fan(crm.ORGANIZATION, crm.CONTACT, list(lead_ids))
    return list(calls.resplices([fan], ids(1), clustered=True))


def shown(projection: Projection) -> tuple[str, str | None] | None:
    """The stage of the lead and the first name of the contact that it shows; None where there is no lead."""
    body = projection.documents().get(LEAD)
    if body is None:
        return None
    document = orjson.loads(body)
    return document["stage"], document["contact"] and document["contact"]["first_name"]


def assert_right(projection: Projection, records: list[Record], generations: tuple[int, ...] = (1,)) -> None:
    """Assert that the documents are those that follow from these records, and the indexes those of the documents."""
    for number in generations:
        assert projection.documents(number) == documents_of(records)
        stored.assert_consistent(projection.client, number)


MANY = [lead(1, n, id=crm.uuid(1000 + n)) for n in range(3)]
VERSIONS = [
    pytest.param([lead(1, 0)], ("NEW", None), (1, 0, 0), id="created"),
    pytest.param([lead(1, 0), lead(2, 1, stage="STALE")], ("STALE", None), (2, 0, 0), id="newer is written"),
    pytest.param([lead(2, 0), lead(1, 1, stage="STALE")], ("NEW", None), (1, 1, 0), id="older is ignored"),
    pytest.param([lead(2, 0), lead(2, 1, stage="STALE")], ("NEW", None), (1, 1, 0), id="equal is ignored"),
    pytest.param([lead(9, 0), lead(10, 1, stage="STALE")], ("STALE", None), (2, 0, 0), id="9 to 10 compares numbers"),
    pytest.param([lead(10, 0), lead(9, 1, stage="STALE")], ("NEW", None), (1, 1, 0), id="10 to 9 compares numbers"),
    pytest.param(
        [lead(2**53 - 2, 0), lead(2**53 - 1, 1, stage="STALE")], ("STALE", None), (2, 0, 0), id="the highest versions"
    ),
    pytest.param([lead(1, 0), lead(7, 1), lead(5, 2)], ("NEW", None), (2, 1, 0), id="gaps are normal"),
    pytest.param([lead(1, 0), lead_deleted(2, 1)], None, (2, 0, 0), id="deleted"),
    pytest.param([lead(2, 0), lead_deleted(1, 1)], ("NEW", None), (1, 1, 0), id="an older delete is ignored"),
    pytest.param([lead_deleted(2, 0), lead(1, 1)], None, (1, 1, 0), id="a marker keeps an older event out"),
    pytest.param([lead_deleted(2, 0), lead(2, 1)], None, (1, 1, 0), id="a marker keeps an equal event out"),
    pytest.param([lead(1, 0), lead_deleted(2, 1), lead(3, 2)], ("NEW", None), (3, 0, 0), id="created again"),
    pytest.param([lead(7, 0), lead_gone(1)], None, (2, 0, 0), id="a tombstone by its offset"),
    pytest.param([lead(7, 0), lead_gone(1), lead_gone(1)], None, (2, 1, 0), id="a tombstone read twice"),
    pytest.param([lead(7, 5), lead_gone(3)], ("NEW", None), (1, 1, 0), id="a tombstone from before is ignored"),
    pytest.param([lead_gone(3), lead(7, 1)], None, (1, 1, 0), id="an event from before the tombstone is ignored"),
    pytest.param([lead(7, 0), lead_gone(1), lead(7, 2)], None, (2, 1, 0), id="a tombstone keeps the version"),
    pytest.param(
        [lead(7, 0), lead_gone(1), lead(8, 2)], ("NEW", None), (3, 0, 0), id="created again after a tombstone"
    ),
    pytest.param(
        [lead(7, 0), lead_deleted(8, 1), lead_gone(2), lead(8, 3)], None, (3, 1, 0), id="deleted, then a tombstone"
    ),
    pytest.param(
        [lead(7, 9, 0, 10), lead_gone(1, 1, 20)], None, (2, 0, 0), id="a tombstone of another partition, by its time"
    ),
    pytest.param(
        [lead(7, 1, 0, 10), lead_gone(9, 1, 5)], ("NEW", None), (1, 1, 0), id="an earlier one of another partition"
    ),
    pytest.param(
        [lead_gone(9, 1, 5), lead(7, 1, 0, 10)], ("NEW", None), (2, 0, 0), id="an event after another partition's"
    ),
    pytest.param([lead_gone(1, 1, 20), lead(7, 9, 0, 10)], None, (1, 1, 0), id="an event before another partition's"),
]
OTHER: dict[str, Any] = {"contact_id": crm.OTHER_CONTACT}
CONTACTS = [
    pytest.param([lead(1, 0), contact(1, 1)], ("NEW", "Ada"), (2, 0, 0), id="a late contact"),
    pytest.param([contact(1, 0), lead(1, 1)], ("NEW", "Ada"), (2, 0, 0), id="an early contact"),
    pytest.param([lead(1, 0, **OTHER), contact(1, 1)], ("NEW", None), (2, 0, 0), id="another contact"),
    pytest.param([contact(1, 0), lead(1, 1), lead(2, 2, **OTHER)], ("NEW", None), (3, 0, 0), id="moved away"),
    pytest.param([contact(1, 0), lead(1, 1, **OTHER), lead(2, 2)], ("NEW", "Ada"), (3, 0, 0), id="moved here"),
    pytest.param(
        [lead(1, 0), lead(2, 1, **OTHER), contact(1, 2), contact(1, 3, "Grace", id=crm.OTHER_CONTACT)],
        ("NEW", "Grace"),
        (4, 0, 0),
        id="moved before either contact came",
    ),
    pytest.param(
        [contact(1, 0), lead(1, 1), lead(2, 2, **OTHER), lead(3, 3)],
        ("NEW", "Ada"),
        (4, 0, 0),
        id="moved away and back",
    ),
    pytest.param([contact(1, 0), lead(1, 1), lead_deleted(2, 2)], None, (3, 0, 0), id="lead deleted"),
    pytest.param(
        [contact(1, 0), lead(1, 1), lead_deleted(2, 2), lead(3, 3)], ("NEW", "Ada"), (4, 0, 0), id="lead again"
    ),
    pytest.param(
        [contact(1, 0, organization_id=crm.OTHER_ORGANIZATION), lead(1, 1)],
        ("NEW", None),
        (2, 0, 0),
        id="the same contact id in another organization",
    ),
]


@pytest.mark.parametrize(("records", "expected", "counts"), [*VERSIONS, *CONTACTS])
@pytest.mark.parametrize("batched", [pytest.param(True, id="one batch"), pytest.param(False, id="one by one")])
async def test_what_a_lead_shows(
    projection: Projection,
    records: list[Record],
    expected: tuple[str, str | None] | None,
    counts: tuple[int, int, int],
    batched: bool,
) -> None:
    applied = Applied()
    for batch in [records] if batched else [[record] for record in records]:
        applied.add(await projection.apply(*batch))
    assert shown(projection) == expected
    assert (applied.written, applied.stale, applied.dropped) == counts
    assert_right(projection, records)


@pytest.mark.parametrize(
    ("records", "name"),
    [
        pytest.param([contact(9, 0), contact(10, 1, "Grace")], "Grace", id="9 to 10"),
        pytest.param([contact(2, 0), contact(1, 1, "Grace")], "Ada", id="older is ignored"),
        pytest.param([contact(2, 0), contact(2, 1, "Grace")], "Ada", id="equal is ignored"),
        pytest.param([contact(1, 0), contact_deleted(2, 1)], None, id="deleted"),
        pytest.param([contact_deleted(2, 0), contact(1, 1)], None, id="a marker keeps an older event out"),
        pytest.param([contact_deleted(2, 0), contact(3, 1)], "Ada", id="created again"),
        pytest.param([contact(7, 0), contact_gone(1)], None, id="a tombstone"),
        pytest.param([contact(7, 5), contact_gone(3)], "Ada", id="a tombstone read again"),
        pytest.param([contact(7, 0), contact_gone(1), contact(7, 2)], None, id="a tombstone keeps the version"),
        pytest.param([contact(7, 0), contact_gone(1), contact(8, 2)], "Ada", id="created again after a tombstone"),
    ],
)
@pytest.mark.parametrize("lead_first", [pytest.param(True, id="lead first"), pytest.param(False, id="lead last")])
async def test_a_lead_shows_the_newest_event_of_its_contact(
    projection: Projection, records: list[Record], name: str | None, lead_first: bool
) -> None:
    everything = [lead(1, 0), *records] if lead_first else [*records, lead(1, 0)]
    for record in everything:
        await projection.apply(record)
    assert shown(projection) == ("NEW", name)
    assert_right(projection, everything)


@pytest.mark.parametrize(
    ("record", "head"),
    [
        pytest.param(lead_deleted(42, 7), Head(False, 42, 7, 0, crm.at_ms(0)), id="deleted"),
        pytest.param(lead_gone(7, seconds=9), Head(False, 41, 7, 0, crm.at_ms(9)), id="a tombstone keeps the version"),
    ],
)
async def test_a_lead_that_is_gone_leaves_only_its_marker(projection: Projection, record: Record, head: Head) -> None:
    await projection.apply(contact(1, 0), lead(41, 3), record)
    marker = stored.values(projection.client)[LEAD]
    assert len(marker) == 22
    assert read_head(marker) == head
    assert stored.index(projection.client, crm.CONTACT, crm.ORGANIZATION) == {}


@pytest.mark.parametrize("lead_is_compressed", [False, True])
@pytest.mark.parametrize("contact_is_compressed", [False, True])
@pytest.mark.parametrize("lead_is_first", [False, True])
async def test_a_lead_and_its_contact_may_be_compressed_or_not(
    projection: Projection, lead_is_compressed: bool, contact_is_compressed: bool, lead_is_first: bool
) -> None:
    """Each as its projector's setting says, and the contact in the other form after its next change."""
    written = [(contact(1, 0), contact_is_compressed), (lead(1, 0), lead_is_compressed)]
    written = [*reversed(written)] if lead_is_first else written
    for record, is_compressed in (*written, (contact(2, 1, "Grace"), not contact_is_compressed)):
        projection.store.compresses = is_compressed
        await projection.apply(record)
    assert_right(projection, [contact(2, 1, "Grace"), lead(1, 0)])


async def test_large_leads_of_a_contact_follow_in_several_calls(projection: Projection) -> None:
    """Readers wait while a call runs, so it leaves what is beyond 2 MiB to the next one."""
    records = [lead(1, n, id=crm.uuid(1000 + n), referrer="x" * 900_000) for n in range(8)]
    await projection.apply(contact(1, 0), *records)
    reply = await projection.call(contact(2, 1, "Grace"))
    [resplice] = resplices(*reply[2::2])
    assert await projection.store.run([resplice]) == [-1 - 3]
    assert (await projection.apply(contact(2, 1, "Grace"))).respliced == 5
    assert_right(projection, [contact(2, 1, "Grace"), *records])


async def test_the_same_event_continues_an_interrupted_fan_out(projection: Projection) -> None:
    """The contact was written, and then the projector died: read again, the event is stale, and its leads follow."""
    records = [lead(1, n, id=crm.uuid(1000 + n)) for n in range(350)]
    assert (await projection.apply(contact(1, 0), *records)).respliced == 0
    grace = contact(2, 1, "Grace")
    reply = await projection.call(grace)
    assert reply[0] == b"1"
    assert set(reply[1::2]) == {0}
    assert len(set(reply[2::2])) == 101, "the first, and 100 of the sorted set"
    assert await projection.store.run(resplices(*reply[2::2])) == [100, 1]
    bodies = [body for (kind, *_), body in projection.documents().items() if kind is resources.LEAD]
    seen = [orjson.loads(body)["contact"]["first_name"] for body in bodies]
    assert (seen.count("Grace"), seen.count("Ada")) == (101, 249), "half-way, each shows a contact"
    applied = await projection.apply(grace)
    assert (applied.stale, applied.respliced) == (1, 249)
    assert projection.documents() == documents_of([grace, *records])
    applied = await projection.apply(contact_deleted(3, 2))
    assert applied.respliced == 350
    assert_right(projection, [contact_deleted(3, 2), *records])


async def test_resplice_may_be_repeated(projection: Projection) -> None:
    await projection.apply(contact(1, 0), lead(1, 0))
    [resplice] = resplices(stored.short(crm.LEAD))
    before = stored.everything(projection.client)
    assert await projection.store.run([resplice, resplice]) == [0, 0]
    assert stored.everything(projection.client) == before


@pytest.mark.parametrize("gone", [0, 1, 2], ids=["the first", "the second", "the last"])
async def test_a_lead_that_is_gone_leaves_the_others_in_the_index(projection: Projection, gone: int) -> None:
    leads = [crm.lead(1, id=crm.uuid(1000 + n)) for n in range(3)]
    deleted = crm.deleted(resources.LEAD, 2, crm.uuid(1000 + gone))
    records = [contact(1, 0), *(message.record(n) for n, message in enumerate([*leads, deleted]))]
    for record in records:
        await projection.apply(record)
    stored.assert_consistent(projection.client)
    applied = await projection.apply(contact(2, 1, "Grace"))
    assert applied.respliced == 2
    assert_right(projection, [*records, contact(2, 1, "Grace")])


async def test_resplice_puts_leads_back_that_the_index_has_lost(projection: Projection) -> None:
    await projection.apply(contact(1, 0), *MANY)
    projection.client.setrange(
        names.document(resources.CONTACT, OWNER, generation(1), crm.CONTACT), FIRST_LEAD.start, bytes(28)
    )
    projection.client.delete(names.contact_leads(OWNER, generation(1), crm.CONTACT))
    await projection.store.run(resplices(*(stored.short(crm.uuid(1000 + n)) for n in range(3))))
    stored.assert_consistent(projection.client)


async def test_a_lead_leaves_the_contact_of_each_generation(projection: Projection) -> None:
    """Generation 2 is behind: there the lead still belongs to another contact than in generation 1."""
    contacts = [crm.CONTACT, crm.OTHER_CONTACT, crm.uuid(0xC3)]
    records = [lead(n, n, contact_id=contact_id) for n, contact_id in enumerate(contacts, start=1)]
    await projection.apply(records[0], generations=(1, 2))
    await projection.apply(records[1], generations=(1,))
    await projection.apply(records[2], generations=(1, 2))
    assert_right(projection, records, (1, 2))
    await projection.apply(records[1], generations=(1, 2))
    await projection.apply(lead_deleted(9, 9), generations=(1, 2))
    assert_right(projection, [lead_deleted(9, 9)], (1, 2))


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(lead_deleted(2, 1), id="deleted"),
        pytest.param(lead(2, 1, contact_id=crm.OTHER_CONTACT), id="moved"),
    ],
)
async def test_resplice_drops_leads_that_are_not_the_contacts_any_more(projection: Projection, record: Record) -> None:
    """As when a projector died before the lead had left the index."""
    await projection.apply(contact(1, 0), lead(1, 0))
    assert await projection.call(record) == [b"1", 0, crm.CONTACT.encode()]
    assert stored.index(projection.client, crm.CONTACT, crm.ORGANIZATION).keys() == {crm.LEAD}
    await projection.apply(contact(2, 1, "Grace"))
    assert stored.index(projection.client, crm.CONTACT, crm.ORGANIZATION) == {}
    stored.assert_consistent(projection.client)


async def test_resplice_drops_the_first_lead_and_continues_with_the_others(projection: Projection) -> None:
    """Another lead becomes the first one, and may be the next in the same slice."""
    await projection.apply(lead(1, 9), *MANY, contact(1, 0))
    moved = lead(2, 10, contact_id=crm.OTHER_CONTACT)
    await projection.crash(moved)
    assert (await projection.apply(contact(2, 1, "Grace"))).respliced == 3
    assert_right(projection, [moved, *MANY, contact(2, 1, "Grace")])


async def test_resplice_takes_leads_in_any_order(projection: Projection) -> None:
    """The one that becomes the first lead need not be the next of the slice."""
    await projection.apply(lead(1, 9), *MANY, contact(1, 0))
    await projection.crash(lead(2, 10, contact_id=crm.OTHER_CONTACT), contact(2, 1, "Grace"))
    ids = [crm.LEAD, crm.uuid(1002), crm.uuid(1000), crm.uuid(1001)]
    await projection.store.run(resplices(*map(stored.short, ids)))
    stored.assert_consistent(projection.client)


async def test_leaving_a_contact_too_late_does_no_harm(projection: Projection) -> None:
    """The lead is back by the time that it would be taken out."""
    await projection.apply(contact(1, 0), lead(1, 0))
    leave = calls.leave_contact(intent_of(lead_deleted(2, 1)), crm.CONTACT, ids(1))  # type: ignore[arg-type]
    assert await projection.store.run([leave]) == [1]
    assert stored.index(projection.client, crm.CONTACT, crm.ORGANIZATION).keys() == {crm.LEAD}


async def test_pending_leads_are_those_that_show_another_summary(projection: Projection) -> None:
    records = [lead(1, n, id=crm.uuid(1000 + n)) for n in range(230)]
    await projection.apply(*records)
    ask = calls.pending_leads(crm.ORGANIZATION, crm.CONTACT, ids(1))
    assert await projection.store.run([ask]) == [[NO_CONTACT]]
    await projection.call(contact(1, 0))
    [[ada, *pending]] = await projection.store.run([ask])
    assert len(set(pending)) == len(pending) == 101, "the first, and 100 of the sorted set"
    await projection.store.run(resplices(*pending))
    [[_, *rest]] = await projection.store.run([ask])
    assert not set(rest) & set(pending)
    await projection.call(contact(2, 1, "Grace"))
    [[grace, *_]] = await projection.store.run([ask])
    since_ada = calls.pending_leads(crm.ORGANIZATION, crm.CONTACT, ids(1), [ada])
    [[present, *still_pending]] = await projection.store.run([since_ada])
    assert present == grace != ada
    assert not set(still_pending) & set(pending), "they show the first change"
    await projection.store.run(resplices(*still_pending))
    [[_, *last]] = await projection.store.run([since_ada])
    await projection.store.run(resplices(*last))
    assert await projection.store.run([since_ada]) == [[grace]]
    [[_, *behind]] = await projection.store.run([ask])
    assert set(behind) <= set(pending), "they do not show the second one yet"
    assert behind


@pytest.mark.parametrize(
    ("before", "record"),
    [
        pytest.param([contact(1, 0), *MANY], contact(2, 1, "Grace"), id="a contact"),
        pytest.param([contact(1, 0), *MANY], contact_deleted(2, 1), id="a contact is deleted"),
        pytest.param(MANY, contact(1, 0), id="a contact that takes its first lead out of the set"),
        pytest.param([contact(1, 0), *MANY], lead(1, 9), id="a lead"),
        pytest.param([contact(1, 0), *MANY, lead(1, 9)], lead_deleted(2, 10), id="a lead is deleted"),
    ],
)
async def test_a_full_redis_refuses_the_whole_of_a_script(
    projection: Projection, before: list[Record], record: Record
) -> None:
    """It refuses a script's first write only: what has written anything may go on."""
    await projection.apply(*before)
    stands = stored.everything(projection.client)
    with Records(projection.client).full():
        with pytest.raises(Unavailable):
            await projection.call(record)
        assert stored.everything(projection.client) == stands
    await projection.apply(record)
    stored.assert_consistent(projection.client)


@pytest.mark.parametrize("record", [pytest.param(lead(1, 1), id="a lead"), pytest.param(contact(1, 0), id="a contact")])
async def test_the_same_event_repairs_a_damaged_document_if_it_overwrites(
    projection: Projection, record: Record
) -> None:
    await projection.apply(contact(1, 0), lead(1, 1))
    stands = stored.everything(projection.client)
    intent = intent_of(record)
    lead_name, contact_name = (
        names.document(resources.LEAD, OWNER, generation(1), crm.LEAD),
        names.document(resources.CONTACT, OWNER, generation(1), crm.CONTACT),
    )
    projection.client.setrange(lead_name if record.kind is resources.LEAD else contact_name, 70, "spoiled")
    assert (await projection.apply(record)).stale == 1
    assert stored.everything(projection.client) != stands
    assert (await apply(projection.store, [intent], ids(1), overwrite_equal=True)).written == 1
    assert stored.everything(projection.client) == stands


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([lead(5, 10), lead_gone(12), lead(5, 13)], id="a tombstone, then the same version again"),
        pytest.param([contact(5, 10), contact_gone(12), contact(5, 13)], id="the same for a contact"),
        pytest.param([lead(5, 10), lead_deleted(6, 11), lead(6, 12)], id="a delete, then an event of its version"),
        pytest.param([lead(5, 10), lead_deleted(5, 11)], id="a delete of the version that is stored"),
        pytest.param([lead(5, 10), lead(5, 13)], id="the same event twice"),
        pytest.param([lead(5, 10), lead_gone(12)], id="a tombstone"),
        pytest.param([lead(5, 10), lead_deleted(6, 11)], id="a delete"),
    ],
)
async def test_a_repair_in_place_keeps_every_state(projection: Projection, records: list[Record]) -> None:
    """The records are read again as `rebuild --organization` does, which also writes what is not newer."""
    everything = [contact(1, 0), *records]
    await projection.apply(*everything)
    assert_right(projection, everything)
    await apply(projection.store, [intent_of(record) for record in records], ids(1), overwrite_equal=True)
    assert_right(projection, everything)


async def test_a_fan_out_writes_nothing_for_a_deleted_organization(projection: Projection) -> None:
    """The erasure has passed the contact and the index of its leads when the fan-out continues with a lead."""
    await projection.apply(crm.organization(1).record(0), contact(1, 0), *MANY)
    pending = (await projection.call(contact(2, 1, "Grace")))[2::2]
    ask = calls.pending_leads(crm.ORGANIZATION, crm.CONTACT, ids(1))
    [[_, *still_pending]] = await projection.store.run([ask])
    assert len(still_pending) == len(MANY)
    await projection.apply(crm.deleted(resources.ORGANIZATION, 2).record(1))
    assert await projection.store.run([ask]) == [[]], "it does not ask for leads that it never writes"
    passed = [
        names.document(resources.CONTACT, OWNER, generation(1), crm.CONTACT),
        names.contact_leads(OWNER, generation(1), crm.CONTACT),
    ]
    not_passed = [key for key in projection.client.scan_iter(names.of_organization(OWNER)) if key not in passed]
    await jobs._drop(projection.store, OWNER, passed)
    assert await projection.store.run(resplices(*pending)) == [0]
    await jobs._drop(projection.store, OWNER, not_passed)
    assert list(projection.client.scan_iter(names.of_organization(OWNER))) == []


async def test_a_lead_that_leaves_a_contact_leaves_nothing_after_the_erasure(projection: Projection) -> None:
    leads = [lead(1, n, id=crm.uuid(1000 + n)) for n in range(2)]
    await projection.apply(crm.organization(1).record(0), contact(1, 0), *leads)
    leave = calls.leave_contact(intent_of(leads[0]), crm.CONTACT, ids(1))  # type: ignore[arg-type]
    await projection.apply(crm.deleted(resources.ORGANIZATION, 2).record(1))
    await jobs.run_all(projection.writing, projection.settings)
    await projection.store.run([leave])
    assert list(projection.client.scan_iter(names.of_organization(OWNER))) == []


async def test_a_contact_that_is_deleted_during_the_erasure_leaves_no_index(projection: Projection) -> None:
    """The index of its leads did not exist when the erasure passed it, and would be made for its only lead."""
    await projection.apply(crm.organization(1).record(0), contact(1, 0), lead(1, 1))
    await projection.apply(crm.deleted(resources.ORGANIZATION, 2).record(1))
    await projection.apply(contact_deleted(2, 2))
    assert not projection.client.exists(names.contact_leads(OWNER, generation(1), crm.CONTACT))


async def test_numbers_and_empty_arrays_survive_a_splice(projection: Projection) -> None:
    """Lua's cjson would turn `[]` into `{}` and round the digits: bytes are cut, never decoded."""
    digits = "12345678901234567890.123456789"
    await projection.apply(
        lead(1, 0, quote={"total": digits}, attribution={"a": [], "b": {}, "c": "\0\\u0000"}), contact(1, 0, 'A"d\\a}')
    )
    body = projection.documents()[LEAD]
    assert digits.encode() in body
    assert b'"source":{"a":[],"b":{},"c":"\\u0000\\\\u0000"}' in body
    assert orjson.loads(body)["contact"]["first_name"] == 'A"d\\a}'
