"""`verify` finds every planted difference and nothing else, at once and continuously, also during live writes: of
documents, and of organizations and API keys (`--access`). And what is repaired in place.
"""

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from devstack.ports import free_port
from devstack.threads import in_thread
from operate.verify import rolling
from operate.verify.rolling import Budget
from projector.redis.store import Store
from projector.verify import comparison
from schemas import names, resources
from schemas.control import number_of
from schemas.layouts import ACCESS, KEY_EXPIRY, LIMITS
from schemas.settings import ProjectorSettings, load
from tests.chaos.core import writer_to
from tests.chaos.reader import readers_of
from tests.harness import crm, metrics_port
from tests.harness.generations import numbers
from tests.harness.leadview import Leadview
from tests.harness.projection import intent_of
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.apache

OTHER = crm.OTHER_ORGANIZATION
OWNER = names.organization(OTHER)
IDS = [crm.uuid(0x5000 + number) for number in range(10)]


class Planter:
    """The place in which documents of a generation are spoiled. Nothing else ever changes these."""

    def __init__(self, leadview: Leadview, generation: int) -> None:
        self.redis = leadview.redis
        self._generation = leadview.generation(generation)

    def name(self, resource: resources.Resource, id_: str) -> bytes:
        return names.document(resource, OWNER, self._generation, id_)

    def lead(self, number: int) -> bytes:
        return self.name(resources.LEAD, IDS[number])

    def contact(self, number: int) -> bytes:
        return self.name(resources.CONTACT, IDS[number])


def change_value(it: Planter) -> None:
    """Another document, whole and consistent in itself, as another event would have made it."""
    intent: Any = intent_of(crm.contact(1, id=IDS[0], organization_id=OTHER, first_name="Eve").record())
    value = it.redis.get(it.contact(0))
    it.redis.set(it.contact(0), value[:22] + intent.value[22:37] + value[37:65] + intent.value[37:])


def show_another_contact(it: Planter) -> None:
    """The lead of contact 7 shows contact 6."""
    one, other = it.redis.get(it.lead(6)), it.redis.get(it.lead(7))
    at, length = (int.from_bytes(one[i : i + 3], "little") for i in (34, 37))
    summary = one[40 + at : 40 + at + length]
    at, length = (int.from_bytes(other[i : i + 3], "little") for i in (34, 37))
    head = other[:28] + one[28:34] + other[34:37] + len(summary).to_bytes(3, "little")
    it.redis.set(it.lead(7), head + other[40 : 40 + at] + summary + other[40 + at + length :])


Found = tuple[str, str, tuple[str, ...]]
INDEX = ("leads", IDS[9], ("index",))
WAYS: dict[Found, Callable[[Planter], Any]] = {
    ("contacts", IDS[0], ("first_name",)): change_value,
    ("leads", IDS[1], ("version",)): lambda it: it.redis.setrange(it.lead(1), 1, (9).to_bytes(7, "little")),
    ("leads", IDS[2], ("missing",)): lambda it: it.redis.delete(it.lead(2)),
    ("leads", crm.uuid(0x5FFF), ("extra",)): lambda it: it.redis.copy(
        it.lead(3), it.name(resources.LEAD, crm.uuid(0x5FFF))
    ),
    ("leads", IDS[4], ("unreadable",)): lambda it: it.redis.setrange(it.lead(4), 60, b"\xff"),
    ("contacts", IDS[5], ("missing",)): lambda it: it.redis.delete(it.contact(5)),
    ("leads", IDS[7], ("contact",)): show_another_contact,
    ("contacts", IDS[8], ("missing",)): lambda it: it.redis.set(
        it.contact(8), b"D" + it.redis.get(it.contact(8))[1:22]
    ),
    INDEX: lambda it: it.redis.setrange(it.contact(9), 37, bytes(28)),
}
SEVERAL = [found for found in WAYS if found[1] in (IDS[2], IDS[4], IDS[5], IDS[7], IDS[9])]
PLANTED = [found for found in WAYS if found != INDEX]


