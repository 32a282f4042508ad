"""TLS and ACL users, to a cluster and to Sentinels with the master that they name."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from devstack.child import Child
from devstack.ports import free_port
from leadview.redis import errors
from leadview.redis.access import SlotMap, location
from projector.errors import Unavailable
from projector.ledger.control import Stored
from projector.redis.store import Store
from schemas.settings import ApiSettings, ProjectorSettings, load
from tests.harness import certificates
from tests.harness.projection import Opened
from tests.harness.services import not_available
from tests.harness.waiting import PATIENCE_SECONDS, eventually

USER = ["--user", "crm", "on", ">se:same", "allkeys", "+@all"]


class Servers:
    """Started with a certificate that is created in `directory`."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.certificate, self._key = certificates.create(directory)
        self.ports: dict[str, int] = {}

    def start(self, name: str, *options: str) -> int:
        """A redis-server that speaks TLS only; its port."""
        port = self.ports[name] = free_port()
        directory = self._directory / name
        directory.mkdir()
        files = [("cert", self.certificate), ("key", self._key), ("ca-cert", self.certificate)]
        tls = [word for kind, file in files for word in (f"--tls-{kind}-file", str(file))]
        (directory / "redis.conf").touch()
        words = ["--port", "0", "--tls-port", str(port), *tls, "--tls-auth-clients", "no", "--tls-replication", "yes"]
        program = shutil.which("redis-server") or ""
        command = [program, str(directory / "redis.conf"), *words, "--dir", str(directory), *options]
        self._stack.callback(Child(command, log=directory / "log").kill)
        return port

    def client(self, port: int, password: str | None = None) -> Any:
        return redis.Redis(
            host="127.0.0.1",
            port=port,
            password=password,
            ssl=True,
            ssl_ca_certs=str(self.certificate),
            retry=Retry(NoBackoff(), 0),
        )


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    if not shutil.which("redis-server"):
        not_available("TLS needs a redis-server that was built with it")
    with ExitStack() as stack:
        yield Servers(tmp_path, stack)


async def answers(client: Any, *words: Any) -> None:
    def asked() -> bool:
        try:
            return bool(client.execute_command(*words))
        except redis.RedisError:
            return False

    with client:
        await eventually(asked, "the server answers")


async def start_cluster(servers: Servers) -> str:
    options = ["--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-announce-ip", "127.0.0.1"]
    port = servers.start("node", *options, *USER)
    await answers(servers.client(port), "CLUSTER ADDSLOTS", *range(16384))
    await answers(servers.client(port), "SET", "lv3:x", "1", "PX", "1")
    return f"rediss+cluster://crm:se%3Asame@127.0.0.1:{port}"


async def start_sentinel(servers: Servers) -> str:
    master = servers.start("master", *USER)
    await answers(servers.client(master), "PING")
    watch = ["--sentinel", "monitor", "crm", "127.0.0.1", str(master), "1"]
    port = servers.start("sentinel", "--requirepass", "open", *watch, "--sentinel")
    await answers(servers.client(port, password="open"), "PING")
    return f"rediss+sentinel://crm:se%3Asame@127.0.0.1:1,127.0.0.1:{port}/crm"


@pytest.mark.parametrize("start", [start_cluster, start_sentinel], ids=["cluster", "Sentinel"])
async def test_tls_and_users_whose_passwords_are_replaced(
    servers: Servers, start: Callable[[Servers], Awaitable[str]], tmp_path: Path
) -> None:
    """The URL and the passwords are in files. Nobody logs in to servers whose certificate was signed by a stranger."""
    url, of_sentinels = tmp_path / "url", tmp_path / "of-sentinels"
    url.write_text(f"{await start(servers)}\n")
    of_sentinels.write_text("open")
    environment = {
        "LEADVIEW_REDIS_URL_FILE": str(url),
        "LEADVIEW_REDIS_SENTINEL_PASSWORD_FILE": str(of_sentinels),
        "LEADVIEW_REDIS_TLS_CA_FILE": str(servers.certificate),
    }
    strange = {name: text for name, text in environment.items() if name != "LEADVIEW_REDIS_TLS_CA_FILE"}
    async with opened(environment) as both_are_served:
        await eventually(both_are_served, "both log in")
        async with opened(strange, either=True) as one_is_served:
            assert not await one_is_served()
        with servers.client(servers.ports["node" if "node" in servers.ports else "master"]) as admin:
            admin.execute_command("ACL", "SETUSER", "crm", "resetpass", ">other")
            admin.client_kill_filter(user="crm")
        if "sentinel" in servers.ports:
            with servers.client(servers.ports["sentinel"], password="open") as admin:
                admin.execute_command("ACL", "SETUSER", "default", "resetpass", ">shut")
                admin.client_kill_filter(_type="normal", skipme=True)
        assert not await both_are_served()
        url.write_text(url.read_text().replace("se%3Asame", "other"))
        of_sentinels.write_text("shut")
        await eventually(both_are_served, "both log in with what the files hold now")


@asynccontextmanager
async def opened(environment: dict[str, str], *, either: bool = False) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Yields whether both programs are served, or `either` of them: the projector opens its ledger; the API finds out
    what it has to know before it connects, which is the owners of slots or the master.
    """
    store = Store(load(ProjectorSettings, environment))
    where = location(load(ApiSettings, environment), PATIENCE_SECONDS)

    async def are_served() -> bool:
        served = 0
        with suppress(Unavailable):
            served += isinstance(await (await Opened.open(store)).cover({}), Stored)
        with suppress(errors.Unavailable):
            served += bool(await (where.read() if isinstance(where, SlotMap) else where.find()))
        return served >= (1 if either else 2)

    try:
        yield are_served
    finally:
        await store.close()
        await where.close()
