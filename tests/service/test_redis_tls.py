"""TLS and ACL users, to a cluster and to Sentinels with the master that they name."""

import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from api.errors import Unavailable as ApiUnavailable
from api.redis.address import ClusterMap, location
from devstack.child import Child
from devstack.ports import free_port
from projector.errors import Unavailable
from projector.ledger.checkpoint import Outcome, Stored
from projector.redis.store import Store
from schemas.settings import ApiSettings, ProjectorSettings, load
from tests.harness.ledgers import Opened
from tests.harness.services import not_available
from tests.harness.waiting import eventually

USER = ["--user", "crm", "on", ">se:same", "allkeys", "+@all"]


class Servers:
    """Started with the certificate in `directory`."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.certificate = directory / "certificate.pem"
        self._key = directory / "key.pem"

    def start(self, name: str, *options: str) -> int:
        """A redis-server that speaks TLS only; its port."""
        port = free_port()
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
    if not (shutil.which("openssl") and shutil.which("redis-server")):
        not_available("a certificate needs openssl on PATH, TLS a redis-server that was built with it")
    subject = ["-subj", "/CN=redis", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-nodes"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run(["openssl", "req", "-x509", *key, *subject], cwd=tmp_path, check=True, capture_output=True)  # noqa: S607
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
    await answers(servers.client(port), "SET", "lv:x", "1", "PX", "1")
    return f"rediss+cluster://crm:se%3Asame@127.0.0.1:{port}"


async def start_sentinel(servers: Servers) -> str:
    master = servers.start("master", *USER)
    await answers(servers.client(master), "PING")
    watch = ["--sentinel", "monitor", "crm", "127.0.0.1", str(master), "1"]
    port = servers.start("sentinel", "--requirepass", "open", *watch, "--sentinel")
    await answers(servers.client(port, password="open"), "PING")
    return f"rediss+sentinel://crm:se%3Asame@127.0.0.1:1,127.0.0.1:{port}/crm"


@pytest.mark.parametrize("start", [start_cluster, start_sentinel], ids=["cluster", "Sentinel"])
async def test_tls_and_users(servers: Servers, start: Callable[[Servers], Awaitable[str]]) -> None:
    strange = {"LEADVIEW_REDIS_URL": await start(servers), "LEADVIEW_REDIS_SENTINEL_PASSWORD": "open"}
    known = strange | {"LEADVIEW_REDIS_TLS_CA_FILE": str(servers.certificate)}
    assert await cover(known) == Stored(0)
    assert await find(known)
    with pytest.raises(Unavailable):  # nobody whom we know has signed the certificate
        await cover(strange)
    with pytest.raises(ApiUnavailable):
        await find(strange)


async def cover(environment: dict[str, str]) -> Outcome:
    store = Store(load(ProjectorSettings, environment))
    try:
        return await (await Opened.open(store)).cover({})
    finally:
        await store.close()


async def find(environment: dict[str, str]) -> object:
    where = location(load(ApiSettings, environment))
    try:
        return await (where.read() if isinstance(where, ClusterMap) else where.find())
    finally:
        await where.close()
