"""`wait` ends as soon as every written generation shows a version, and says why if none does."""

import asyncio

import pytest

from projector.commands.wait import Seen, until_shown
from projector.record import Record
from schemas import resources
from tests.harness import control, crm
from tests.harness.commands import Finished
from tests.harness.leadview import Leadview
from tests.harness.projection import Projection
from tests.harness.waiting import PATIENCE_SECONDS, wait_for, wait_until

LEAD = (crm.ORGANIZATION, crm.LEAD)


async def seen_of(projection: Projection, resource: resources.Resource = resources.LEAD) -> Seen:
    entity = (crm.ORGANIZATION, crm.LEAD if resource is resources.LEAD else crm.CONTACT)
    seen = await until_shown(projection.store, resource, entity, 1, 0)
    assert seen
    return seen


async def test_every_written_generation_must_show_it(projection: Projection) -> None:
    empty = await until_shown(projection.store, resources.LEAD, LEAD, 1, 0)
    assert empty is None, "nothing is served yet"
    await control.complete(projection.store)
    lead = crm.lead(3).record()
    await projection.apply(lead)
    seen = await seen_of(projection)
    assert [seen.shows(version) for version in (2, 3, 4)] == [True, True, False]

    control.write(projection.client, written=(1, 2), filled=(1,))
    seen = await seen_of(projection)
    assert not seen.shows(1), "the next generation has nothing yet"
    waiting = asyncio.create_task(until_shown(projection.store, resources.LEAD, LEAD, 3, PATIENCE_SECONDS))
    await projection.apply(crm.lead(2).record(), generations=(2,))
    assert [(await seen_of(projection)).shows(version) for version in (2, 3)] == [True, False]
    assert not waiting.done()
    await projection.apply(lead, generations=(2,))
    last = await waiting
    assert last
    assert last.shows(3)


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        pytest.param(crm.deleted(resources.LEAD, 4).record(1), 4, id="an event has a version"),
        pytest.param(crm.tombstone(resources.LEAD).record(1), 3, id="a tombstone keeps that of the event before it"),
    ],
)
async def test_a_deletion_counts(projection: Projection, last: Record, shown: int) -> None:
    await control.complete(projection.store)
    await projection.apply(crm.lead(3).record(0))
    await projection.apply(last)
    seen = await seen_of(projection)
    assert [seen.shows(shown), seen.shows(shown + 1)] == [True, False]


async def test_a_contact_is_shown_when_its_leads_show_it(projection: Projection) -> None:
    await control.complete(projection.store)
    await projection.apply(crm.contact(1).record(0), crm.lead(1).record(0))
    changed = crm.contact(2, first_name="Grace").record(1)
    await projection.crash(changed)
    assert not (await seen_of(projection, resources.CONTACT)).shows(1), "the fan-out was interrupted"
    await projection.apply(changed)
    assert (await seen_of(projection, resources.CONTACT)).shows(2)


async def test_a_live_generation_that_is_not_complete_is_not_served(projection: Projection) -> None:
    control.write(projection.client, filled=())
    await projection.apply(crm.lead(3).record())
    assert not (await seen_of(projection)).shows(3)
    await control.complete(projection.store)
    assert (await seen_of(projection)).shows(3)


@pytest.mark.apache
def test_the_command(leadview: Leadview) -> None:
    def words(version: int) -> tuple[str, ...]:
        return ("wait", "lead", *LEAD, "--version", str(version), "--timeout", "0")

    def wait(version: int) -> Finished:
        return leadview.ask(*words(version))

    topic = leadview.topics.name(resources.LEAD)
    wait(1).ends(1, "Redis is empty", "no projector is running")
    first = leadview.start("wait", "lead", *LEAD, "--version", "2", "--timeout", "1000")
    projector = leadview.start("run")
    leadview.publish(crm.organization(), crm.lead(1))
    wait_until(lambda: wait(1).status == 0, "the first version is visible")
    assert first.running
    leadview.publish(crm.lead(2))
    assert first.wait(2 * PATIENCE_SECONDS) == 0
    assert f"lead {crm.LEAD}: version 2 is visible after" in first.log.read_text()
    leadview.wait_until_current()
    lead = f"generation 1 (live): version 2 at {topic}:"
    brought = f"message key {':'.join(LEAD)} brought this version"
    wait_for(lambda: wait(9), lambda done: brought in done, "the projector is alive").ends(1, lead, "lag 0")

    [bad] = leadview.publish(crm.lead(3, stage="WRONG"))
    leadview.wait_until_current()
    place = f"{bad.topic}:{bad.partition}:{bad.offset}"
    wait(3).ends(1, lead, f"dead letter {place}: `$.data.stage` is not valid: allowed are ACCEPTED")
    projector.stop()
    leadview.publish(crm.lead(4))
    at, end = f"{topic}:{bad.partition}: position {bad.offset + 1}", f"end offset {bad.offset + 2}, lag 1"
    wait(4).ends(1, lead, f"{at}, {end}", "no projector is running: nothing is applied")
    age = "status knows for how long the oldest record waits, by the time that the producer gave it"
    wait_until(lambda: (leadview.run("status", "--json").json["freshness"] or 0) > 60, age)
    leadview.run(*words(4), kafka_bootstrap_servers="127.0.0.1:1").ends(1, lead, "Kafka cannot be read: ")
    leadview.run(*words(2), kafka_bootstrap_servers="127.0.0.1:1").ends(0)
    away = {"redis_url": "redis://127.0.0.1:1/0"}
    leadview.run(*words(4), **away).ends(1, "Redis cannot be read: ", "Correct LEADVIEW_REDIS_URL")

    leadview.start("run")
    leadview.publish(crm.deleted(resources.LEAD, 5))
    leadview.wait_until_current()
    wait(6).ends(1, f"generation 1 (live): deleted version 5 at {topic}:")
    refused = "no key of its organization may read it"
    assert refused not in wait(5).output
    leadview.publish(crm.organization(2, api_access=False))
    leadview.wait_until_current()
    wait(5).ends(0, "version 5 is visible after", refused)
    leadview.publish(crm.deleted(resources.ORGANIZATION, 3))
    leadview.wait_until_current()
    wait(6).ends(1, "The organization is deleted")
