"""`verify --access` finds every planted difference of organizations and API keys, and nothing else."""

import threading
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from schemas import names, resources
from schemas.layouts import ACCESS, KEY_EXPIRY, LIMITS
from tests.harness import crm
from tests.harness.leadview import Leadview
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.apache

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


PLANTED: dict[tuple[str, str, tuple[str, ...]], Callable[[Any], Any]] = {
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


def verify(leadview: Leadview) -> tuple[int, dict[str, Any]]:
    done = leadview.run("verify", "--access", "--json")
    assert done.stdout, done.output
    return done.status, orjson.loads(done.stdout)


def differences(report: dict[str, Any]) -> set[tuple[str, str, tuple[str, ...]]]:
    return {(each["kind"], each["id"], tuple(each["fields"])) for each in report["examples"]}


def test_it_finds_what_was_planted_and_nothing_else(leadview: Leadview) -> None:
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
    stop = threading.Event()
    changing = threading.Thread(target=_keep_changing, args=(leadview, stop))
    changing.start()
    try:
        for _ in range(3):
            status, report = verify(leadview)
            assert (status, report["differences"], report["examples"]) == (0, 0, []), "no false alarm"
            assert report["checked"]["organizations"] == 12
            assert report["checked"]["api-keys"] in (11, 12), "one is deleted and created again and again"
        for spoil in PLANTED.values():
            spoil(leadview.redis)
        status, report = verify(leadview)
        assert (status, report["differences"]) == (1, len(PLANTED))
        assert differences(report) == PLANTED.keys()
    finally:
        stop.set()
        changing.join()
    done = leadview.run("verify", "--access")
    assert f"api-keys {ORGANIZATIONS[6]} hash {key_hash(6)}: status" in done
    assert "9 differ: 3 missing, 2 extra, 4 changed" in done
    assert done.status == 1


def _keep_changing(leadview: Leadview, stop: threading.Event) -> None:
    """Change an organization and its key again and again: access, the hash, whether it exists at all."""
    own = crm.ORGANIZATION
    version = 1
    while not stop.wait(0.01):
        version += 1
        leadview.publish(
            crm.organization(version, api_access=version % 2 == 0),
            crm.api_key(3 * version, hash=crm.key_hash(version % 3)),
            crm.api_key(3 * version + 1, hash=crm.key_hash(version % 5), status="revoked"),
            *([crm.deleted(resources.API_KEY, 3 * version + 2)] if version % 4 == 0 else []),
        )
    leadview.publish(crm.organization(version + 1), crm.api_key(3 * version + 3, organization_id=own))
