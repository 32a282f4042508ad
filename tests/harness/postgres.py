"""PostgreSQL from Debian's packages, as a process of its own with a database in a temporary directory."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from devstack.child import STOP_TIMEOUT_SECONDS, Child, ServerFailed
from devstack.ports import free_port
from devstack.waiting import wait_until

_DATABASE = "crm"
_OPTIONS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "wal_level": "logical", "fsync": "off"}
_USER = "postgres"
"""The superuser of the database. If the tests run as root, which PostgreSQL refuses, also the user of the process."""


class PostgresMissing(RuntimeError):
    """The programs of PostgreSQL are not installed."""


class Postgres(NamedTuple):
    """A running server with the empty database `crm`. Everyone on this machine may connect without a password."""

    programs: Path
    port: int

    def run(self, sql: str, database: str = _DATABASE) -> str:
        """Run statements in one session. Returns the rows without a header. Raises CalledProcessError."""
        command = [str(self.programs / "psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]
        command += ["--set", "ON_ERROR_STOP=1", "--host", "127.0.0.1", "--port", str(self.port), "--username", _USER]
        done = subprocess.run([*command, database], input=sql, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerFailed(done.stderr)
        return done.stdout


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Run a server until the block ends. Raises PostgresMissing, ServerFailed, TimeoutError."""
    programs = _programs()
    with tempfile.TemporaryDirectory(prefix="leadview-postgres-", ignore_cleanup_errors=True) as scratch:
        directory, port = Path(scratch), free_port()
        prefix: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(directory, _USER, _USER)
            prefix = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--init-groups", "--"]
        data = directory / "data"
        initdb = [*prefix, str(programs / "initdb"), "--auth=trust", "--no-sync", f"--username={_USER}"]
        created = Child([*initdb, f"--pgdata={data}"], log=directory / "initdb.log", directory=directory)
        if created.wait(STOP_TIMEOUT_SECONDS) != 0:
            raise created.failure("could not create the database")
        options = [word for name, value in _OPTIONS.items() for word in ("-c", f"{name}={value}")]
        command = [*prefix, str(programs / "postgres"), "-D", str(data), "-p", str(port), *options]
        server = Child(command, log=directory / "postgres.log", directory=directory)
        try:
            postgres = Postgres(programs, port)
            wait_until(lambda: _answers(server, postgres), "PostgreSQL answers")
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
        raise PostgresMissing("PostgreSQL is not installed: `apt-get install postgresql`")
    return found[-1].parent if found else Path(str(elsewhere)).parent


def _answers(server: Child, postgres: Postgres) -> bool:
    server.check_running()
    try:
        return bool(postgres.run("SELECT 1", "postgres"))
    except ServerFailed:
        return False
