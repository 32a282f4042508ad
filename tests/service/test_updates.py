"""Records of what is stored already. An update of a lead, the most frequent write: what the script replies, and what is
then sent. And records that documents show already, asked of a real Redis, alone and in cluster mode.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from devstack.fault_proxy import Faults
from projector.errors import Unavailable
from projector.line.apply import Applied
from projector.line.batch import BadRecordGuard, Batch, StoredHeads, event_time
from projector.line.pace import Pacer
from projector.mapping import PutDocument, PutLead
from projector.record import Partition, Record
from projector.redis import calls
from runtime.redis.scripts import Command
from schemas import names, resources
from schemas.layouts import FIRST_LEAD, JOB_DUE
from tests.harness import control, crm, stored
from tests.harness.crm import Message
from tests.harness.generations import generation, ids
from tests.harness.projection import Projection, behind_proxy, intent_of
from tests.harness.services import RedisService
from tests.harness.waiting import eventually
from tests.service.conftest import everywhere

STORED = [crm.contact(1), crm.lead(3), crm.lead(3, id=crm.OTHER_LEAD, contact_id=crm.OTHER_CONTACT)]
UPPER = crm.CONTACT.upper()
FORMER, OTHER_FORMER = crm.CONTACT.encode(), crm.OTHER_CONTACT.encode()

UPDATES = [
    pytest.param([crm.lead(4, stage="STALE")], [b"1"], id="the contact stays"),
    pytest.param([crm.lead(4, contact_id=UPPER)], [b"1"], id="the contact stays, its id is in upper case"),
    pytest.param([crm.lead(4, referrer=crm.OTHER_CONTACT)], [b"1"], id="another contact is named in a text"),
    pytest.param(
        [crm.lead(4), crm.lead(4, id=crm.OTHER_LEAD, contact_id=crm.OTHER_CONTACT)], [b"11"], id="two contacts stay"
    ),
    pytest.param([crm.lead(4), crm.lead(5)], [b"11"], id="updated twice"),
    pytest.param([crm.lead(4, contact_id=crm.OTHER_CONTACT)], [b"1", 0, FORMER], id="the contact changes"),
    pytest.param([crm.lead(4), crm.lead(4, id=crm.OTHER_LEAD)], [b"11", 1, OTHER_FORMER], id="one stays, one changes"),
    pytest.param(
        [crm.lead(4, contact_id=crm.OTHER_CONTACT), crm.lead(5)],
        [b"11", 0, FORMER, 1, OTHER_FORMER],
        id="the contact changes and changes back",
    ),
    pytest.param([crm.lead(2, contact_id=crm.OTHER_CONTACT)], [b"3"], id="an older record changes nothing"),
    pytest.param([crm.deleted(resources.LEAD, 4)], [b"1", 0, FORMER], id="deleted"),
    pytest.param([crm.tombstone(resources.LEAD, seconds=9)], [b"1", 0, FORMER], id="a tombstone"),
]


@pytest.mark.parametrize(("update", "reply"), UPDATES)
async def test_the_script_names_a_contact_only_if_a_lead_has_left_it(
    projection: Projection, update: list[Message], reply: list[Any]
) -> None:
    await projection.apply(*(message.record(offset) for offset, message in enumerate(STORED)))
    intents = [intent_of(message.record(offset)) for offset, message in enumerate(update, start=9)]
    [call] = calls.of_intents(intents, ids(1))
    assert await projection.store.run([call.command]) == [reply]


@pytest.mark.parametrize(
    ("update", "pipelines"),
    [
        pytest.param([crm.lead(4)], [["put_leads"]], id="the contact stays"),
        pytest.param(
            [crm.lead(4), crm.lead(4, id=crm.OTHER_LEAD, contact_id=crm.OTHER_CONTACT)],
            [["put_leads"]],
            id="two contacts stay",
        ),
        pytest.param(
            [crm.lead(4, contact_id=crm.OTHER_CONTACT)], [["put_leads"], ["leave_contact"]], id="the contact changes"
        ),
        pytest.param([crm.contact(2, custom_fields={"a": "b"})], [["put_contacts"]], id="the summary stays"),
        pytest.param([crm.contact(2, first_name="Grace")], [["put_contacts"], ["resplice"]], id="the summary changes"),
    ],
)
async def test_an_update_takes_no_more_round_trips_than_it_needs(
    projection: Projection, monkeypatch: pytest.MonkeyPatch, update: list[Message], pipelines: list[list[str]]
) -> None:
    await projection.apply(*(message.record(offset) for offset, message in enumerate(STORED)))
    called: list[list[str]] = []
    run = projection.store.run

    async def noting(commands: Sequence[Command], **options: Any) -> list[Any]:
        """Notes which scripts each pipeline called. Each pipeline is one round trip."""
        called.append([each.script.name for each in commands])
        return await run(commands, **options)

    monkeypatch.setattr(projection.store, "run", noting)
    await projection.apply(*(message.record(9 + n) for n, message in enumerate(update)))
    assert called == pipelines
    stored.assert_consistent(projection.client)


@pytest.mark.parametrize(
    ("job_due", "written"),
    [
        pytest.param(b"-", False, id="the index is there"),
        pytest.param(b"R", True, id="an erasure may have deleted the index"),
    ],
)
async def test_an_update_writes_the_index_only_if_it_may_be_missing(
    projection: Projection, job_due: bytes, written: bool
) -> None:
    await projection.apply(crm.organization(1).record(0), crm.contact(1).record(0), crm.lead(3).record(1))
    owner = names.organization(crm.ORGANIZATION)
    projection.client.setrange(owner, JOB_DUE.start, job_due)
    # What an erasure would have left, if it had reached the index and not yet the lead.
    contact = names.document(resources.CONTACT, owner, generation(1), crm.CONTACT)
    projection.client.setrange(contact, FIRST_LEAD.start, bytes(FIRST_LEAD.stop - FIRST_LEAD.start))
    await projection.apply(crm.lead(4).record(2))
    assert bool(stored.index(projection.client, crm.CONTACT, crm.ORGANIZATION)) is written


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
    assert await times(projection, {LEADS: [*leads, bad], CONTACTS: contacts, KEYS: keys}) == {
        LEADS: [None, *(crm.at_ms(n) for n in range(1, 230)), None, crm.at_ms(9), crm.at_ms(7), None],
        CONTACTS: [None, crm.at_ms(3)],
        KEYS: [None],
    }


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
@pytest.mark.parametrize(
    "record",
    [pytest.param(GRACE, id="changed"), pytest.param(crm.deleted(resources.CONTACT, 2).record(1), id="deleted")],
)
async def test_a_contact_is_shown_when_its_leads_are_right_in_every_generation(
    projection: Projection, record: Record, generation: int
) -> None:
    """Otherwise an interrupted fan-out would not continue."""
    await projection.apply(crm.contact(1).record(0), crm.lead(1).record(0), generations=(1, 2))
    await projection.crash(record, generations=(generation,))
    await projection.apply(record, generations=(3 - generation,))
    assert await times(projection, {CONTACTS: [record]}, ids(1, 2)) == {CONTACTS: [None]}
    await projection.apply(record, generations=(1, 2))
    assert (await times(projection, {CONTACTS: [record]}, ids(1, 2)))[CONTACTS] != [None]


async def test_records_that_were_published_again_are_sent_to_be_compared(projection: Projection) -> None:
    """Redis has to tell a retry from other content with the same version. Bad ones become dead letters."""
    await projection.apply(crm.contact(1).record(0), crm.lead(1).record(0))
    await projection.call(GRACE)
    again = {
        LEADS: [crm.lead(1).record(5), crm.lead(1, stage="none").record(6), crm.lead(2).record(7)],
        CONTACTS: [crm.contact(2, first_name="Grace").record(5)],
    }
    batch = Batch(BadRecordGuard(10, 10))
    slices = batch.slices(again, 10, await stored_heads(projection, again, ids(1)))
    intents = [intent for intents in slices for intent in intents]
    assert [type(intent) for intent in intents] == [PutLead, PutLead, PutDocument]
    assert (batch.applied.stale, [letter.offset for letter in batch.dead_letters]) == (0, [6])


async def test_a_position_keeps_the_time_of_the_last_good_record(projection: Projection) -> None:
    """Also if a later poll of the batch has bad records only."""
    control.write(projection.client)
    batch = Batch(BadRecordGuard(10, 10))
    with await projection.writing.sessions.open() as session:
        for record in (crm.lead(1, seconds=5).record(0), crm.lead(1, stage="none", seconds=7).record(1)):
            await batch.write({LEADS: [record]}, session, projection.store, Pacer())
    position = batch.advances({LEADS: 0})[LEADS].position
    assert (position.offset, position.event_time) == (2, crm.at_ms(5))


@pytest.mark.parametrize("are_lost", [pytest.param(False, id="they arrive"), pytest.param(True, id="they are lost")])
async def test_records_are_left_out_while_later_heads_are_on_their_way(
    alone: Projection, redis_server: RedisService, are_lost: bool
) -> None:
    """The heads of 1,000 records are asked for at once: those of the last records are held back."""
    leads = [crm.lead(1, id=crm.uuid(1000 + n)).record(n) for n in range(1100)]
    held = names.document(resources.LEAD, names.organization(crm.ORGANIZATION), generation(1), crm.uuid(2000))
    async with behind_proxy(redis_server, held) as (slow, proxy):
        control.write(alone.client)
        await alone.apply(*leads)
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
