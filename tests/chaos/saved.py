"""The log of a redis-server, copied as it is at one time and put back later: so Redis goes back in time."""

import shutil
from pathlib import Path

from devstack.redis_server import RedisServer


def copy(server: RedisServer, target: Path) -> None:
    """Copy the log as it is now into this directory."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in _files(server):
        into = target / path.relative_to(server.directory)
        into.parent.mkdir(exist_ok=True)
        shutil.copy(path, into)


def restore(server: RedisServer, source: Path) -> None:
    """Replace the log of a server that does not run by the copy, and start it."""
    for path in _files(server):
        path.unlink()
    shutil.copytree(source, server.directory, dirs_exist_ok=True)
    server.restart()


def _files(server: RedisServer) -> list[Path]:
    """Returns the files of the log: Redis 7 has a folder of them, older ones have one file."""
    folder = server.directory / "appendonlydir"
    return [path for path in (server.directory / "appendonly.aof", *folder.glob("*")) if path.is_file()]
