"""Updates of leads that are already stored, the most frequent write: what the script replies, and what is then sent."""

from collections.abc import Sequence
from typing import Any

import pytest

from leadview.redis.scripts import Command
from projector.redis import calls
from projector.redis.apply import apply
from projector.redis.servers import Fence
from projector.redis.store import Store
from schemas import names, resources
from schemas.layouts import FIRST_LEAD, JOB_DUE
from schemas.settings import ProjectorSettings
from tests.harness import crm, stored
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
    pytest.param([crm.lead(2, contact_id=crm.OTHER_CONTACT)], [b"0"], id="a stale record changes nothing"),
    pytest.param([crm.deleted(resources.LEAD, 4)], [b"1", 0, FORMER], id="deleted"),
    pytest.param([crm.tombstone(resources.LEAD, seconds=9)], [b"1", 0, FORMER], id="a tombstone"),
]


@pytest.mark.parametrize(("update", "reply"), UPDATES)
async def test_the_script_names_a_contact_only_if_a_lead_has_left_it(
    projection: Projection, update: list[Message], reply: list[Any]
) -> None:
    await projection.apply(*(message.record(offset) for offset, message in enumerate(STORED)))
    [call] = calls.calls([intent_of(message.record(offset)) for offset, message in enumerate(update, start=9)], ids(1))
    assert await projection.store.run([call.command]) == [reply]


class RecordingStore(Store):
    """A store that also keeps which scripts each of its pipelines called. Each pipeline is one round trip."""

    def __init__(self, settings: ProjectorSettings) -> None:
        super().__init__(settings)
        self.pipelines: list[list[str]] = []

    async def run(
        self, commands: Sequence[Command], *, replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        self.pipelines.append([each.script.name for each in commands])
        return await super().run(commands, replication_epoch=replication_epoch, fence=fence)


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
    projection: Projection, update: list[Message], pipelines: list[list[str]]
) -> None:
    await projection.apply(*(message.record(offset) for offset, message in enumerate(STORED)))
    store = RecordingStore(projection.settings)
    try:
        await apply(store, [intent_of(message.record(9 + n)) for n, message in enumerate(update)], ids(1))
    finally:
        await store.close()
    assert store.pipelines == pipelines
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
