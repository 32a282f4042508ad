"""A request can be found again: its log line has its id, and the use of its key is counted; neither holds the key."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from devstack.ports import free_port
from schemas import names, resources
from schemas.api_keys import key_hash, mint
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.crm import ORGANIZATION
from tests.harness.leadview import Leadview
from tests.harness.waiting import wait_until

KEY, REVOKED, UNKNOWN = (mint(ORGANIZATION, digit * 30) for digit in "123")
ONE_LEFT = {"key": {"quota": 3, "window_seconds": 36_000}}
OTHER_KEY = crm.uuid(0xF2)


def lines(log: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def line_of(log: Path, request_id: str) -> dict[str, Any]:
    [found] = [line for line in lines(log) if line.get("request_id") == request_id]
    return found


@pytest.mark.apache
def test_a_request_is_found_again(leadview: Leadview) -> None:
    leadview.publish(
        crm.organization(1, rate_limits=ONE_LEFT),
        crm.api_key(1, hash=key_hash(KEY)),
        crm.api_key(1, id=OTHER_KEY, hash=key_hash(REVOKED), status="revoked"),
        crm.api_key(1, id=crm.uuid(0xF3), hash=crm.key_hash(3)),
        crm.lead(1),
    )
    leadview.start("run")
    leadview.wait_until_served()
    port = free_port()
    child = leadview.start_api(port, api_redis_timeout=20)
    api = ApiServer(port)
    wait_until(api.is_ready, "the API is ready")

    def get(path: str, key: str, request_id: str) -> int:
        return api.get(path, key=key, headers={"X-Request-Id": request_id}).status

    assert get(LEADS + crm.LEAD, KEY, "good") == 200
    assert get(LEADS + crm.OTHER_LEAD, KEY, "missing") == 404
    assert get(LEADS + crm.LEAD, KEY, "good-too") == 200
    assert get(LEADS + crm.LEAD, KEY, "too-many") == 429
    assert get(LEADS + crm.LEAD, REVOKED, "revoked") == 401
    assert get(LEADS + crm.LEAD, UNKNOWN, "unknown") == 401
    assert get(f"/{KEY}", KEY, KEY) == 404
    leadview.redis.hset(names.CONTROL, "filled", "")  # as if Redis were being filled again
    wait_until(lambda: get(LEADS + crm.LEAD, KEY, f"unavailable-{len(lines(child.log))}") == 503, "Redis is incomplete")
    child.stop()

    assert not [line for line in lines(child.log) if line.get("request_id") in ("good", "good-too")]
    missing = line_of(child.log, "missing")
    assert (missing["route"], missing["status"], missing["error"]) == (f"{LEADS}{{id}}", 404, "not_found")
    assert (missing["record"], missing["organization"]) == (crm.OTHER_LEAD, ORGANIZATION)
    assert missing["key"] == key_hash(KEY)[:12]
    assert missing["duration_ms"] > 0
    assert [line for line in lines(child.log) if line.get("status") == 503]
    assert not any(key[8:30] in child.log.read_text() for key in (KEY, REVOKED, UNKNOWN))

    name = names.usage(names.organization(ORGANIZATION))
    assert set(leadview.redis.hkeys(name)) == {key_hash(KEY).encode(), key_hash(REVOKED).encode()}, "not the unknown"
    assert 0 < leadview.redis.ttl(name) <= 90 * 24 * 3600
    used = usage(leadview)
    of_key, of_revoked, unused = (used[each] for each in (key_hash(KEY), key_hash(REVOKED), crm.key_hash(3)))
    assert of_key["requests"] >= 5
    assert of_key["refusals"] >= 1
    assert of_key["api_keys"] == [crm.API_KEY]
    assert of_key["last_used"] >= of_key["counted_since"]
    assert (of_revoked["requests"], of_revoked["refusals"]) == (1, 1)
    assert (unused["requests"], unused["last_used"]) == (0, None)
    shown = leadview.call("usage", ORGANIZATION)
    assert "never" in shown
    assert crm.API_KEY in shown
    assert KEY[8:] not in shown
    assert "no API keys" in leadview.call("usage", crm.OTHER_ORGANIZATION)

    with leadview.api() as api:
        assert api.get(LEADS + crm.LEAD, key=REVOKED).status == 401
    assert usage(leadview)[key_hash(REVOKED)]["requests"] == 2, "counts of two processes add up"
    leadview.publish(crm.deleted(resources.ORGANIZATION, 2))
    wait_until(lambda: not usage(leadview), "the counts are erased with the organization")
    wait_until(lambda: not leadview.redis.exists(name), "with their key")


def usage(leadview: Leadview) -> dict[str, dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(leadview.call("usage", ORGANIZATION, "--json").stdout)
    return {each["hash"]: each for each in found}
