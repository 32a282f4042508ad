"""The application: its routes, and the objects and tasks that exist while it runs.

/api/v1/ext/<resource>/{id}   bare ASGI endpoints, found with one dictionary lookup, before Starlette's routing
/api/v1/ext/openapi.json, /healthz, /readyz
every other path            404, also with a trailing slash
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from api import pages
from api.background import keep
from api.documents import Documents
from api.drain import Drain
from api.endpoint import TEMPLATE, Endpoint
from api.keys.guesses import Guesses
from api.keys.known import KnownKeys
from api.local_limiter import LocalLimiter
from api.metrics import latency, snapshot
from api.metrics.counters import Counters
from api.metrics.projectors import Projectors
from api.redis.servers import servers as redis_servers
from api.redis.serving import Serving
from api.redis.store import Store
from api.request import State
from api.request_log import RequestLog
from api.usage import Usage
from leadview.redis.access import access
from leadview.redis.errors import Unavailable
from schemas.openapi.document import ROOT
from schemas.resources import RESOURCES
from schemas.settings import ApiSettings, limit, networks
from telemetry import orphan


def create_app(settings: ApiSettings, snapshots: Path | None = None) -> Starlette:
    """Returns the API. It writes its counters into the directory `snapshots`, for the exporter.

    Raises AddressError.
    """
    counters = Counters()
    log, usage = RequestLog(settings.request_log), Usage()
    limiter = LocalLimiter()
    guesses = Guesses(limit(settings.api_unknown_key_limit), networks(settings.api_trusted_proxies))
    keys = KnownKeys(guesses, settings.api_max_in_flight)
    resources = {
        f"{ROOT}/{resource.topic}".encode(): Endpoint(
            resource.noun,
            Documents(resource, counters, limiter, keys).read,
            counters,
            log,
            usage,
            f"{ROOT}/{resource.topic}{TEMPLATE}",
        )
        for resource in RESOURCES
    }
    routes: list[BaseRoute] = [
        Route(path, Endpoint(name, page, counters, log, usage, path))
        for name, path, page in (
            ("openapi", f"{ROOT}/openapi.json", pages.openapi),
            ("healthz", "/healthz", pages.healthz),
            ("readyz", "/readyz", pages.readyz),
        )
    ]
    not_found = Endpoint("none", pages.not_found, counters, log, usage)
    return Api(resources, routes, not_found, _lifespan(settings, counters, log, usage, snapshots))


class Api(Starlette):
    """Starlette with a shortcut for documents: their path is a prefix and one segment, and one dictionary lookup finds
    the endpoint of the prefix.
    """

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


async def check_layout(settings: ApiSettings) -> None:
    """Log a warning if Redis holds only data of another layout. Raises nothing if Redis cannot be reached."""
    servers = redis_servers(settings)
    running = asyncio.create_task(servers.run())
    try:
        await servers.first_attempt()
        with suppress(Unavailable):
            await Serving(servers).check_layout()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _lifespan(
    settings: ApiSettings, counters: Counters, log: RequestLog, usage: Usage, snapshots: Path | None
) -> Lifespan[Starlette]:
    access(settings)  # raises at once if the settings are not valid

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[Mapping[str, Any]]:
        drain = Drain()
        drain.at_sigterm(settings.api_drain_seconds)
        servers = redis_servers(settings)
        serving = Serving(servers)
        store = Store(settings, servers, serving)
        async with asyncio.TaskGroup() as group:
            routes = [resource.noun for resource in RESOURCES]
            background = [
                group.create_task(servers.run()),
                group.create_task(orphan.watch()),
                group.create_task(keep("the poll of Redis", partial(serving.poll, Projectors(servers, counters).look))),
                group.create_task(
                    keep("the report of the latency", partial(latency.report, servers, serving, counters, routes))
                ),
                group.create_task(keep("the report of the use of keys", partial(usage.report, servers))),
            ]
            if snapshots is not None:
                writing = partial(snapshot.report, snapshots, counters, servers, serving)
                background.append(group.create_task(keep("the report of the metrics", writing)))
            await servers.first_attempt()  # otherwise the first requests of a new worker would be answered with 503
            state: State = {
                "store": store,
                "servers": servers,
                "serving": serving,
                "counters": counters,
                "log": log,
                "drain": drain,
                "docs_url": settings.docs_url,
            }
            yield {**state}
            await usage.write_last(servers)
            for task in background:
                task.cancel()

    return lifespan
