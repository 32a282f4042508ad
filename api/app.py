"""The application: which endpoint answers a path, and what all endpoints have in common.

/api/v1/ext/<resource>/{id}                     documents, found with one dictionary lookup
/api/v1/ext/openapi.json, /healthz, /readyz     pages
every other path                                404, also with a trailing slash
"""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from api import pages
from api.documents import Documents
from api.errors import InternalError, as_unavailable
from api.request import Request, Response, error_response
from api.worker import Handler, Worker
from schemas.resources import RESOURCES, ROOT
from schemas.settings import ApiSettings


class Api:
    """The application of one worker. uvicorn calls it once, for its lifespan, as ASGI says; the edge brings it the
    requests.
    """

    def __init__(self, settings: ApiSettings, snapshots: Path | None = None) -> None:
        """It writes its counters into the directory `snapshots`, for the exporter. It has to be made in an event loop.

        Raises AddressError.
        """
        worker = self.worker = Worker(settings)
        self._snapshots = snapshots
        self._documents = {
            f"{ROOT}/{it.topic}".encode(): Endpoint(worker, it.noun, Documents(it).read, f"{ROOT}/{it.topic}/{{id}}")
            for it in RESOURCES
        }
        named = (
            ("openapi", f"{ROOT}/openapi.json", pages.openapi),
            ("healthz", "/healthz", pages.healthz),
            ("readyz", "/readyz", pages.readyz),
        )
        self._pages = {path.encode(): Endpoint(worker, name, page, path) for name, path, page in named}
        self._nothing = Endpoint(worker, "none", pages.not_found, "none")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Keep what requests need from the start of uvicorn's server to its end. An error at either end is uvicorn's to
        log, and ends the worker.
        """
        await receive()
        async with self.worker.running(self._snapshots):
            scope["state"]["api"] = self  # for the edge
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def endpoint(self, request: Request) -> "Endpoint":
        """Returns what answers this path."""
        prefix, _, segment = request.raw_path.rpartition(b"/")
        documents = self._documents.get(prefix)
        if documents is not None and segment:
            request.last_segment = segment.decode("latin-1")
            return documents
        return self._pages.get(request.raw_path, self._nothing)


class Endpoint:
    """Answers the requests for a path: it computes the response or reports the error, sends it, and counts it.

    `route` is the name of the endpoint in the metrics, `path` its path in the log: for documents a template.
    """

    def __init__(self, worker: Worker, route: str, handler: Handler, path: str) -> None:
        self._worker = worker
        self._handler = handler
        self._counters = worker.counters.route(route)
        self._lowest = min(worker.log.lowest, InternalError.status)  # a defect is always logged
        self._path = path

    async def answer(self, request: Request, send: Callable[[Request, Response], None]) -> None:
        started = perf_counter()
        try:
            response = await self._handler(self._worker, request)
        except Exception as error:  # noqa: BLE001 - it is logged, a defect with its traceback
            request.error = as_unavailable(error)
            response = error_response(request.error, request.id, self._worker.settings.docs_url)
        send(request, response)
        status, seconds = response.status, perf_counter() - started
        self._counters.count(status, seconds)
        if request.caller is not None:
            self._worker.usage.count(request.caller, status, started)
        if status >= self._lowest:
            self._worker.log.write(request, self._path, status, seconds)
        request.error = None  # its traceback refers to this request, and to the connection
