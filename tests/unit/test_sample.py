"""The sample data keeps the contract of change events, repeats with its seed, and looks alive."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice

import msgspec
import orjson
import pytest

from devstack.sample import Message, SampleCrm
from devstack.sandbox import CHANGE_SECONDS, Sandbox
from docs.generate.json_schema import event_types
from schemas import events
from schemas.api_keys import key_hash, parse
from schemas.resources import KINDS, RESOURCES

DECODERS = {name: msgspec.json.Decoder(struct) for name, struct in event_types().items()}
TOPICS = {kind.noun: kind.topic for kind in KINDS}
START = datetime(2026, 11, 21, 12, tzinfo=UTC)
CHANGES = 3000


def clock() -> Callable[[], datetime]:
    """A second passes at each look."""
    ticks = iter(range(10**9))
    return lambda: START + timedelta(seconds=next(ticks))


def crm(seed: int = 7, **sizes: int) -> SampleCrm:
    return SampleCrm(seed, now=clock(), **sizes)


def story(sample: SampleCrm, changes: int = CHANGES) -> list[Message]:
    return [*sample.initial(), *islice(sample.changes(), changes)]


def decoded(message: Message) -> events.CloudEvent:
    assert message.value is not None
    event: events.CloudEvent = DECODERS[orjson.loads(message.value)["type"]].decode(message.value)
    return event


def entities(messages: Iterable[Message], kind: type[events.Entity]) -> list[events.Entity]:
    data = (getattr(decoded(message), "data", None) for message in messages if message.value is not None)
    return [entity for entity in data if isinstance(entity, kind)]


STORY = story(crm())


SANDBOX = [*Sandbox(START.timestamp).initial(), *islice(Sandbox(START.timestamp).changes(), 1)]


@pytest.mark.parametrize("story", [pytest.param(STORY, id="sample"), pytest.param(SANDBOX, id="sandbox")])
def test_every_message_keeps_the_contract(story: list[Message]) -> None:
    for message in story:
        organization, _, entity = message.key.decode().partition(":")
        if message.value is None:
            assert message.topic in {resource.topic for resource in RESOURCES}
            continue
        event = decoded(message)
        data = getattr(event, "data", None)
        assert isinstance(data, events.Entity)
        assert (data.organization_id, data.id) == (organization, entity or organization)
        assert message.topic == TOPICS[str(event.__struct_config__.tag).split(".")[1]]


def test_versions_grow() -> None:
    last: dict[bytes, int] = {}
    for message in STORY:
        if message.value is not None:
            version = orjson.loads(message.value)["data"]["version"]
            assert version > last.get(message.key, 0)
            last[message.key] = version


def test_nothing_comes_after_a_delete() -> None:
    gone: set[bytes] = set()
    for message in STORY:
        assert message.key not in gone
        if message.value is None or b".deleted" in message.value:
            gone.add(message.key)
    assert len(gone) > 10


def test_the_same_seed_tells_the_same_story() -> None:
    assert story(crm(), 200) == STORY[: len(story(crm(), 200))]
    assert crm().tenants == crm().tenants
    assert not {tenant.api_key for tenant in crm(8).tenants} & {tenant.api_key for tenant in crm().tenants}


def test_every_key_opens_its_organization() -> None:
    sample = crm()
    keys = [key for key in entities(STORY, events.ApiKey) if isinstance(key, events.ApiKey)]
    active = {key.hash: key for key in keys if key.status == "active"}
    assert len(sample.tenants) == len(active) == 3
    for tenant in sample.tenants:
        assert parse(tenant.api_key).organization_id == tenant.organization_id
        assert active[key_hash(tenant.api_key)].organization_id == tenant.organization_id


def test_what_is_shown_around_stays() -> None:
    sample = crm(contacts=3, leads=3)
    story(sample)
    for tenant in sample.tenants:
        assert sample.leads[tenant.lead_id].contact_id == tenant.contact_id
        assert sample.contacts[tenant.contact_id].organization_id == tenant.organization_id


LEADS = [lead for lead in entities(STORY, events.Lead) if isinstance(lead, events.Lead)]
CONTACTS = [contact for contact in entities(STORY, events.Contact) if isinstance(contact, events.Contact)]


def test_it_shows_what_there_can_be() -> None:
    assert {lead.stage for lead in LEADS} == set(msgspec.json.schema(events.Stage)["enum"])
    values = {type(value) for contact in CONTACTS for value in (contact.custom_fields or {}).values()}
    assert values == {str, int, float, bool, list, type(None)}
    assert {message.value is None for message in STORY} == {True, False}, "tombstones"


def test_the_sandbox_is_the_same_at_every_start() -> None:
    first, second = (list(Sandbox(START.timestamp).initial()) for _ in range(2))
    assert first == second


def test_only_one_lead_of_the_sandbox_follows_the_clock_and_its_version_grows() -> None:
    before = list(Sandbox(START.timestamp).initial())
    after = list(Sandbox(lambda: START.timestamp() + CHANGE_SECONDS).initial())
    pairs = zip(entities(before, events.Entity), entities(after, events.Entity), strict=True)
    [(lead, changed)] = [pair for pair in pairs if pair[0] != pair[1]]
    assert (changed.id, changed.version) == (lead.id, lead.version + 1)


def test_no_mail_and_no_call_reaches_anyone() -> None:
    fictional = (
        "+442079460",
        "+447700900",
        "+121255501",
        "+141655501",
        "+493023125",
        "+331990",
        "+46846500",
        "+6125550",
    )
    for contact in CONTACTS:
        assert (contact.email or "@example.com").split("@")[1] in ("example.com", "example.org", "example.net")
        assert (contact.email or "a").isascii()
        assert (contact.phone or fictional[0]).replace(" ", "").startswith(fictional)
