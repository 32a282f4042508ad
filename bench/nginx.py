"""nginx with Lua as a server to be measured: where this machine has what it needs."""

import hashlib
import re
import shutil
import subprocess
from contextlib import ExitStack
from importlib import resources
from pathlib import Path

from bench import server
from bench.cores import Cores
from bench.lab import Lab, client
from bench.server import Server
from devstack.ports import free_port
from devstack.redis_server import RedisServer

_PEERS = Path(__file__).parent / "peers"
_NEEDS = "nginx with the Lua module and nginx.redis (Debian: nginx-light libnginx-mod-http-lua lua-nginx-redis)"


def start(lab: Lab, stack: ExitStack, redis: RedisServer, cores: Cores, workers: int) -> Server | None:
    """nginx with Leadview's script; not ready yet. None where it is not installed: then it is left out."""
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
    tested = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    if tested.returncode:
        lab.leave_out("nginx-lua", f"{_NEEDS}; nginx says: {tested.stderr.strip().splitlines()[0]}")
        return None
    return server.start(stack, command, port, cores=cores.worker, log=directory / "output.log")


def _configuration(directory: Path, modules: Path, port: int, redis: RedisServer, workers: int) -> str:
    script = resources.files("api.redis").joinpath("lua", "serve.lua").read_bytes()
    with client(redis) as connection:
        connection.script_load(script)
    return (
        (_PEERS / "nginx.conf")
        .read_text()
        .format(
            directory=directory,
            modules=modules,
            workers=workers,
            script=_PEERS / "nginx.lua",
            redis_port=redis.port,
            sha=hashlib.sha1(script, usedforsecurity=False).hexdigest(),
            port=port,
        )
    )


def _modules(program: str) -> Path:
    shown = subprocess.run([program, "-V"], capture_output=True, text=True, check=False).stderr
    match = re.search(r"--modules-path=(\S+)", shown)
    return Path(match[1] if match else "/usr/lib/nginx/modules")
