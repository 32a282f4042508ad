"""The servers that the API's benchmarks compare. All of them use one Redis with the same documents."""

import sys
from collections.abc import Callable
from contextlib import ExitStack

import msgspec
import psutil
from msgspec import Struct
from redis import Redis

from bench import nginx, requests, server
from bench.benchmark import LEADVIEW, Subject
from bench.cores import Cores, worker_cores
from bench.crm import Crm, Tenant
from bench.filling import fill, live
from bench.lab import Lab, client
from bench.load import Load
from bench.server import Server
from devstack.ports import free_port
from devstack.redis_cluster import RedisCluster
from devstack.redis_server import RedisServer
from schemas import layouts, names, resources
from schemas.api_keys import key_hash

SUBJECTS = (
    Subject(LEADVIEW, "leadview", "`python -m api`, as it is delivered"),
    Subject("asgi-constant", "limit", "bare ASGI, returns a constant of the same size; same uvicorn settings"),
    Subject("starlette-constant", "limit", "a Starlette route, returns that constant; same uvicorn settings"),
    Subject("idiomatic", "peer", "Starlette and redis-py, three calls a request: what most teams would write"),
    Subject("nginx-lua", "peer", "nginx with Lua: the same script call, checks and headers"),
)
_TENANTS = 10
_LEADS = 1000
_WARM_UP_SECONDS = 1.0
_WARM_UP_CONNECTIONS = 16


class Stage(Struct):
    """Servers that are ready, and the load that can be put on them."""

    redis: RedisServer
    servers: dict[str, Server]
    load: Load
    cores: Cores
    tenants: list[Tenant]

    def redis_cpu_seconds(self) -> float:
        """User and system time of Redis since it started."""
        return server.cpu_seconds([psutil.Process(self.redis.pid)])


def set_up(lab: Lab, stack: ExitStack, *, workers: int = 1, only: frozenset[str] = frozenset()) -> Stage:
    """Start all candidates, or only those named in `only`, each with this number of worker processes.

    The lab notes which ones cannot run on this machine.
    """
    cores = worker_cores(workers)
    redis = lab.redis(stack, f"redis-{workers}", cores)
    crm = Crm()
    fill(redis, crm.records(_TENANTS, 2 * _LEADS))
    constant = lab.directory / "constant.json"
    constant.write_bytes(_copy_for_idiomatic(redis, crm.tenants))
    lead_requests = requests.for_leads(crm.tenants)
    starts: dict[str, Callable[[], Server | None]] = {
        LEADVIEW: lambda: leadview(lab, stack, redis, cores, workers),
        "asgi-constant": lambda: _python(lab, stack, cores, "asgi_constant", str(constant), workers),
        "starlette-constant": lambda: _python(lab, stack, cores, "starlette_constant", str(constant), workers),
        "idiomatic": lambda: _python(lab, stack, cores, "idiomatic", str(redis.port), workers),
        "nginx-lua": lambda: nginx.start(lab, stack, redis, cores, workers),
    }
    servers = {name: started for name, start in starts.items() if (not only or name in only) and (started := start())}
    load = Load(lab, lead_requests, cores.load)
    for each in servers.values():
        each.wait_until_ready(lead_requests[0])
        if not lab.quick:
            load.closed(each.port, _WARM_UP_CONNECTIONS, _WARM_UP_SECONDS)
    return Stage(redis, servers, load, cores, crm.tenants)


def leadview(lab: Lab, stack: ExitStack, redis: RedisServer | RedisCluster, cores: Cores, workers: int = 1) -> Server:
    """Start the API as it is delivered. It is not ready yet."""
    port = free_port()
    settings = {
        "LEADVIEW_REDIS_URL": redis.url,
        "LEADVIEW_API_PORT": str(port),
        "LEADVIEW_API_WORKERS": str(workers),
        "LEADVIEW_LOG_LEVEL": "warning",
    }
    command = [sys.executable, "-m", "api"]
    return server.start(
        stack, command, port, cores=cores.worker, log=lab.directory / f"api-{port}.log", environment=settings
    )


def _python(lab: Lab, stack: ExitStack, cores: Cores, module: str, argument: str, workers: int) -> Server:
    port = free_port()
    command = [sys.executable, "-m", f"bench.peers.{module}", str(port), argument, str(workers)]
    return server.start(stack, command, port, cores=cores.worker, log=lab.directory / f"{module}.log")


def _copy_for_idiomatic(redis: RedisServer, tenants: list[Tenant]) -> bytes:
    """Copy the documents to where the idiomatic peer reads them. Returns the one of median size."""
    bodies: list[bytes] = []
    with client(redis) as connection:
        for tenant in tenants:
            bodies += _copy_tenant(connection, tenant)
    return sorted(bodies, key=len)[len(bodies) // 2]


def _copy_tenant(connection: Redis, tenant: Tenant) -> list[bytes]:
    own = tenant.organization_id
    caller = {"organization_id": own, "key_id": own[:8], "api_access": True, "quota": 1_000_000_000, "window": 10}
    connection.set(f"idiomatic:key:{key_hash(tenant.key)}", msgspec.json.encode(caller))
    bodies = []
    for lead_id in tenant.leads:
        value = connection.get(names.document(resources.LEAD, names.organization(own), live(connection), lead_id))
        assert isinstance(value, bytes)  # noqa: S101 - it was just written
        bodies.append(value[layouts.LEAD_BODY :])
        connection.set(f"idiomatic:{own}:leads:{lead_id}", bodies[-1])
    return bodies
