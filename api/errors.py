"""The errors of the API, grouped by what has to be done about them. Each one defines its HTTP response.

ApiError
├── Refused                the request is at fault: if it is repeated unchanged, it fails again
│   ├── NoSuchPath         404
│   ├── MethodNotAllowed   405
│   ├── MissingApiKey      401
│   ├── InvalidApiKey      401
│   ├── AccessDisabled     403
│   ├── InvalidId          400
│   ├── NoSuchRecord       404
│   ├── BadRequest         400  the edge: not valid HTTP/1.1
│   ├── BodyNotAllowed     400  the edge
│   ├── HeadTooLarge       431  the edge
│   └── HeadTooSlow        408  the edge
├── RateLimitExceeded      429: the same request succeeds some time later
│   └── TooManyGuesses     too many unknown keys were tried from the client's address
├── Unavailable            503: Redis cannot be used (runtime/redis/errors.py), or this worker ends; retry later
│   └── Rebuilding         Redis was emptied and is being filled again, or the organization was recreated
└── InternalError          500: a defect in the API
"""

from typing import ClassVar

from runtime.redis import errors as redis
from schemas.error_body import PROBLEMS, Policy

_PROBLEMS = {problem.code: problem for problem in PROBLEMS}
_INTERNAL = _PROBLEMS["internal_error"]


class ApiError(Exception):
    """Base of all errors that are reported to a caller. `schemas.error_body` has status and message of each code."""

    code: ClassVar[str] = _INTERNAL.code
    status: ClassVar[int] = _INTERNAL.status
    message: ClassVar[str] = _INTERNAL.message
    retry_after: int = 0
    """Seconds after which the same request succeeds, or may succeed; 0 if it does not."""
    headers: bytes = b""
    """The lines that the response has beside the usual headers."""

    def __init_subclass__(cls, code: str = "") -> None:
        """A class may have a message of its own. Without a `code` it has that of its base."""
        if code:
            cls.code, cls.status = code, _PROBLEMS[code].status
            cls.message = vars(cls).get("message", _PROBLEMS[code].message)

    def __init__(self, reason: str = "", *, headers: bytes = b"") -> None:
        """`reason` is for logs only; the response has `message`."""
        super().__init__(reason or self.message)
        self.headers += headers


class InternalError(ApiError):
    """A defect in the API."""


class Refused(ApiError):
    """The request is at fault."""


class NoSuchPath(Refused, code="not_found"):
    message = "There is nothing at this path. See /api/v1/ext/openapi.json for all paths."


class MethodNotAllowed(Refused, code="method_not_allowed"):
    """The path exists, but can only be read."""


class MissingApiKey(Refused, code="missing_api_key"):
    headers = b'www-authenticate: Bearer realm="leadview"\r\n'


class InvalidApiKey(Refused, code="invalid_api_key"):
    """Malformed, unknown, revoked or expired: the response does not tell which."""

    headers = b'www-authenticate: Bearer realm="leadview", error="invalid_token"\r\n'


class AccessDisabled(Refused, code="api_access_disabled"):
    """The organization has no access to the API."""


class InvalidId(Refused, code="invalid_id"):
    """The path does not end with a UUID."""


class NoSuchRecord(Refused, code="not_found"):
    """The record does not exist or belongs to another organization: the response does not tell which."""


class BadRequest(Refused, code="bad_request"):
    """The received bytes are not valid HTTP/1.1."""


class BodyNotAllowed(Refused, code="body_not_allowed"):
    """GET and HEAD have no body."""


class HeadTooLarge(Refused, code="request_header_fields_too_large"):
    """The head has more than `MAX_HEAD_BYTES` (`api.edge`)."""


class HeadTooSlow(Refused, code="request_timeout"):
    """The head was not complete in time."""


class RateLimitExceeded(ApiError, code="rate_limit_exceeded"):
    def __init__(self, retry_after: int, violated: list[Policy], *, headers: bytes = b"") -> None:
        super().__init__(headers=headers)
        self.retry_after = retry_after
        self.violated = violated


class TooManyGuesses(RateLimitExceeded):
    message = "Too many unknown API keys were sent from your address. Try again after `retry_after` seconds."


class Unavailable(ApiError, redis.Unavailable, code="service_unavailable"):
    """Whatever catches the errors of the client of Redis catches this one, too."""

    retry_after = 1


def as_unavailable(error: Exception) -> Exception:
    """Returns the response to an error of the client of Redis; any other error as it is."""
    if isinstance(error, redis.Unavailable) and not isinstance(error, ApiError):
        return Unavailable(str(error))
    return error


class Rebuilding(Unavailable):
    kind = "rebuilding"
    message = (
        "The data that this answer needs is not complete at the moment, so nothing is said about it. Try again after "
        "`retry_after` seconds."
    )
    retry_after = 5
