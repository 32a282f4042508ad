"""A Redis master with a replica and a Sentinel that watches them, on loopback."""

from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from redis import Redis, exceptions

from devstack.child import Child
from devstack.ports import free_port
from devstack.redis_cluster import keep_up, losing
from devstack.redis_server import NOT_READY, RedisServer, redis_program
from devstack.waiting import PATIENCE_SECONDS, wait_until

MASTER = "leadview"
# By default Redis 7 waits five seconds for more replicas.
_AT_ONCE = ("--repl-diskless-sync-delay", "0")
_CONFIGURATION = """\
port {port}
bind 127.0.0.1
dir {directory}
sentinel monitor {master} 127.0.0.1 {master_port} 1
sentinel down-after-milliseconds {master} 60000
sentinel failover-timeout {master} 60000
"""
"""On a busy machine, a master that does not respond for a second is not down: a failover begins if it is asked for."""


class RedisSentinel:
    """`master` and `replica` keep their initial servers until `join`. A context manager that stops everything."""

    def __init__(self, directory: Path) -> None:
        """Raises RedisServerMissing, ServerFailed, TimeoutError."""
        self.port = free_port()
        self._directory = directory
        self._servers = 0
        self._stack = ExitStack()
        with self._stack:
            self.master = self._new_server()
            self.replica = self._new_server("--replicaof", "127.0.0.1", str(self.master.port))
            sentinel = self._launch(directory / "sentinel")
            self._stack.callback(sentinel.stop)
            wait_until(self._knows_replica, "the Sentinel knows the replica")
            self._stack = self._stack.pop_all()

    @property
    def url(self) -> str:
        """The first Sentinel in the URL does not exist, so a client must ask the next one."""
        return f"redis+sentinel://127.0.0.1:1,127.0.0.1:{self.port}/{MASTER}"

    def losing(self) -> AbstractContextManager[None]:
        """Inside, the replica receives no writes, so `fail_over` loses what the master acknowledges."""
        return losing(self.master, self.replica)

    def fail_over(self, timeout: float = PATIENCE_SECONDS) -> None:
        """Kill the master, and wait until the Sentinel has promoted the replica with the data that it has."""
        self.master.kill()
        self.replica.resume()
        self._promote(timeout)

    def join(self) -> None:
        """Complete a `fail_over`: the promoted server becomes `master` and gets a new `replica`."""
        self.master = self.replica
        wait_until(self._is_over, "the failover is finished")
        self.replica = self._new_server("--replicaof", "127.0.0.1", str(self.master.port))
        wait_until(self.replica.is_in_step, "the new replica is in sync")
        # Otherwise it keeps the killed server and delays the next failover.
        wait_until(lambda: self._ask("sentinel_reset") is not None, "the Sentinel forgets the killed server")
        wait_until(self._knows_replica, "the Sentinel knows the new replica")

    def split(self) -> None:
        """Pause the master until the replica is promoted, then resume it: it still acts as the master."""
        keep_up(self.master)
        self.master.pause()
        self._promote()
        self.master.resume()

    def heal(self) -> None:
        """Wait after `split` until the Sentinel has made the former master a replica of the new one."""
        self.master, self.replica = self.replica, self.master
        wait_until(self.replica.is_in_step, "the former master is a replica")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def _new_server(self, *options: str) -> RedisServer:
        self._servers += 1
        directory = self._directory / f"server-{self._servers}"
        return self._stack.enter_context(RedisServer.start(directory, options=[*_AT_ONCE, *options]))

    def _launch(self, directory: Path) -> Child:
        directory.mkdir(parents=True)
        configuration = directory / "sentinel.conf"
        configuration.write_text(
            _CONFIGURATION.format(port=self.port, directory=directory, master=MASTER, master_port=self.master.port)
        )
        return Child([str(redis_program()), str(configuration), "--sentinel"], log=directory / "sentinel.log")

    def _knows_replica(self) -> bool:
        found = self._ask("sentinel_slaves") or []
        return [replica["port"] for replica in found if replica["master-link-status"] == "ok"] == [self.replica.port]

    def _promote(self, timeout: float = PATIENCE_SECONDS) -> None:
        wait_until(lambda: self._ask("sentinel_failover"), "the Sentinel begins a failover", timeout)
        wait_until(self._is_promoted, "the replica is promoted", timeout)

    def _is_promoted(self) -> bool:
        found = self._ask("sentinel_get_master_addr_by_name")
        return bool(found and found[1] == self.replica.port)

    def _is_over(self) -> bool:
        found = self._ask("sentinel_master")
        return bool(found and found["port"] == self.master.port)

    def _ask(self, method: str) -> Any:
        """Returns what the Sentinel says about the master; None if it does not answer, or does not know it."""
        with Redis(port=self.port, socket_timeout=5.0) as sentinel, suppress(*NOT_READY, exceptions.ResponseError):
            return getattr(sentinel, method)(MASTER)
        return None
