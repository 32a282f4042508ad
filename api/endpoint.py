"""The ASGI side of every path: read the request, compute the response or report the error, send it, count it."""

import re
from collections.abc import Awaitable, Callable
from time import perf_counter

from starlette.types import Receive, Scope, Send

from api import request as requests
from api.errors import ApiError, InternalError, Unavailable
from api.metrics.counters import Counters
from api.request import Request
from api.request_log import Entry, RequestLog
from api.response import Response, all_headers, error_response
from api.usage import Usage
from leadview.redis import errors as redis
from schemas.fields import UUID_PATTERN

Handler = Callable[[Request], Awaitable[Response]]
TEMPLATE = "/{id}"
_OK = 200
_uuid = re.compile(UUID_PATTERN).fullmatch


class Endpoint:
    """A bare ASGI endpoint. Starlette's Request, Response and middleware would halve the throughput of documents.

    `route` is the name of the endpoint in the metrics, `path` its path in the log: for documents a template.
    """

    def __init__(
        self, route: str, handler: Handler, counters: Counters, log: RequestLog, usage: Usage, path: str = ""
    ) -> None:
        self._handler = handler
        self._counters = counters.route(route)
        self._log = log
        self._lowest = min(log.lowest, InternalError.status)  # a defect is always logged
        self._usage = usage
        self._path = path or route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        started = perf_counter()
        request = requests.read(scope)
        response = await self._respond(request)
        headers = all_headers(response, request.id, cors=b"origin" in request.headers)
        caller = request.caller
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        if caller is not None and response.status == _OK:  # a refused key may name any organization
            start["organization"] = caller.organization  # for api/edge/unread.py
        await send(start)
        await send({"type": "http.response.body", "body": response.body})
        seconds = perf_counter() - started
        self._counters.count(response.status, seconds)
        if caller is not None:
            self._usage.count(caller, response.status, started)
        if response.status >= self._lowest:
            self._note(request, response, seconds)

    async def _respond(self, request: Request) -> Response:
        try:
            return await self._handler(request)
        except ApiError as error:
            request.error = error
            return error_response(error, request.id, request.state["docs_url"])
        except redis.Unavailable as error:
            request.error = unavailable = Unavailable(str(error))
            return error_response(unavailable, request.id, request.state["docs_url"])
        except Exception as error:  # noqa: BLE001 - it is logged, with its traceback
            request.error = error
            return error_response(InternalError(), request.id, request.state["docs_url"])

    def _note(self, request: Request, response: Response, seconds: float) -> None:
        segment = request.last_segment if self._path.endswith(TEMPLATE) else ""
        entry = Entry(
            request.id,
            request.method,
            self._path,
            response.status,
            seconds,
            request.error,
            request.caller,
            segment.lower() if _uuid(segment) else None,
        )
        if request.error is not None and not isinstance(request.error, ApiError):
            self._log.defect(entry)
        elif response.status >= self._log.lowest:
            self._log.write(entry)
