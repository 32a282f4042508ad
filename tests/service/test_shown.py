"""Records that documents show already, asked of a real Redis, alone and in cluster mode."""

import asyncio

import pytest

from devstack.fault_proxy import Faults
from projector.errors import Unavailable
from projector.line.batch import BadRecordGuard, Batch, StoredHeads, event_time
from projector.line.pace import Pacer
from projector.mapping import PutDocument, PutLead
from projector.record import Partition, Record
from projector.redis import calls
from projector.redis.apply import Applied
from schemas import names, resources
from tests.harness import control, crm
from tests.harness.generations import generation, ids
from tests.harness.projection import Projection, behind_proxy, open_projection
from tests.harness.services import RedisService
from tests.harness.waiting import eventually
from tests.service.conftest import everywhere

LEADS, CONTACTS, KEYS = Partition("crm.leads", 0), Partition("crm.contacts", 0), Partition("crm.api-keys", 0)
GRACE = crm.contact(2, first_name="Grace", seconds=3).record(1)
FIRST = ids(1)


async def times(
    projection: Projection, polled: dict[Partition, list[Record]], generations: calls.Generations = FIRST
) -> dict[Partition, list[int | None]]:
    heads = (await stored_heads(projection, polled, generations)).found
    return {
        partition: [
            event_time(record, head or (0, 0, 0, 0)) for record, head in zip(records, heads[partition], strict=True)
        ]
        for partition, records in polled.items()
    }


async def stored_heads(
    projection: Projection, polled: dict[Partition, list[Record]], generations: calls.Generations
) -> StoredHeads:
    heads = StoredHeads(projection.store, polled, generations)
    await heads.ask()
    await heads.arrive_all()
    return heads


@everywhere
async def test_what_documents_show_is_found(projection: Projection) -> None:
    leads = [
        *(crm.lead(1, id=crm.uuid(1000 + n), seconds=n).record(n) for n in range(230)),
        crm.deleted(resources.LEAD, 2, seconds=8).record(230),
        crm.tombstone(resources.LEAD, seconds=9).record(231),
        crm.lead(3, id=crm.uuid(1000), seconds=7).record(232),
    ]
    contacts = [crm.contact(1).record(0), GRACE]
    keys = [crm.api_key(1).record(0)]
    await projection.apply(*contacts, *leads, *keys)
    bad = Record("crm.leads", 0, 233, 0, b"no key", b"{}", (), resources.LEAD)
    found = await times(projection, {LEADS: [*leads, bad], CONTACTS: contacts, KEYS: keys})
    assert found[LEADS] == [None, *(crm.at_ms(n) for n in range(1, 230)), None, crm.at_ms(9), crm.at_ms(7), None]
    assert found[CONTACTS] == [None, crm.at_ms(3)]
    assert found[KEYS] == [None]


async def test_every_generation_must_show_it_and_what_is_not_there_moves_no_other_answer(
    projection: Projection,
) -> None:
    leads = [crm.lead(1, id=crm.uuid(1000 + n), seconds=n).record(n) for n in range(4)]
    await projection.apply(leads[0], leads[2], generations=(1, 2))
    await projection.apply(leads[3])
    first, second, last = (crm.at_ms(n) for n in (0, 2, 3))
    assert await times(projection, {LEADS: leads}, ids(1)) == {LEADS: [first, None, second, last]}
    assert await times(projection, {LEADS: leads}, ids(1, 2)) == {LEADS: [first, None, second, None]}


@pytest.mark.parametrize("generation", [1, 2])
async def test_in_every_generation_a_contact_s_leads_must_be_right(projection: Projection, generation: int) -> None:
    await projection.apply(crm.contact(1).record(0), crm.lead(1).record(0), generations=(1, 2))
    await projection.crash(GRACE, generations=(generation,))
    await projection.apply(GRACE, generations=(3 - generation,))
    assert await times(projection, {CONTACTS: [GRACE]}, ids(1, 2)) == {CONTACTS: [None]}


@pytest.mark.parametrize(
    "record",
    [pytest.param(GRACE, id="changed"), pytest.param(crm.deleted(resources.CONTACT, 2).record(1), id="deleted")],
)
async def test_a_contact_whose_leads_are_not_right_yet_is_not_shown(projection: Projection, record: Record) -> None:
    """Otherwise an interrupted fan-out would not continue."""
    await projection.apply(crm.contact(1).record(0), crm.lead(1).record(0))
    await projection.call(record)
    assert await times(projection, {CONTACTS: [record]}) == {CONTACTS: [None]}
    await projection.apply(record)
    assert (await times(projection, {CONTACTS: [record]}))[CONTACTS] != [None]


async def test_records_that_were_published_again_are_decoded_but_not_sent(projection: Projection) -> None:
    """Also bad ones, which become dead letters, and contacts whose leads are not right yet, which are sent."""
    await projection.apply(crm.contact(1).record(0), crm.lead(1).record(0))
    await projection.call(GRACE)
    again = {
        LEADS: [crm.lead(1).record(5), crm.lead(1, stage="none").record(6), crm.lead(2).record(7)],
        CONTACTS: [crm.contact(2, first_name="Grace").record(5)],
    }
    batch = Batch(BadRecordGuard(10, 10))
    slices = batch.slices(again, 10, await stored_heads(projection, again, ids(1)))
    intents = [intent for intents in slices for intent in intents]
    assert [type(intent) for intent in intents] == [PutLead, PutDocument]
    assert (batch.applied.stale, [letter.offset for letter in batch.dead_letters]) == (1, [6])


@pytest.mark.parametrize("are_lost", [pytest.param(False, id="they arrive"), pytest.param(True, id="they are lost")])
async def test_records_are_left_out_while_later_heads_are_on_their_way(
    redis_server: RedisService, are_lost: bool
) -> None:
    """The heads of 1,000 records are asked for at once: those of the last records are held back."""
    leads = [crm.lead(1, id=crm.uuid(1000 + n)).record(n) for n in range(1100)]
    held = names.document(resources.LEAD, names.organization(crm.ORGANIZATION), generation(1), crm.uuid(2000))
    async with open_projection(redis_server) as projection, behind_proxy(redis_server, held) as (slow, proxy):
        control.write(projection.client)
        await projection.apply(*leads)
        with await slow.sessions.open() as session:
            heads, batch = StoredHeads(slow.store, {LEADS: leads}, session.generations), Batch(BadRecordGuard(10, 10))
            writing = asyncio.create_task(batch.write({LEADS: leads}, session, slow.store, Pacer(), heads))
            await eventually(lambda: batch.applied.stale == 1000, "the first records are left out")
            if are_lost:
                await slow.store.close()
                with pytest.raises(Unavailable):
                    await writing
            else:
                proxy.faults = Faults()
                assert await writing == 1100
                assert batch.applied == Applied(stale=1100)
