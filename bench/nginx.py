"""nginx with Lua as a measured server, if this machine has what it needs."""

import hashlib
import re
import shutil
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

from api.redis.store import SCRIPT
from bench.cores import Cores, pinned
from bench.lab import Lab, client
from bench.server import ROOT, Server
from devstack.child import Child
from devstack.ports import free_port
from devstack.redis_server import RedisServer
from devstack.waiting import wait_until

_PEERS = Path(__file__).parent / "peers"
_START_SECONDS = 10.0
_NEEDS = "nginx with the Lua module and nginx.redis (Debian: nginx-light libnginx-mod-http-lua lua-nginx-redis)"


def start(lab: Lab, stack: ExitStack, redis: RedisServer, cores: Cores, workers: int) -> Server | None:
    """Start nginx with Leadview's script. It is not ready yet.

    Returns None if it is not installed; then the lab notes that it was left out.
    """
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        lab.leave_out("nginx-lua", f"not installed: {_NEEDS}")
        return None
    port = free_port()
    directory = lab.directory / f"nginx-{port}"
    directory.mkdir()
    configuration = directory / "nginx.conf"
    configuration.write_text(_configuration(directory, _modules(program), port, redis, workers))
    command = [program, "-p", str(directory), "-c", str(configuration), "-e", str(directory / "start.log")]
    with pinned(cores.worker):
        child = Child(command, log=directory / "output.log", directory=ROOT)
    stack.callback(child.stop)
    # `nginx -t` would not notice a missing Lua library: it does not run init_by_lua.
    wait_until(lambda: _accepts(port) or not child.running, "nginx accepts connections or ends", _START_SECONDS)
    if not child.running:
        lab.leave_out("nginx-lua", f"{_NEEDS}; nginx says: {child.log.read_text().strip().splitlines()[0]}")
        return None
    return Server(port, child.pid)


def _accepts(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def _configuration(directory: Path, modules: Path, port: int, redis: RedisServer, workers: int) -> str:
    with client(redis) as connection:
        connection.script_load(SCRIPT)
    return (
        (_PEERS / "nginx.conf")
        .read_text()
        .format(
            directory=directory,
            modules=modules,
            workers=workers,
            script=_PEERS / "nginx.lua",
            redis_port=redis.port,
            sha=hashlib.sha1(SCRIPT, usedforsecurity=False).hexdigest(),
            port=port,
        )
    )


def _modules(program: str) -> Path:
    shown = subprocess.run([program, "-V"], capture_output=True, text=True, check=False).stderr
    match = re.search(r"--modules-path=(\S+)", shown)
    return Path(match[1] if match else "/usr/lib/nginx/modules")
