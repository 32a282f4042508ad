"""`verify` finds every planted difference and nothing else, at once and continuously, also during live writes; and what
is repaired in place.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from devstack.ports import free_port
from projector.verify import rolling
from projector.verify.rolling import Budget
from schemas import names, resources
from schemas.control import number_of
from schemas.layouts import ACCESS, KEY_EXPIRY
from tests.chaos.core import writer_to
from tests.chaos.reader import readers_of
from tests.harness import crm, metrics_port
from tests.harness.generations import numbers
from tests.harness.leadview import Leadview
from tests.harness.projection import intent_of
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.apache

OTHER = crm.OTHER_ORGANIZATION
OWNER = names.organization(OTHER)
IDS = [crm.uuid(0x5000 + number) for number in range(10)]


class Planter:
    """Spoils documents of a generation, each in another way. Nothing else ever changes these."""

    def __init__(self, leadview: Leadview, generation: int) -> None:
        self._redis = leadview.redis
        self._generation = leadview.generation(generation)

    def lead(self, number: int) -> bytes:
        return names.document(resources.LEAD, OWNER, self._generation, IDS[number])

    def contact(self, number: int) -> bytes:
        return names.document(resources.CONTACT, OWNER, self._generation, IDS[number])

    def changed_value(self) -> None:
        """Another document, whole and consistent in itself, as another event would have made it."""
        intent: Any = intent_of(crm.contact(1, id=IDS[0], organization_id=OTHER, first_name="Eve").record())
        value = self._redis.get(self.contact(0))
        self._redis.set(self.contact(0), value[:22] + intent.value[22:37] + value[37:65] + intent.value[37:])

    def changed_version(self) -> None:
        self._redis.setrange(self.lead(1), 1, (9).to_bytes(7, "little"))

    def missing(self) -> None:
        self._redis.delete(self.lead(2))

    def extra(self) -> None:
        self._redis.copy(self.lead(3), names.document(resources.LEAD, OWNER, self._generation, crm.uuid(0x5FFF)))

    def corrupted_byte(self) -> None:
        self._redis.setrange(self.lead(4), 60, b"\xff")

    def evicted_contact(self) -> None:
        self._redis.delete(self.contact(5))

    def wrong_summary(self) -> None:
        """The lead of contact 7 shows contact 6."""
        one, other = self._redis.get(self.lead(6)), self._redis.get(self.lead(7))
        at, length = (int.from_bytes(one[i : i + 3], "little") for i in (34, 37))
        summary = one[40 + at : 40 + at + length]
        at, length = (int.from_bytes(other[i : i + 3], "little") for i in (34, 37))
        head = other[:28] + one[28:34] + other[34:37] + len(summary).to_bytes(3, "little")
        self._redis.set(self.lead(7), head + other[40 : 40 + at] + summary + other[40 + at + length :])

    def marker(self) -> None:
        """As if it had been deleted."""
        value = self._redis.get(self.contact(8))
        self._redis.set(self.contact(8), b"D" + value[1:22])

    def lost_from_index(self) -> None:
        self._redis.setrange(self.contact(9), 37, bytes(28))


PLANTED = {
    ("contacts", IDS[0], ("first_name",)): Planter.changed_value,
    ("leads", IDS[1], ("version",)): Planter.changed_version,
    ("leads", IDS[2], ("missing",)): Planter.missing,
    ("leads", crm.uuid(0x5FFF), ("extra",)): Planter.extra,
    ("leads", IDS[4], ("unreadable",)): Planter.corrupted_byte,
    ("contacts", IDS[5], ("missing",)): Planter.evicted_contact,
    ("leads", IDS[7], ("contact",)): Planter.wrong_summary,
    ("contacts", IDS[8], ("missing",)): Planter.marker,
}
INDEX = ("leads", IDS[9], ("index",))


def plant(leadview: Leadview, generation: int) -> None:
    for spoil in PLANTED.values():
        spoil(Planter(leadview, generation))


def victims(*leads: str) -> list[crm.Message]:
    """An organization whose records are written once, and then spoiled: ten contacts, a lead on each or on some."""
    own: dict[str, Any] = {"organization_id": OTHER}
    return [
        crm.organization(id=OTHER, organization_id=OTHER),
        *(crm.contact(id=id_, first_name=f"Ada {number}", **own) for number, id_ in enumerate(IDS)),
        *(crm.lead(id=id_, contact_id=id_, quote={"total": "12.50", "currency": "EUR"}, **own) for id_ in leads or IDS),
    ]


Found = tuple[str, str, tuple[str, ...]]


def differences(report: dict[str, Any]) -> set[Found]:
    """Returns the examples of the report, which must be all that it counted: it keeps ten at most. All are of one
    organization.
    """
    found = {(each["kind"], each["id"], tuple(each["fields"])) for each in report["examples"]}
    assert {each["organization"] for each in report["examples"]} == {OTHER}
    assert len(found) == report["differences"] == report["missing"] + report["extra"] + report["changed"]
    return found


def by_field(found: Iterable[Found]) -> Counter[str]:
    return Counter(f"{kind}.{field}" for kind, _, fields in found for field in fields)


def verify(leadview: Leadview, *words: str) -> tuple[int, dict[str, Any]]:
    done = leadview.run("verify", "--json", *words)
    return done.status, orjson.loads(done.stdout)


@pytest.mark.long
def test_verify_finds_what_was_planted_and_nothing_else(leadview: Leadview) -> None:
    writer = writer_to(leadview, 200, leads=400, contacts=150)
    leadview.serve(*victims(*IDS[:5], *IDS[6:8], IDS[9]))
    writer.start()
    try:
        done = leadview.run("rebuild", "--max-latency", "0")
        assert done.status == 0, done.output
        for words in ((), ("--next",), ("--next",)):
            status, report = verify(leadview, *words)
            assert (status, report["differences"], report["examples"]) == (0, 0, []), "no false alarm"
            assert 300 < report["checked"]["leads"] <= 408
        assert leadview.run("status", "--json").stdout.count('"verified_at": "20') == 1

        plant(leadview, 2)
        status, report = verify(leadview, "--next")
        assert status == 1
        assert differences(report) == PLANTED.keys()
        assert (report["missing"], report["extra"], report["changed"], report["allowed"]) == (3, 1, 4, 0)
        assert report["by_field"] == by_field(PLANTED)

        plant(leadview, 1)
        Planter(leadview, 1).lost_from_index()
        status, report = verify(leadview)
        assert status == 1
        assert differences(report) == {*PLANTED, INDEX}
        assert (report["missing"], report["extra"], report["changed"], report["allowed"]) == (3, 1, 5, 0)
        assert report["by_field"] == by_field({*PLANTED, INDEX})
        _assert_bounds(leadview)
        done = leadview.run("promote", "--force")
        assert done.status == 0, done.output
        assert number_of(leadview.state().live) == 2
    finally:
        writer.stop()


def _assert_bounds(leadview: Leadview) -> None:
    status, report = verify(leadview, "--threshold", "8", "--allow", "leads.version")
    assert (status, report["differences"], report["allowed"]) == (0, 8, 1)
    status, report = verify(leadview, "--sample", "0.5", "--threshold", "9")
    assert status == 0
    assert differences(report) < {*PLANTED, INDEX}
    assert 100 < report["checked"]["leads"] < 310


def test_repaired_in_place(leadview: Leadview) -> None:
    """What is missing or spoiled is written again from the topics, with no gap for readers; nothing else is written."""
    writer = writer_to(leadview, leads=200, contacts=80)
    leadview.serve(*victims())
    with leadview.api(api_redis_timeout=PATIENCE_SECONDS) as api, readers_of(writer, api.port):
        spoiled = Planter(leadview, 1)

        spoiled.changed_value()
        done = leadview.run("rebuild", "--organization", OTHER, "--contact", IDS[0])
        assert done.status == 0, done.output
        assert verify(leadview)[1]["differences"] == 0, "the lead shows the contact again as well"

        before = _organization(leadview)
        for spoil in (Planter.missing, Planter.corrupted_byte, Planter.evicted_contact, Planter.wrong_summary):
            spoil(spoiled)
        spoiled.lost_from_index()
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
        done = leadview.run("rebuild", "--organization", OTHER)
        assert "20 records replayed in place" in done
        assert verify(leadview)[1]["differences"] == 0
        assert _organization(leadview) == before

        done = leadview.run("rebuild", "--organization", OTHER, "--lead", crm.uuid(0x5FFF))
        assert done.status == 1
        assert "the topics hold no record of it" in done
    assert numbers(leadview.state().known) == [1]
    _assert_shown(leadview)


def _organization(leadview: Leadview) -> dict[bytes, Any]:
    keys = sorted(leadview.redis.scan_iter(match=names.organization(crm.ORGANIZATION) + b"1[lc]*"))
    return {key: leadview.redis.get(key) for key in keys}


def _assert_shown(leadview: Leadview) -> None:
    """`show` prints the document, the events that wrote it and its dead letters."""
    bad = crm.Message(resources.LEAD, crm.message_key(resources.LEAD, OTHER, IDS[2]), b"no JSON")
    leadview.publish(bad)
    leadview.wait_until_current()
    done = leadview.run("show", "lead", OTHER, IDS[2])
    assert done.status == 0, done.output
    for part in (
        "generation 1 (live)",
        "version 1 at",
        '"quote_total": 12.5',
        'W/"',
        "Ada 2",
        "dead letter",
        ":leads:",
    ):
        assert part.replace(":leads:", f"{leadview.prefix}leads:") in done, part


REVOKED, HASH = crm.uuid(0xF77), crm.key_hash(77)
DELETED = crm.uuid(0x5FFD)
"""A deleted lead."""


class Verification:
    """A running `verify --continuous`."""

    def __init__(self, leadview: Leadview) -> None:
        self.port = free_port()
        self.child = leadview.start("verify", "--continuous", log="verify", metrics_port=self.port)

    def metric(self, name: str) -> float:
        return metrics_port.metric(self.port, f"leadview_verify_{name}_total") or 0.0

    def has_passed(self, before: float) -> bool:
        """Has each partition that holds records been read as a whole since there were `before` passes?"""
        return self.metric("passes") >= before + len(resources.KINDS) * 3

    def log(self) -> str:
        return self.child.log.read_text()


@pytest.mark.long
def test_continuously(leadview: Leadview) -> None:
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
    writer.start()
    verification = Verification(leadview)
    try:
        wait_until(lambda: verification.has_passed(0), "every partition was read", 180)
        assert verification.metric("differences") == 0, verification.log()
        assert verification.metric("records") > 100
        assert metrics_port.ask(verification.port, "/healthz")[0] == 200
        assert metrics_port.metric(verification.port, "leadview_projector_dead_letters") is None, "it cannot know it"
        _plant_more(leadview)
        planted = {IDS[1], IDS[2], IDS[4], IDS[5], IDS[7], IDS[9], DELETED, REVOKED, crm.uuid(0xA07)}
        for id_ in planted:
            wait_until(lambda id_=id_: f'"entity":"{id_}"' in verification.log(), f"{id_} is found", 180)  # type: ignore[misc]
        # A turn that began while this was being planted has seen a part of it. A later one sees all.
        wait_until(lambda: not _unnamed(verification.log()), "every field is named", 180)
    finally:
        writer.stop()
    assert verification.metric("differences") >= len(planted)
    assert "Ada" not in verification.log()
    assert not _unnamed(verification.log()), verification.log()
    os.kill(verification.child.pid, signal.SIGTERM)
    assert verification.child.wait(60) == 1


def _plant_more(leadview: Leadview) -> None:
    planter, redis = Planter(leadview, 1), leadview.redis
    planter.changed_value()
    for spoil in (Planter.missing, Planter.corrupted_byte, Planter.evicted_contact, Planter.wrong_summary):
        spoil(planter)
    planter.lost_from_index()
    redis.setrange(planter.lead(1), 1, bytes(7))  # an older version
    restored = names.document(resources.LEAD, OWNER, leadview.generation(1), DELETED)
    redis.setrange(restored, 0, b"L" + (1).to_bytes(7, "little"))  # as if the delete had never been applied
    redis.setrange(names.api_key(OWNER, HASH), KEY_EXPIRY.start, bytes(6))
    redis.setrange(names.organization(crm.uuid(0xA07)), ACCESS.start, b"0")


def _unnamed(log: str) -> list[tuple[str, str]]:
    """Returns which of the planted differences the log does not name."""
    planted = (
        (IDS[1], "version"),
        (IDS[2], "missing"),
        (IDS[4], "content"),
        (IDS[5], "missing"),
        (IDS[9], "index"),
        (DELETED, "extra"),
        (REVOKED, "status"),
        (crm.uuid(0xA07), "api_access"),
    )
    return [(entity, field) for entity, field in planted if f'"entity":"{entity}","fields":["{field}"]' not in log]


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
