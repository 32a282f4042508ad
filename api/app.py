"""The application: its routes, and what lives as long as it does.

/api/v1/ext/leads/{id}      ┐ bare ASGI endpoints, found by one look-up before Starlette is asked
/api/v1/ext/contacts/{id}   ┘
/api/v1/ext/openapi.json, /healthz, /readyz
everything else             404, also with a slash at the end
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from api import orphan, pages
from api.endpoint import Endpoint
from api.local_limiter import LocalLimiter
from api.metrics import latency, snapshot
from api.metrics.counters import Counters
from api.redis.address import ClusterMap, address, place
from api.redis.cluster import Cluster
from api.redis.generation import LiveGeneration
from api.redis.link import Link
from api.redis.servers import OneServer, Servers
from api.redis.store import Store
from api.request import State
from api.resource import Resource
from schemas import layouts, names
from schemas.settings import ApiSettings

_BASE = "/api/v1/ext"


def create_app(settings: ApiSettings, snapshots: Path | None = None) -> Starlette:
    """The API. It writes its numbers into the directory `snapshots`, for the exporter.

    Raises AddressError.
    """
    counters = Counters()
    limiter = LocalLimiter()
    lead = Resource(names.lead, layouts.LEAD_BODY, counters, limiter)
    contact = Resource(names.contact, layouts.CONTACT_BODY, counters, limiter)
    resources = {
        f"{_BASE}/leads".encode(): Endpoint("lead", lead.read, counters),
        f"{_BASE}/contacts".encode(): Endpoint("contact", contact.read, counters),
    }
    routes: list[BaseRoute] = [
        Route(f"{_BASE}/openapi.json", Endpoint("openapi", pages.openapi, counters)),
        Route("/healthz", Endpoint("healthz", pages.healthz, counters)),
        Route("/readyz", Endpoint("readyz", pages.readyz, counters)),
    ]
    not_found = Endpoint("none", pages.not_found, counters)
    return Api(resources, routes, not_found, _lifespan(settings, counters, snapshots))


class Api(Starlette):
    """Starlette with a short cut: a record's path is its prefix and one segment, so one look-up finds the endpoint."""

    def __init__(
        self,
        resources: Mapping[bytes, Endpoint],
        routes: list[BaseRoute],
        not_found: ASGIApp,
        lifespan: Lifespan[Any],
    ) -> None:
        super().__init__(routes=routes, lifespan=lifespan)
        self._resources = resources
        self.router.redirect_slashes = False
        self.router.default = not_found

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        if scope["type"] == "http":
            prefix, _, segment = scope["raw_path"].rpartition(b"/")
            resource = self._resources.get(prefix)
            if resource is not None and segment:
                return resource(scope, receive, send)
        return super().__call__(scope, receive, send)


def _lifespan(settings: ApiSettings, counters: Counters, snapshots: Path | None) -> Lifespan[Starlette]:
    address(settings)  # what is wrong with it is said at once

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[Mapping[str, Any]]:
        servers = _servers(settings)
        generation = LiveGeneration(servers)
        store = Store(settings, servers, generation)
        async with asyncio.TaskGroup() as tasks:
            kept = [
                tasks.create_task(servers.keep()),
                tasks.create_task(generation.keep()),
                tasks.create_task(latency.report(servers, counters)),
                tasks.create_task(orphan.watch()),
            ]
            if snapshots is not None:
                kept.append(tasks.create_task(snapshot.keep(snapshots, counters, servers, generation)))
            await servers.first_attempt()  # a new worker does not begin with a 503
            state: State = {"store": store, "servers": servers, "generation": generation, "counters": counters}
            yield {**state}
            for task in kept:
                task.cancel()

    return lifespan


def _servers(settings: ApiSettings) -> Servers:
    timeout, most = settings.api_redis_timeout, settings.api_max_in_flight
    where = place(settings)
    if isinstance(where, ClusterMap):
        return Cluster(where, timeout=timeout, max_in_flight=most)
    return OneServer(Link(where, timeout=timeout, max_in_flight=most), timeout)