def plant(leadview: Leadview, generation: int, found: Iterable[Found]) -> None:
    for each in found:
        WAYS[each](Planter(leadview, generation))


def victims(*leads: str) -> list[crm.Message]:
    """An organization whose records are written once, and then spoiled: ten contacts, a lead on each or on some."""
    own: dict[str, Any] = {"organization_id": OTHER}
    return [
        crm.organization(id=OTHER, organization_id=OTHER),
        *(crm.contact(id=id_, first_name=f"Ada {number}", **own) for number, id_ in enumerate(IDS)),
        *(crm.lead(id=id_, contact_id=id_, quote={"total": "12.50", "currency": "EUR"}, **own) for id_ in leads or IDS),
    ]


def differences(report: dict[str, Any], organizations: Iterable[str] = (OTHER,)) -> set[Found]:
    """Returns the examples of the report, which must be all that it counted: it keeps ten at most. They are of these
    organizations.
    """
    found = {(each["kind"], each["id"], tuple(each["fields"])) for each in report["examples"]}
    assert {each["organization"] for each in report["examples"]} == {*organizations}
    assert len(found) == report["differences"] == report["missing"] + report["extra"] + report["changed"]
    return found


def by_field(found: Iterable[Found]) -> Counter[str]:
    return Counter(f"{kind}.{field}" for kind, _, fields in found for field in fields)


def verify(leadview: Leadview, *words: str) -> tuple[int, dict[str, Any]]:
    done = leadview.run("verify", "--json", *words)
    assert done.stdout, done.output
    return done.status, done.json


def counted(report: dict[str, Any]) -> list[int]:
    return [report[name] for name in ("missing", "extra", "changed", "allowed")]


async def test_verify_says_that_it_names_no_fields_of_many(leadview: Leadview) -> None:
    leadview.serve(*victims(*IDS[:4])).stop()
    here, settings = Planter(leadview, 1), load(ProjectorSettings, leadview.environment())
    change_value(here)
    store = Store(settings)
    try:
        for most, fields, notes in (
            (1, ("first_name",), []),
            (0, ("content",), ["of 1 that differ, the fields are not named: too many differ"]),
        ):
            found = await comparison.documents(store, settings, leadview.generation(1), most_named=most)
            assert ([each.fields for each in found.examples], found.notes) == ([fields], notes)
    finally:
        await store.close()


@pytest.mark.long
def test_verify_finds_what_was_planted_and_nothing_else(leadview: Leadview) -> None:
    writer = writer_to(leadview, 200, leads=400, contacts=150)
    leadview.serve(*victims(*IDS[:5], *IDS[6:8], IDS[9]))
    with writer:
        leadview.run("rebuild", "--max-latency", "0").ends(0)
        for words in ((), ("--next",), ("--next",)):
            status, report = verify(leadview, *words)
            assert (status, report["differences"], report["examples"]) == (0, 0, []), "no false alarm"
            assert 300 < report["checked"]["leads"] <= 408
        assert leadview.ask("status", "--json").stdout.count('"verified_at": "20') == 1

        plant(leadview, 2, PLANTED)
        status, report = verify(leadview, "--next")
        assert (status, differences(report), counted(report)) == (1, {*PLANTED}, [3, 1, 4, 0])
        assert report["by_field"] == by_field(PLANTED)

        plant(leadview, 1, WAYS)
        status, report = verify(leadview)
        assert (status, differences(report), counted(report)) == (1, {*WAYS}, [3, 1, 5, 0])
        assert report["by_field"] == by_field(WAYS)
        status, report = verify(leadview, "--threshold", "8", "--allow", "leads.version")
        assert (status, report["differences"], report["allowed"]) == (0, 8, 1)
        leadview.run("promote", "--force").ends(0)
        assert number_of(leadview.state().live) == 2


