"""The servers that the API's benchmarks compare, all on one Redis with the same documents."""

import sys
from collections.abc import Callable
from contextlib import ExitStack

import msgspec
import psutil
from msgspec import Struct
from redis import Redis

from bench import nginx, requests, server
from bench.benchmark import OURS, Subject
from bench.cores import Cores, place
from bench.crm import Crm, Tenant
from bench.filling import fill
from bench.lab import Lab, client
from bench.load import Load
from bench.server import Server
from devstack.ports import free_port
from devstack.redis_server import RedisServer
from schemas import layouts, names
from schemas.api_keys import key_hash

SUBJECTS = (
    Subject(OURS, "leadview", "`python -m api`, as it is delivered"),
    Subject("asgi-constant", "limit", "bare ASGI, answers a constant of the same size; same uvicorn settings"),
    Subject("starlette-constant", "limit", "a Starlette route, answers that constant; same uvicorn settings"),
    Subject("idiomatic", "peer", "Starlette and redis-py, three calls a request: what most teams write"),
    Subject("nginx-lua", "peer", "nginx with Lua: the same script call, checks and headers"),
)
_TENANTS = 10
_LEADS = 1000
_WARM_UP_SECONDS = 1.0
_WARM_UP_CONNECTIONS = 16


class Stage(Struct):
    """Servers that are ready, and load for them."""

    redis: RedisServer
    servers: dict[str, Server]
    load: Load
    cores: Cores
    tenants: list[Tenant]

    def redis_cpu_seconds(self) -> float:
        """User and system time of Redis so far."""
        return float(sum(psutil.Process(self.redis.pid).cpu_times()[:2]))


def set_up(lab: Lab, stack: ExitStack, *, workers: int = 1, only: frozenset[str] = frozenset()) -> Stage:
    """Start all candidates, or `only` some, with so many worker processes each. What cannot be started is left out."""
    cores = place(workers)
    redis = lab.redis(stack, f"redis-{workers}", cores)
    crm = Crm()
    fill(redis, crm.records(_TENANTS, 2 * _LEADS))
    constant = lab.directory / "constant.json"
    constant.write_bytes(_copy_for_idiomatic(redis, crm.tenants))
    asked = requests.for_leads(crm.tenants)
    starts: dict[str, Callable[[], Server | None]] = {
        OURS: lambda: leadview(lab, stack, redis, cores, workers),
        "asgi-constant": lambda: _python(lab, stack, cores, "asgi_constant", str(constant), workers),
        "starlette-constant": lambda: _python(lab, stack, cores, "starlette_constant", str(constant), workers),
        "idiomatic": lambda: _python(lab, stack, cores, "idiomatic", str(redis.port), workers),
        "nginx-lua": lambda: nginx.start(lab, stack, redis, cores, workers),
    }
    servers = {name: found for name, start in starts.items() if (not only or name in only) and (found := start())}
    load = Load(lab, asked, cores.load)
    for each in servers.values():
        each.wait_until_ready(asked[0])
        if not lab.quick:
            load.closed(each.port, _WARM_UP_CONNECTIONS, _WARM_UP_SECONDS)
    return Stage(redis, servers, load, cores, crm.tenants)


def leadview(lab: Lab, stack: ExitStack, redis: RedisServer, cores: Cores, workers: int = 1) -> Server:
    """The API as it is delivered; not ready yet."""
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
    """Put the same documents where the idiomatic peer reads them; answers one of middling size."""
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
        value = connection.get(names.lead(names.organization(own), 1, lead_id))
        assert isinstance(value, bytes)  # noqa: S101 - it was just written
        bodies.append(value[layouts.LEAD_BODY :])
        connection.set(f"idiomatic:{own}:leads:{lead_id}", bodies[-1])
    return bodies
