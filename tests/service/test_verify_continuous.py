"""`verify --continuous` finds what was planted, gives no false alarm, and exports both."""

import os
import signal
from typing import Any

import pytest

from devstack.ports import free_port
from projector.verify.rolling import pause
from schemas import names, resources
from schemas.layouts import ACCESS, KEY_EXPIRY
from tests.harness import crm, metrics_port
from tests.harness.histories import Changes, Writer
from tests.harness.leadview import Leadview
from tests.harness.waiting import wait_until
from tests.service.test_verify import IDS, OTHER, OWNER, Planter, victims

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
@pytest.mark.apache
def test_it_finds_what_was_planted_and_nothing_else(leadview: Leadview) -> None:
    changes = Changes(leads=60, contacts=30)
    leadview.publish_all([*changes.initial(), *victims()])
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
    leadview.start("run")
    leadview.wait_until_served()
    writer = Writer(leadview, changes, rate=20)
    writer.start()
    verification = Verification(leadview)
    try:
        wait_until(lambda: verification.has_passed(0), "every partition was read", 180)
        assert verification.metric("differences") == 0, verification.log()
        assert verification.metric("records") > 100
        assert metrics_port.ask(verification.port, "/healthz")[0] == 200
        assert metrics_port.metric(verification.port, "leadview_projector_dead_letters") is None, "it cannot know it"
        _plant(leadview)
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


def _plant(leadview: Leadview) -> None:
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


@pytest.mark.parametrize(
    ("used", "elapsed", "seconds"),
    [
        pytest.param(0.05, 0.1, 4.9, id="busy"),
        pytest.param(0.05, 5.0, 0.0, id="the share is not used up"),
        pytest.param(0.0, 0.0, 0.0, id="nothing done"),
    ],
)
def test_the_share_of_a_core(used: float, elapsed: float, seconds: float) -> None:
    assert pause(used, elapsed, 0.01) == pytest.approx(seconds)