def test_rebuild_of_an_organization_repairs_it_in_place(leadview: Leadview) -> None:
    """What is missing or spoiled is written again from the topics, with no gap for readers; nothing else is written."""
    writer = writer_to(leadview, leads=200, contacts=80)
    leadview.serve(*victims())
    with leadview.api() as api, readers_of(writer, api.port):
        spoiled = Planter(leadview, 1)

        rebuild = partial(leadview.run, "rebuild", "--organization", OTHER)
        change_value(spoiled)
        rebuild("--contact", IDS[0]).ends(0)
        assert verify(leadview)[1]["differences"] == 0, "the lead shows the contact again as well"

        before = _organization(leadview)
        plant(leadview, 1, SEVERAL)
        leadview.redis.set(spoiled.lead(3), b"rubbish")
        leadview.redis.setrange(spoiled.lead(8), 40 + 116, b"\xff")  # inside the contact's id
        assert differences(verify(leadview)[1]) == {
            ("leads", IDS[2], ("missing",)),
            ("leads", IDS[4], ("unreadable",)),
            ("contacts", IDS[5], ("missing",)),
            ("leads", IDS[5], ("index",)),  # the index of a contact is evicted with it
            ("leads", IDS[7], ("contact",)),
            ("leads", IDS[9], ("index",)),
            ("leads", IDS[3], ("missing",)),  # what is not a document counts as none
            ("leads", IDS[8], ("unreadable",)),
        }
        rebuild().ends(0, "20 records replayed in place")
        assert (verify(leadview)[1]["differences"], _organization(leadview)) == (0, before)
        rebuild("--lead", crm.uuid(0x5FFF)).ends(1, "the topics hold no record of it")
    assert numbers(leadview.state().known) == [1]
    # `show` prints the document, the events that wrote it and its dead letters.
    bad = crm.Message(resources.LEAD, crm.message_key(resources.LEAD, OTHER, IDS[2]), b"no JSON")
    leadview.publish(bad)
    leadview.wait_until_current()
    parts = ("generation 1 (live)", "version 1 at", '"quote_total": 12.5', 'W/"', "Ada 2", "dead letter")
    leadview.run("show", "lead", OTHER, IDS[2]).ends(0, *parts, f"{leadview.prefix}leads:")


def _organization(leadview: Leadview) -> dict[bytes, Any]:
    keys = sorted(leadview.redis.scan_iter(match=names.organization(crm.ORGANIZATION) + b"1[lc]*"))
    return {key: leadview.redis.get(key) for key in keys}


REVOKED, HASH = crm.uuid(0xF77), crm.key_hash(77)
DELETED = crm.uuid(0x5FFD)


@pytest.mark.long
def test_continuous_verify_names_what_differs(leadview: Leadview) -> None:
    writer = writer_to(leadview, 20, leads=60, contacts=30)
    leadview.publish(*victims())
    own: dict[str, Any] = {"organization_id": OTHER}
    leadview.publish(
        crm.api_key(id=REVOKED, hash=HASH, status="revoked", **own),
        crm.lead(1, id=DELETED, **own),
        crm.deleted(resources.LEAD, 2, DELETED, OTHER),
        crm.organization(id=crm.uuid(0xA07), organization_id=crm.uuid(0xA07)),
    )
    for _ in range(3):  # records in every partition
        for number in range(9):
            organization = crm.uuid(0xB00 + number)
            leadview.publish(
                crm.organization(id=organization, organization_id=organization),
                crm.api_key(id=organization, organization_id=organization, hash=crm.key_hash(500 + number)),
            )
    leadview.serve()
    port = free_port()

    def metric(name: str) -> float:
        return metrics_port.metric(port, f"leadview_verify_{name}_total") or 0.0

    with writer:
        child = leadview.start("verify", "--continuous", log="verify", metrics_port=port)
        wait_until(lambda: metric("passes") >= len(resources.KINDS) * 3, "every partition was read", 180)
        assert metric("differences") == 0, child.log.read_text()
        assert metric("records") > 100
        assert metrics_port.ask(port, "/healthz")[0] == 200
        assert metrics_port.metric(port, "leadview_projector_dead_letters") is None, "it cannot know it"
        _plant_more(leadview)
        # A turn that began while this was being planted has seen a part of it. A later one sees all.
        log = child.log
        wait_until(lambda: not _unnamed(log.read_text()), lambda: f"{_unnamed(log.read_text())} are named", 360)
    assert metric("differences") >= len(NAMED)
    assert "Ada" not in log.read_text()
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait(60) == 1


