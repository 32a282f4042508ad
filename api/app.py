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

from api import latency, orphan, pages, snapshot
from api.address import address
from api.bound import Bound
from api.counters import Counters
from api.endpoint import Endpoint
from api.generation import LiveGeneration
from api.link import Link
from api.resource import Resource
from api.state import State
from api.store import Store
from schemas import layouts, names
from schemas.settings import ApiSettings

_BASE = "/api/v1/ext"


def create_app(settings: ApiSettings, snapshots: Path | None = None) -> Starlette:
    """The API. It writes its numbers into the directory `snapshots`, for the exporter.

    Raises AddressError.
    """
    counters = Counters()
    bound = Bound()
    lead = Resource(names.lead, layouts.LEAD_BODY, counters, bound)
    contact = Resource(names.contact, layouts.CONTACT_BODY, counters, bound)
    resources = {
        f"{_BASE}/leads".encode(): Endpoint("lead", lead.read, counters),
        f"{_BASE}/contacts".encode(): Endpoint("contact", contact.read, counters),
    }
    routes: list[BaseRoute] = [
        Route(f"{_BASE}/openapi.json", Endpoint("openapi", pages.description, counters)),
        Route("/healthz", Endpoint("healthz", pages.alive, counters)),
        Route("/readyz", Endpoint("readyz", pages.ready, counters)),
    ]
    nothing = Endpoint("none", pages.nothing, counters)
    return Api(resources, routes, nothing, _lifespan(settings, counters, snapshots))


class Api(Starlette):
    """Starlette with a short cut: a record's path is its prefix and one segment, so one look-up finds the endpoint."""

    def __init__(
        self,
        resources: Mapping[bytes, Endpoint],
        routes: list[BaseRoute],
        nothing: ASGIApp,
        lifespan: Lifespan[Any],
    ) -> None:
        super().__init__(routes=routes, lifespan=lifespan)
        self._resources = resources
        self.router.redirect_slashes = False
        self.router.default = nothing

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        if scope["type"] == "http":
            prefix, _, segment = scope["raw_path"].rpartition(b"/")
            resource = self._resources.get(prefix)
            if resource is not None and segment:
                return resource(scope, receive, send)
        return super().__call__(scope, receive, send)


def _lifespan(settings: ApiSettings, counters: Counters, snapshots: Path | None) -> Lifespan[Starlette]:
    where = address(settings)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[Mapping[str, Any]]:
        link = Link(where, timeout=settings.api_redis_timeout, max_in_flight=settings.api_max_in_flight)
        generation = LiveGeneration(link)
        store = Store(settings, link, generation)
        async with asyncio.TaskGroup() as tasks:
            kept = [
                tasks.create_task(link.keep()),
                tasks.create_task(generation.keep()),
                tasks.create_task(latency.report(link, counters)),
                tasks.create_task(orphan.watch()),
            ]
            if snapshots is not None:
                kept.append(tasks.create_task(snapshot.keep(snapshots, counters, link, generation)))
            await link.first_attempt()  # a new worker does not begin with a 503
            state: State = {"store": store, "link": link, "generation": generation, "counters": counters}
            yield {**state}
            for task in kept:
                task.cancel()

    return lifespan
