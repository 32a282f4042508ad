"""The servers that are measured, each a child process: Leadview's API, and its peers and limits, which use the same
Redis with the same documents."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
from msgspec import Struct

from api.redis.scripts import serve
from bench.benchmark import LEADVIEW, Lab, Subject, client
from bench.crm import Crm, Tenant, lead_requests
from bench.filling import bodies, fill, live
from bench.load import Load
from bench.machine import Cores, pinned, worker_cores
from devstack.child import Child, ServerFailed
from devstack.ports import free_port
from devstack.programs import API, ROOT, Program, ask, environment, while_running
from devstack.redis_server import RedisServer
from devstack.waiting import wait_until
from projector.record import Record
from schemas import names
from schemas.resources import LEAD
from schemas.settings import Compression

PEERS = (
    Subject("asgi-constant", "limit", "bare ASGI, returns a constant of the same size; same uvicorn settings"),
    Subject("starlette-constant", "limit", "a Starlette route, returns that constant; same uvicorn settings"),
    Subject("nginx-lua", "peer", "nginx with Lua: the same script call, checks and headers"),
)
_WARM_UP_SECONDS = 1.0
_WARM_UP_CONNECTIONS = 16
_NGINX_NEEDS = "nginx with the Lua module and nginx.redis (Debian: nginx-light libnginx-mod-http-lua lua-nginx-redis)"


class Server(Struct, frozen=True):
    """A running server on loopback, and the processes that it started."""

    port: int
    child: Child

    def cpu_seconds(self) -> float:
        """User and system time of all its processes since they started."""
        parent = psutil.Process(self.child.pid)
        return cpu_seconds([parent, *parent.children(recursive=True)])

    def serves(self, request: bytes) -> bool:
        """Send this whole GET request. Returns whether the response is 200."""
        first, *lines = request.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines if line)
        return ask("127.0.0.1", self.port, first.split(" ")[1], headers=headers).status == 200

    def wait_until_ready(self, request: bytes) -> None:
        """Wait until it responds to this request with 200. Raises ServerFailed, TimeoutError."""
        ready = while_running(self.child, partial(self.serves, request))
        wait_until(ready, f"the server on port {self.port} answers")


class Stage(Struct):
    """Servers that are ready, the Redis that they use, and the load that can be put on them."""

    lab: Lab
    stack: ExitStack
    cores: Cores
    redis: RedisServer
    tenants: list[Tenant]
    load: Load
    servers: dict[str, Server]

    def redis_cpu_seconds(self) -> float:
        """User and system time of Redis since it started."""
        return cpu_seconds([psutil.Process(self.redis.pid)])

    def add(self, name: str, server: Server, request: bytes) -> None:
        """Wait until this server answers the request, and warm it up."""
        server.wait_until_ready(request)
        if not self.lab.quick:
            self.load.closed(server.port, _WARM_UP_CONNECTIONS, _WARM_UP_SECONDS)
        self.servers[name] = server


def stage(
    lab: Lab,
    stack: ExitStack,
    crm: Crm,
    records: Iterable[Record],
    *,
    compression: Compression = "none",
    requests: int = 1000,
) -> Stage:
    """Fill a Redis with these records of a core product, and start the API on it. The load is this number of requests
    for leads, randomly chosen."""
    cores = worker_cores()
    redis = lab.redis(stack, cores)
    fill(redis, records, compression)
    asked = lead_requests(crm.tenants, requests)
    found = Stage(lab, stack, cores, redis, crm.tenants, Load(lab, asked, cores.load), {})
    found.add(LEADVIEW, leadview(lab, stack, redis, cores), asked[0])
    return found


def add_peers(stage: Stage) -> None:
    """Start all peers and limits on the stage. The lab notes which ones cannot run on this machine."""
    lab, constant = stage.lab, stage.lab.directory / "constant.json"
    documents = [body for some in bodies(stage.redis, stage.tenants, LEAD) for body in some.values()]
    constant.write_bytes(sorted(documents, key=len)[len(documents) // 2])
    request = lead_requests(stage.tenants, 1)[0]
    start = partial(peer, lab, stage.stack, stage.cores)
    for name in ("asgi-constant", "starlette-constant"):
        stage.add(name, start("limits", name, constant), request)
    if nginx := _nginx(stage):
        stage.add("nginx-lua", nginx, request)


def leadview(lab: Lab, stack: ExitStack, redis: RedisServer, cores: Cores) -> Server:
    """Start the API as it is delivered. It is not ready yet."""
    port = free_port()
    variables = environment(redis_url=redis.url, api_port=port, log_level="warning")
    with pinned(cores.worker):
        child = Program(API, log=lab.directory / f"api-{port}.log", environment=variables)
    stack.callback(child.stop)
    return Server(port, child)


def peer(lab: Lab, stack: ExitStack, cores: Cores, module: str, *arguments: object) -> Server:
    """Start a server of `bench/peers`, whose first argument is its port. It is not ready yet."""
    port = free_port()
    command = [sys.executable, "-m", f"bench.peers.{module}", str(port), *map(str, arguments)]
    return _start(lab, stack, cores, port, command)


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """User and system time of these processes since they started."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def _start(lab: Lab, stack: ExitStack, cores: Cores, port: int, command: Sequence[str]) -> Server:
    with pinned(cores.worker):
        child = Child(command, log=lab.directory / f"server-{port}.log", directory=ROOT)
    stack.callback(child.stop)
    return Server(port, child)


def _nginx(stage: Stage) -> Server | None:
    """Start nginx with Leadview's script. Returns None if it is not installed; then the lab notes that."""
    lab, program = stage.lab, shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        lab.left_out["nginx-lua"] = f"not installed: {_NGINX_NEEDS}"
        return None
    port, peers = free_port(), Path(__file__).parent / "peers"
    directory = lab.directory / f"nginx-{port}"
    directory.mkdir()
    with client(stage.redis) as connection:
        connection.script_load(serve.text)
        generation = live(connection)
    configuration = directory / "nginx.conf"
    configuration.write_text(
        (peers / "nginx.conf")
        .read_text()
        .format(
            directory=directory,
            modules=_nginx_modules(program),
            script=peers / "nginx.lua",
            redis_port=stage.redis.port,
            sha=serve.sha.decode(),
            prefix=names.PREFIX.decode(),
            generation=generation,
            port=port,
        )
    )
    command = [program, "-p", str(directory), "-c", str(configuration), "-e", str(directory / "start.log")]
    server = _start(lab, stage.stack, stage.cores, port, command)
    # `nginx -t` would not notice a missing Lua library: it does not run init_by_lua.
    try:
        server.wait_until_ready(lead_requests(stage.tenants, 1)[0])
    except ServerFailed:
        lab.left_out["nginx-lua"] = f"{_NGINX_NEEDS}; nginx says: {server.child.log.read_text().splitlines()[0]}"
        return None
    return server


def _nginx_modules(program: str) -> Path:
    shown = subprocess.run([program, "-V"], capture_output=True, text=True, check=False).stderr
    match = re.search(r"--modules-path=(\S+)", shown)
    return Path(match[1] if match else "/usr/lib/nginx/modules")
