"""Contents of a Redis, saved as files, so that every measurement can begin with the same records already stored."""

import shutil

from bench.cores import pinned
from bench.lab import client
from devstack.redis_server import RedisServer
from devstack.waiting import wait_until

_LOAD_SECONDS = 60.0


class Snapshots:
    """Saves what `server` holds, and restores it. Restoring restarts the server: its process id changes."""

    def __init__(self, server: RedisServer, cores: set[int] | None) -> None:
        self._server = server
        self._cores = cores
        self._loaded_at_start = server.directory / "dump.rdb"

    def save(self, name: str) -> None:
        """Save what the server holds now under this name."""
        with client(self._server) as redis:
            redis.save()
        shutil.move(self._loaded_at_start, self._file(name))

    def restore(self, name: str) -> None:
        """Replace what the server holds by what was saved under this name."""
        shutil.copyfile(self._file(name), self._loaded_at_start)
        with pinned(self._cores):
            self._server.restart()
        # A server that is still loading answers INFO already, and refuses everything else.
        with client(self._server) as redis:
            wait_until(lambda: not redis.info("persistence")["loading"], "Redis has loaded a snapshot", _LOAD_SECONDS)

    def _file(self, name: str) -> str:
        return str(self._server.directory / f"{name}.rdb")
