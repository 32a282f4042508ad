"""The ASGI side of every path: read the request, compute the response or report the error, send it, count it."""

import logging
from collections.abc import Awaitable, Callable
from time import perf_counter

from starlette.types import Receive, Scope, Send

from api import request as requests
from api.errors import ApiError, InternalError
from api.metrics.counters import Counters
from api.request import Request
from api.response import Response, all_headers, error_response

Handler = Callable[[Request], Awaitable[Response]]

logger = logging.getLogger(__name__)


class Endpoint:
    """A bare ASGI endpoint. Starlette's Request, Response and middleware would halve the throughput of documents.

    `route` is the name of the endpoint in the metrics.
    """

    def __init__(self, route: str, handler: Handler, counters: Counters) -> None:
        self._handler = handler
        self._counters = counters.route(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        started = perf_counter()
        request = requests.read(scope)
        response = await self._respond(request)
        headers = all_headers(response, request.id, cors=b"origin" in request.headers)
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})
        self._counters.count(response.status, perf_counter() - started)

    async def _respond(self, request: Request) -> Response:
        try:
            return await self._handler(request)
        except ApiError as error:
            return error_response(error, request.id)
        except Exception:
            logger.exception("a request failed because of a defect", extra={"request_id": request.id.decode()})
            return error_response(InternalError(), request.id)