def _plant_more(leadview: Leadview) -> None:
    planter, redis = Planter(leadview, 1), leadview.redis
    change_value(planter)
    plant(leadview, 1, SEVERAL)
    redis.setrange(planter.lead(1), 1, bytes(7))  # an older version
    restored = names.document(resources.LEAD, OWNER, leadview.generation(1), DELETED)
    redis.setrange(restored, 0, b"L" + (1).to_bytes(7, "little"))  # as if the delete had never been applied
    redis.setrange(names.api_key(OWNER, HASH), KEY_EXPIRY.start, bytes(6))
    redis.setrange(names.organization(crm.uuid(0xA07)), ACCESS.start, b"0")


NAMED = {
    IDS[1]: "version",
    IDS[2]: "missing",
    IDS[4]: "content",
    IDS[5]: "missing",
    IDS[7]: "contact",
    IDS[9]: "index",
    DELETED: "extra",
    REVOKED: "status",
    crm.uuid(0xA07): "api_access",
}
"""The planted differences that the log names, by their entity."""


def _unnamed(log: str) -> list[str]:
    return [entity for entity, field in NAMED.items() if f'"entity":"{entity}","fields":["{field}"]' not in log]


def test_continuously_finds_what_is_too_much(leadview: Leadview) -> None:
    """No record leads to it: a lead, an organization, an API key, and the record of a hash. What is there rightly, and
    the markers of what was deleted, are not named.
    """
    own: dict[str, Any] = {"organization_id": OTHER}
    leadview.publish(*victims(), crm.api_key(id=KEYS[0], hash=HASH, **own))
    leadview.publish(crm.lead(1, id=DELETED, **own), crm.deleted(resources.LEAD, 2, DELETED, OTHER))
    leadview.serve()
    lead, key, other_hash, organization = crm.uuid(0x5FFF), crm.uuid(0xF66), crm.key_hash(66), crm.uuid(0xAFE)
    plant(leadview, 1, [("leads", lead, ("extra",))])
    leadview.redis.copy(names.api_key_entity(OWNER, KEYS[0]), names.api_key_entity(OWNER, key))
    leadview.redis.copy(names.api_key(OWNER, HASH), names.api_key(OWNER, other_hash))
    leadview.redis.copy(OWNER, names.organization(organization))
    log = leadview.start("verify", "--continuous", log="verify").log

    def unnamed() -> list[str]:
        wanted = [lead, key, f"hash {other_hash}", organization]
        return [entity for entity in wanted if f'"entity":"{entity}","fields":["extra"]' not in log.read_text()]

    wait_until(lambda: not unnamed(), lambda: f"{unnamed()} are named", 180)
    named = {
        line.partition('"entity":"')[2].partition('"')[0] for line in log.read_text().splitlines() if "extra" in line
    }
    assert named - {""} == {lead, key, f"hash {other_hash}", organization}


ORGANIZATIONS = [crm.uuid(0xA00 + number) for number in range(12)]
KEYS = [crm.uuid(0xF00 + number) for number in range(12)]
OWNERS = [names.organization(organization) for organization in ORGANIZATIONS]


def key_hash(number: int) -> str:
    return crm.key_hash(100 + number)


def record(number: int) -> bytes:
    return names.api_key(OWNERS[number], key_hash(number))


def entity(number: int) -> bytes:
    return names.api_key_entity(OWNERS[number], KEYS[number])


def changed(number: int, version: int = 1, **fields: Any) -> list[crm.Message]:
    own: dict[str, Any] = {"organization_id": ORGANIZATIONS[number]}
    return [
        crm.organization(version, id=ORGANIZATIONS[number], **own),
        crm.api_key(version, id=KEYS[number], hash=key_hash(number), **own, **fields),
    ]


