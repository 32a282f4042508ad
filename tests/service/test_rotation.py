"""Passwords come from files and are replaced while everything runs: no request fails, and no record is lost."""

from pathlib import Path
from typing import Any

from devstack.ports import free_port
from devstack.redis_server import RedisServer
from schemas.api_keys import key_hash, mint
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer, reading
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka
from tests.harness.waiting import eventually, wait_until

ENOUGH = "1000000/1s"


def write(path: Path, secret: str) -> None:
    """As Kubernetes and most tools do it: the file is replaced, so nobody reads a part of it."""
    beside = path.with_suffix(".new")
    beside.write_text(f"{secret}\n")
    beside.replace(path)


async def test_the_password_of_redis(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    password, key = tmp_path / "password", mint(crm.ORGANIZATION)
    write(password, "secret-0")
    settings: dict[str, Any] = {"redis_username": "crm", "redis_password_file": password}
    with (
        RedisServer.start(tmp_path / "redis") as server,
        Leadview(
            kafka, topic_prefix, server, tmp_path, key_rate_limit=ENOUGH, organization_rate_limit=ENOUGH
        ) as leadview,
    ):
        admin = leadview.redis
        admin.execute_command("ACL", "SETUSER", "crm", "on", "~*", "+@all", ">secret-0")
        leadview.topics.create(partitions=1)
        leadview.publish(crm.organization(), crm.api_key(hash=key_hash(key)), crm.contact(), crm.lead())
        projector = leadview.start("run", **settings)
        leadview.wait_until_served()
        api = ApiServer(free_port())
        child = leadview.start_api(api.port, api_workers=2, **settings)
        wait_until(api.is_ready, "the API is ready")
        with reading(api, LEADS + crm.LEAD, key, threads=4) as statuses:
            for number in range(1, 4):
                admin.execute_command("ACL", "SETUSER", "crm", f">secret-{number}")
                write(password, f"secret-{number}")
                admin.execute_command("ACL", "SETUSER", "crm", f"<secret-{number - 1}")
                wait_until(
                    lambda: sum(each["user"] == "crm" for each in admin.client_list()) >= 3,
                    "both workers and the projector are connected",
                )
                admin.client_kill_filter(user="crm")
                leadview.publish(crm.lead(number + 1))
                enough = len(statuses) + 40
                wait_until(lambda enough=enough: len(statuses) > enough, "more requests are answered")  # type: ignore[misc]
            leadview.wait_until_current()
        assert set(statuses) == {200}
        # The file comes late: nobody can log in until it is there.
        admin.execute_command("ACL", "SETUSER", "crm", "resetpass", ">secret-4")
        admin.client_kill_filter(user="crm")
        await eventually(lambda: api.get(LEADS + crm.LEAD, key=key).status == 503, "the API cannot log in")
        assert "invalid username-password pair" in leadview.run("status", **settings)
        write(password, "secret-4")
        await eventually(lambda: api.get(LEADS + crm.LEAD, key=key).status == 200, "the API logs in again")
        leadview.publish(crm.lead(9))
        await leadview.settled()
        wait_until(lambda: leadview.run("status", **settings).status == 0, "all is well")
        assert leadview.run("verify", **settings).status == 0
        assert "secret-" not in projector.log.read_text() + child.log.read_text()
