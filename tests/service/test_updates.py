"""An update of a lead, the most frequent write: what the script replies, and what is then sent."""

from collections.abc import Sequence
from typing import Any

import pytest

from projector.line.batch import BadRecordGuard, Batch
from projector.line.pace import Pacer
from projector.line.policy import Policy
from projector.record import Partition
from projector.redis import calls
from runtime.redis.scripts import Command
from schemas import names, resources
from schemas.layouts import FIRST_LEAD, JOB_DUE
from tests.harness import control, crm, stored
from tests.harness.crm import Message
from tests.harness.generations import generation, ids
from tests.harness.projection import Projection, intent_of

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
async def test_update_takes_no_more_round_trips_than_it_needs(
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
async def test_update_writes_the_index_only_if_it_may_be_missing(
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


async def test_position_keeps_the_time_of_the_last_good_record(projection: Projection) -> None:
    """Also if a later poll of the batch has bad records only."""
    control.write(projection.client)
    leads, batch = Partition("crm.leads", 0), Batch(BadRecordGuard(10, 10), Policy.of(projection.settings))
    with await projection.writing.sessions.open() as session:
        for record in (crm.lead(1, seconds=5).record(0), crm.lead(1, stage="none", seconds=7).record(1)):
            await batch.write({leads: [record]}, session, projection.store, Pacer())
    position = batch.advances({leads: 0})[leads].position
    assert (position.offset, position.event_time) == (2, crm.at_ms(5))
