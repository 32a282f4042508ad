"""Passwords come from files and are replaced while everything runs: no request fails, and no record is lost."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from devstack.ports import free_port
from devstack.redis_server import RedisServer
from schemas.api_keys import key_hash, mint
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka
from tests.harness.waiting import eventually, wait_until

ENOUGH = "1000000/1s"


def write(path: Path, secret: str) -> None:
    """As Kubernetes and most tools do it: the file is replaced, so nobody reads a part of it."""
    beside = path.with_suffix(".new")
    beside.write_text(f"{secret}\n")
    beside.replace(path)


class Reader:
    """Reads one lead again and again, from several threads. `statuses` are those of all responses."""

    def __init__(self, api: ApiServer, key: str) -> None:
        self._api, self._key = api, key
        self._stop = Event()
        self.statuses: list[int] = []

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read until the block ends."""
        with ThreadPoolExecutor(4) as threads:
            runs = [threads.submit(self._run) for _ in range(4)]
            try:
                yield
            finally:
                self._stop.set()
        for run in runs:
            run.result()

    def wait_for_more(self) -> None:
        """Wait until some more requests were sent and answered."""
        before = len(self.statuses)
        wait_until(lambda: len(self.statuses) > before + 40, "more requests are answered")

    def _run(self) -> None:
        while not self._stop.is_set():
            self.statuses.append(self._api.get(LEADS + crm.LEAD, key=self._key).status)


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
        reader = Reader(api, key)
        with reader.reading():
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
                reader.wait_for_more()
            leadview.wait_until_current()
        assert set(reader.statuses) == {200}
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