PLANTED_ACCESS: dict[Found, Callable[[Any], Any]] = {
    ("organizations", ORGANIZATIONS[0], ("api_access",)): lambda redis: redis.setrange(OWNERS[0], ACCESS.start, b"0"),
    ("organizations", ORGANIZATIONS[1], ("rate_limits",)): lambda redis: redis.setrange(OWNERS[1], LIMITS.start, b"x"),
    ("organizations", ORGANIZATIONS[2], ("missing",)): lambda redis: redis.delete(OWNERS[2]),
    ("organizations", ORGANIZATIONS[3], ("version",)): lambda redis: redis.setrange(OWNERS[3], 1, b"\x09"),
    ("api-keys", KEYS[4], ("missing",)): lambda redis: redis.delete(entity(4)),
    ("api-keys", f"hash {key_hash(5)}", ("missing",)): lambda redis: redis.delete(record(5)),
    ("api-keys", f"hash {key_hash(6)}", ("status",)): lambda redis: redis.setrange(
        record(6), KEY_EXPIRY.start, bytes(6)
    ),
    ("api-keys", f"hash {key_hash(99)}", ("extra",)): lambda redis: redis.copy(
        record(7), names.api_key(OWNERS[7], key_hash(99))
    ),
    ("organizations", crm.uuid(0xAFF), ("extra",)): lambda redis: redis.copy(
        OWNERS[8], names.organization(crm.uuid(0xAFF))
    ),
}
"""Each spoils another organization. Key 6 is revoked: without the mark it would pass."""


def test_verify_access_finds_each_difference(leadview: Leadview) -> None:
    for number in range(12):
        leadview.publish(*changed(number))
    leadview.publish(
        crm.api_key(2, id=KEYS[6], hash=key_hash(6), organization_id=ORGANIZATIONS[6], status="revoked"),
        crm.api_key(id=crm.uuid(0xFFF), hash=key_hash(9), organization_id=ORGANIZATIONS[9], expires_at=crm.at(9)),
        crm.deleted(resources.API_KEY, 2, KEYS[10], ORGANIZATIONS[10]),
        crm.deleted(resources.ORGANIZATION, 2, organization_id=ORGANIZATIONS[11]),
        crm.organization(),  # the one that changes below
    )
    leadview.serve()
    wait_until(lambda: not leadview.redis.exists(names.JOBS), "the deleted organization is erased")
    with in_thread(partial(_keep_changing, leadview)):
        for _ in range(3):
            status, report = verify(leadview, "--access")
            assert (status, report["differences"], report["examples"]) == (0, 0, []), "no false alarm"
            assert report["checked"]["organizations"] == 12
            assert report["checked"]["api-keys"] in (11, 12), "one is deleted and created again and again"
        for spoil in PLANTED_ACCESS.values():
            spoil(leadview.redis)
        status, report = verify(leadview, "--access")
        assert (status, differences(report, {*ORGANIZATIONS[:8], crm.uuid(0xAFF)})) == (1, {*PLANTED_ACCESS})
    said = (f"api-keys {ORGANIZATIONS[6]} hash {key_hash(6)}: status", "9 differ: 3 missing, 2 extra, 4 changed")
    leadview.run("verify", "--access").ends(1, *said)


def _keep_changing(leadview: Leadview, stop: threading.Event) -> None:
    version = 1
    while not stop.wait(0.01):
        version += 1
        leadview.publish(
            crm.organization(version, api_access=version % 2 == 0),
            crm.api_key(3 * version, hash=crm.key_hash(version % 3)),
            crm.api_key(3 * version + 1, hash=crm.key_hash(version % 5), status="revoked"),
            *([crm.deleted(resources.API_KEY, 3 * version + 2)] if version % 4 == 0 else []),
        )
    leadview.publish(crm.organization(version + 1), crm.api_key(3 * version + 3))


def test_the_share_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """On clocks that show what the turns use, and how long the pauses between them are."""
    used = now = 0.0
    monkeypatch.setattr(rolling, "time", SimpleNamespace(monotonic=lambda: now, thread_time=lambda: used))
    budget = Budget(0.01)
    for seconds in (0.05, 0.001, 0.0, 0.03) * 10:
        used += seconds
        now += seconds
        now += budget.pause()
    assert used / now == pytest.approx(0.01, rel=0.1)
