"""The application: its routes, and what every path has in common.

/api/v1/ext/<resource>/{id}   bare ASGI endpoints, found with one dictionary lookup, before Starlette's routing
/api/v1/ext/openapi.json, /healthz, /readyz
every other path              404, also with a trailing slash
"""

from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from api import pages
from api.documents import Documents
from api.errors import InternalError, as_unavailable
from api.request import Request, error_response
from api.worker import Handler, Worker
from schemas.resources import RESOURCES, ROOT
from schemas.settings import ApiSettings


class Api(Starlette):
    """Starlette with a shortcut for documents: their path is a prefix and one segment, and one dictionary lookup finds
    the endpoint of the prefix.
    """

    def __init__(self, settings: ApiSettings, snapshots: Path | None = None) -> None:
        """Has to be called in an event loop. The counters go into the directory `snapshots`, for the exporter.

        Raises AddressError.
        """
        worker = Worker(settings)

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncGenerator[Mapping[str, Any]]:
            async with worker.running(snapshots):
                yield {"worker": worker}  # for the edge

        named = (
            ("openapi", f"{ROOT}/openapi.json", pages.openapi),
            ("healthz", "/healthz", pages.healthz),
            ("readyz", "/readyz", pages.readyz),
        )
        super().__init__(
            routes=[Route(path, Endpoint(worker, name, page, path)) for name, path, page in named], lifespan=lifespan
        )
        self.router.redirect_slashes = False
        self.router.default = Endpoint(worker, "none", pages.not_found, "none")
        self._documents = {
            f"{ROOT}/{it.topic}".encode(): Endpoint(worker, it.noun, Documents(it).read, f"{ROOT}/{it.topic}/{{id}}")
            for it in RESOURCES
        }

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        if scope["type"] == "http":
            request: Request = scope["request"]
            prefix, _, segment = request.raw_path.rpartition(b"/")
            documents = self._documents.get(prefix)
            if documents is not None and segment:
                request.last_segment = segment.decode("latin-1")
                return documents(scope, receive, send)
            scope.update(path=request.raw_path.decode("latin-1"), method=request.method, headers=())
        return super().__call__(scope, receive, send)


class Endpoint:
    """An endpoint that is called as ASGI says, but whose response only the Edge can send. It computes the response or
    reports the error, sends it and counts it. Starlette's Request, Response and middleware would halve the throughput
    of documents.

    `route` is the name of the endpoint in the metrics, `path` its path in the log: for documents a template.
    """

    def __init__(self, worker: Worker, route: str, handler: Handler, path: str) -> None:
        self._worker = worker
        self._handler = handler
        self._counters = worker.counters.route(route)
        self._lowest = min(worker.log.lowest, InternalError.status)  # a defect is always logged
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        started = perf_counter()
        request: Request = scope["request"]
        try:
            response = await self._handler(self._worker, request)
        except Exception as error:  # noqa: BLE001 - it is logged, a defect with its traceback
            request.error = as_unavailable(error)
            response = error_response(request.error, request.id, self._worker.settings.docs_url)
        # The call is ASGI, the answer is not: the whole response is one message, which only the Edge can send.
        # Starlette passes it on, and looks only at its type.
        await send({"type": "http.response.start", "request": request, "response": response})
        status, seconds = response.status, perf_counter() - started - request.waited
        self._counters.count(status, seconds)
        if request.caller is not None:
            self._worker.usage.count(request.caller, status, started)
        if status >= self._lowest:
            self._worker.log.write(request, self._path, status, seconds)
        request.error = None  # its traceback refers to this request, and to the connection
