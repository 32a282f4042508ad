"""One log line for a request, so that a request id that somebody quotes can be found again.

A line has the route as a template, and never a key: only the beginning of its hash. The organization is the one that
the key names, also if the key was refused.
"""

import logging
import time
from collections.abc import Callable

from api.errors import ApiError
from api.request import Request, is_uuid
from schemas import names
from schemas.settings import RequestLogMode
from schemas.trace import trace_id

SAMPLE = 5
"""Maximum number of lines about 4xx for each worker and second; those about 5xx are always written."""
_PREFIX = 12
_LOWEST: dict[RequestLogMode, int] = {"off": 1000, "errors": 400, "all": 0}

logger = logging.getLogger(__name__)


class RequestLog:
    """The log lines of a worker."""

    def __init__(self, mode: RequestLogMode = "errors", clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds and never goes back."""
        self.lowest = _LOWEST[mode]
        """The lowest status that `write` has to be called for."""
        self._all = mode == "all"
        self._clock = clock
        self._second = -1
        self._written = 0
        self._skipped = 0

    def write(self, request: Request, route: str, status: int, seconds: float) -> None:
        """Write a line about an answered request, unless the mode leaves it out, or this second already has `SAMPLE`
        lines about 4xx. A defect is always logged.

        `route` is the path, for documents a template. What could not be read of the request is empty.
        """
        if request.error is not None and not isinstance(request.error, ApiError):
            logger.error(
                "a request failed because of a defect",
                extra=self._fields(request, route, status, seconds),
                exc_info=request.error,
            )
            return
        if status < self.lowest:
            return
        if 400 <= status < 500 and not self._all and not self._is_in_sample():
            self._skipped += 1
            return
        logger.log(
            logging.ERROR if status >= 500 else logging.INFO,
            "request answered",
            extra=self._fields(request, route, status, seconds),
        )

    def _is_in_sample(self) -> bool:
        second = int(self._clock())
        if second != self._second:
            self._second, self._written = second, 0
        self._written += 1
        return self._written <= SAMPLE

    def _fields(self, request: Request, route: str, status: int, seconds: float) -> dict[str, object]:
        found: dict[str, object] = {
            "request_id": request.id.decode(),
            "route": route,
            "status": status,
            "duration_ms": round(seconds * 1000, 3),
        }
        if trace := trace_id(request.headers.get(b"traceparent", b"")):
            found["trace_id"] = trace
        if request.method:
            found["method"] = request.method
        if is_uuid(request.last_segment):
            found["record"] = request.last_segment.lower()
        if isinstance(request.error, ApiError):
            found["error"] = request.error.code
            if (reason := str(request.error)) != request.error.message:
                found["reason"] = reason
        elif request.error is not None:
            found["error"] = ApiError.code
        if request.caller is not None:
            found["organization"] = names.organization_id(request.caller.organization)
            found["key"] = names.hash_of_key(request.caller.key_record)[:_PREFIX]
        if self._skipped:
            found["skipped"] = self._skipped
            self._skipped = 0
        return found
