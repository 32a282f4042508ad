"""One log line for a request, so that a request id that somebody quotes can be found again.

A line has the route as a template, and never a key: only the beginning of its hash. The organization is the one that
the key names, also if the key was refused.
"""

import logging
import time
from collections.abc import Callable

from msgspec import Struct

from api.errors import ApiError
from api.request import Credentials
from schemas import names
from schemas.settings import RequestLogMode

SAMPLE = 5
"""Lines about 4xx in one second of a worker; those about 5xx are always written."""
_PREFIX = 12
_LOWEST: dict[RequestLogMode, int] = {"off": 1000, "errors": 400, "all": 0}

logger = logging.getLogger(__name__)


class Entry(Struct):
    """What is known of a request when it has been answered."""

    request_id: bytes
    method: str
    """Empty if the request could not be read."""
    route: str
    status: int
    seconds: float
    error: BaseException | None = None
    """Why the answer is an error. It is a defect if it is no ApiError."""
    caller: Credentials | None = None
    record_id: str | None = None
    """The id of the record, if the path has a UUID."""


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

    def write(self, entry: Entry) -> None:
        """Write a line, unless the mode leaves it out, or it is one of too many about 4xx. A defect is always noted."""
        if entry.error is not None and not isinstance(entry.error, ApiError):
            logger.error("a request failed because of a defect", extra=self._fields(entry), exc_info=entry.error)
            return
        if entry.status < self.lowest:
            return
        if 400 <= entry.status < 500 and not self._all and not self._is_in_sample():
            self._skipped += 1
            return
        level = logging.ERROR if entry.status >= 500 else logging.INFO
        logger.log(level, "request answered", extra=self._fields(entry))

    def _is_in_sample(self) -> bool:
        second = int(self._clock())
        if second != self._second:
            self._second, self._written = second, 0
        self._written += 1
        return self._written <= SAMPLE

    def _fields(self, entry: Entry) -> dict[str, object]:
        found: dict[str, object] = {
            "request_id": entry.request_id.decode(),
            "route": entry.route,
            "status": entry.status,
            "duration_ms": round(entry.seconds * 1000, 3),
        }
        if entry.method:
            found["method"] = entry.method
        if entry.record_id is not None:
            found["record"] = entry.record_id
        if isinstance(entry.error, ApiError):
            found["error"] = entry.error.code
            if (reason := str(entry.error)) != entry.error.message:
                found["reason"] = reason
        elif entry.error is not None:
            found["error"] = ApiError.code
        if entry.caller is not None:
            found["organization"] = names.organization_id(entry.caller.organization)
            found["key"] = names.hash_of_key(entry.caller.active_key)[:_PREFIX]
        if self._skipped:
            found["skipped"] = self._skipped
            self._skipped = 0
        return found
