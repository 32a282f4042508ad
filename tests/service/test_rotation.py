"""Passwords come from files and are replaced while everything runs: no request fails, and no record is lost."""

from pathlib import Path
from typing import Any

from devstack.ports import free_port
from schemas.api_keys import key_hash, mint
from tests.harness import crm
from tests.harness.api_server import LEADS, UNLIMITED, ApiServer, reading
from tests.harness.leadview import Leadview
from tests.harness.waiting import wait_until


def write(path: Path, secret: str) -> None:
    """As Kubernetes and most tools do it: the file is replaced, so nobody reads a part of it."""
    beside = path.with_suffix(".new")
    beside.write_text(f"{secret}\n")
    beside.replace(path)


def _ages(admin: Any) -> list[int]:
    """Returns the ages of the API's connections to Redis, in seconds."""
    return [int(each["age"]) for each in admin.client_list() if each["name"] == "leadview-api"]


def test_the_password_of_redis(leadview_with_own_redis: Leadview, tmp_path: Path) -> None:
    leadview, password, key = leadview_with_own_redis, tmp_path / "password", mint(crm.ORGANIZATION)
    write(password, "secret-0")
    settings: dict[str, Any] = {"redis_username": "crm", "redis_password_file": password}
    admin = leadview.redis
    admin.execute_command("ACL", "SETUSER", "crm", "on", "~*", "+@all", ">secret-0")
    leadview.topics.create(partitions=1)
    leadview.publish(crm.organization(), crm.api_key(hash=key_hash(key)), crm.contact(), crm.lead())
    projector = leadview.start("run", **settings)
    leadview.wait_until_served()
    api = ApiServer(free_port())
    child = leadview.start_api(api.port, api_workers=2, **settings, **UNLIMITED)
    wait_until(api.is_ready, "the API is ready")
    with reading(api, LEADS + crm.LEAD, key, threads=4) as statuses:

        def wait_for_more() -> None:
            enough = len(statuses) + 40
            wait_until(lambda: len(statuses) > enough, "more requests are answered")

        for number in range(1, 4):
            admin.execute_command("ACL", "SETUSER", "crm", f">secret-{number}")
            write(password, f"secret-{number}")
            admin.execute_command("ACL", "SETUSER", "crm", f"<secret-{number - 1}")
            # To open a connection takes half a second at most, and one that is closed meanwhile costs 503.
            wait_until(lambda: sum(age >= 1 for age in _ages(admin)) >= 2, "both workers are connected")
            admin.client_kill_filter(user="crm")
            leadview.publish(crm.lead(number + 1))
            wait_for_more()
        leadview.wait_until_current()
    assert set(statuses) == {200}
    # The file comes late: nobody can log in until it is there.
    admin.execute_command("ACL", "SETUSER", "crm", "resetpass", ">secret-4")
    admin.client_kill_filter(user="crm")
    wait_until(lambda: api.get(LEADS + crm.LEAD, key=key).status == 503, "the API cannot log in")
    assert "invalid username-password pair" in leadview.run("status", **settings)
    write(password, "secret-4")
    wait_until(lambda: api.get(LEADS + crm.LEAD, key=key).status == 200, "the API logs in again")
    leadview.publish(crm.lead(9))
    leadview.wait_until_current()
    wait_until(lambda: leadview.run("status", **settings).status == 0, "all is well")
    assert leadview.run("verify", **settings).status == 0
    assert "secret-" not in projector.log.read_text() + child.log.read_text()
