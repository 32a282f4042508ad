"""An outbox: PostgreSQL from Debian's packages, and Apache Kafka's own Connect with Debezium's connector, from Maven's
jars: one worker, controlled over its REST API.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import requests

from devstack.child import STOP_TIMEOUT_SECONDS, Child
from devstack.jars import CONNECT
from devstack.ports import free_port
from devstack.programs import while_running
from devstack.waiting import wait_until
from tests.harness.api_server import ApiServer
from tests.harness.programs import printed_by
from tests.harness.services import not_available

_READY_TIMEOUT_SECONDS = 180.0
_JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
# A worker runs only for minutes here, as the brokers do.
_JVM_OPTIONS = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_LOG_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")


class Connect(NamedTuple):
    """A running worker. Its converters are those of Kafka's sample configuration, so each connector sets its own."""

    child: Child
    port: int

    def create(self, connector: Mapping[str, Any]) -> None:
        """Create a connector as its file says it, and wait until its task runs. Raises ServerFailed, TimeoutError."""
        answer = self._ask("POST", "/connectors", connector)
        if not answer.ok:
            raise self.child.failure(f"refused the connector {connector['name']}: {answer.text}")
        status = f"/connectors/{connector['name']}/status"
        wait_until(lambda: self._runs(status), f"the connector {connector['name']} runs", _READY_TIMEOUT_SECONDS)

    def _runs(self, path: str) -> bool:
        answer = self._ask("GET", path)
        if not answer.ok:
            return False
        status = answer.json()
        states = [status["connector"], *status["tasks"]]
        for state in states:
            if state["state"] == "FAILED":
                raise self.child.failure(state["trace"])
        return len(states) > 1 and all(state["state"] == "RUNNING" for state in states)

    def _ask(self, method: str, path: str, body: Any = None) -> requests.Response:
        return requests.request(
            method, f"http://127.0.0.1:{self.port}{path}", json=body, timeout=_READY_TIMEOUT_SECONDS
        )


@contextmanager
def running_connect(directory: Path, bootstrap_servers: str) -> Iterator[Connect]:
    """Run a worker until the block ends. Fetches the jars if needed. Raises JarsMissing, ServerFailed, TimeoutError."""
    jars, port = CONNECT.fetch(), free_port()
    properties = directory / "worker.properties"
    properties.write_text(
        f"bootstrap.servers={bootstrap_servers}\n"
        f"key.converter={_JSON_CONVERTER}\n"
        f"value.converter={_JSON_CONVERTER}\n"
        f"listeners=http://127.0.0.1:{port}\n"
        f"offset.storage.file.filename={directory}/offsets\n"
        "plugin.discovery=service_load\n"
    )
    main = [
        f"-Djava.io.tmpdir={directory}",
        "-cp",
        f"{jars}/*",
        "org.apache.kafka.connect.cli.ConnectStandalone",
        str(properties),
    ]
    child = Child(["java", *_JVM_OPTIONS, *_LOG_OPTIONS, *main], log=directory / "connect.log")
    try:
        answers = while_running(child, lambda: ApiServer(port).answers("/health"))
        wait_until(answers, "Kafka Connect answers", _READY_TIMEOUT_SECONDS)
        yield Connect(child, port)
    finally:
        child.kill()


_DATABASE = "crm"
_OPTIONS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "wal_level": "logical", "fsync": "off"}
_USER = "postgres"
"""The superuser of the database. If the tests run as root, which PostgreSQL refuses, also the user of the process."""


class Postgres(NamedTuple):
    """A running server with the empty database `crm`. Everyone on this machine may connect without a password."""

    programs: Path
    port: int

    def run(self, sql: str, database: str = _DATABASE) -> str:
        """Run statements in one session. Returns the rows without a header. The test fails if it fails."""
        command = [str(self.programs / "psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]
        command += ["--set", "ON_ERROR_STOP=1", "--host", "127.0.0.1", "--port", str(self.port), "--username", _USER]
        return printed_by([*command, database], stdin=sql)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Run a server until the block ends. Raises ServerFailed, TimeoutError."""
    programs = _programs()
    with tempfile.TemporaryDirectory(prefix="leadview-postgres-", ignore_cleanup_errors=True) as scratch:
        directory, port = Path(scratch), free_port()
        prefix: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(directory, _USER, _USER)
            prefix = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--init-groups", "--"]
        data = directory / "data"
        initdb = [*prefix, str(programs / "initdb"), "--auth=trust", "--no-sync", f"--username={_USER}"]
        printed_by([*initdb, f"--pgdata={data}"], directory=directory)
        options = [word for name, value in _OPTIONS.items() for word in ("-c", f"{name}={value}")]
        command = [*prefix, str(programs / "postgres"), "-D", str(data), "-p", str(port), *options]
        server = Child(command, log=directory / "postgres.log", directory=directory)
        try:
            postgres = Postgres(programs, port)
            ready = [str(programs / "pg_isready"), "--quiet", "--host", "127.0.0.1", "--port", str(port)]
            answers = while_running(server, lambda: subprocess.run(ready, check=False).returncode == 0)
            wait_until(answers, "PostgreSQL answers")
            postgres.run(f"CREATE DATABASE {_DATABASE}", "postgres")
            yield postgres
        finally:
            if server.running:
                os.kill(server.pid, signal.SIGINT)  # it closes the connections of others, and does not wait for them
                server.wait(STOP_TIMEOUT_SECONDS)


def _programs() -> Path:
    """Returns the folder of the newest version's programs. Debian has them outside of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    elsewhere = shutil.which("postgres")
    if not found and not elsewhere:
        not_available("PostgreSQL is not installed: `apt-get install postgresql`")
    return found[-1].parent if found else Path(str(elsewhere)).parent
