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
├── Unavailable            503: Redis cannot be used (leadview/redis/errors.py), or this worker ends; retry later
│   └── Rebuilding         Redis was emptied and is being filled again, or the organization was recreated
└── InternalError          500: a defect in the API

StartError                 no response: the API cannot start
└── CannotListen           an address or a port
"""

from typing import ClassVar

from leadview.redis import errors as redis
from schemas.problems import Policy


class ApiError(Exception):
    """Base of all errors that are reported to a caller."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    message: ClassVar[str] = "An internal error occurred. Try again. If it happens again, tell us the request id."
    retry_after: int = 0
    """After so many seconds the same request succeeds, or may succeed; 0 if it does not."""
    headers: bytes = b""
    """The lines that the response has beside the usual headers."""

    def __init__(self, reason: str = "", *, headers: bytes = b"") -> None:
        """`reason` is for logs only; the response has `message`."""
        super().__init__(reason or self.message)
        self.headers += headers


class InternalError(ApiError):
    """A defect in the API."""


class Refused(ApiError):
    """The request is at fault."""


class NoSuchPath(Refused):
    status = 404
    code = "not_found"
    message = "There is nothing at this path. See /api/v1/ext/openapi.json for all paths."


class MethodNotAllowed(Refused):
    status = 405
    code = "method_not_allowed"
    message = "The API is read-only: use GET or HEAD."


class MissingApiKey(Refused):
    status = 401
    code = "missing_api_key"
    message = "No API key was sent. Send it in the header `Authorization: Bearer <API_KEY>`."
    headers = b'www-authenticate: Bearer realm="leadview"\r\n'


class InvalidApiKey(Refused):
    """Malformed, unknown, revoked or expired: the response does not tell which."""

    status = 401
    code = "invalid_api_key"
    message = "The API key is not valid. Check that it is complete, or create a new one."
    headers = b'www-authenticate: Bearer realm="leadview", error="invalid_token"\r\n'


class AccessDisabled(Refused):
    status = 403
    code = "api_access_disabled"
    message = "API access is disabled for this organization. Enable it in the integration settings."


class InvalidId(Refused):
    status = 400
    code = "invalid_id"
    message = "The id in the path is not a UUID. Send it as 8-4-4-4-12 hexadecimal digits."


class NoSuchRecord(Refused):
    """The record does not exist or belongs to another organization: the response does not tell which."""

    status = 404
    code = "not_found"
    message = "There is no such record in this organization. Check the id."


class BadRequest(Refused):
    status = 400
    code = "bad_request"
    message = "The request is not valid HTTP/1.1. Check the request line and the headers."


class BodyNotAllowed(Refused):
    status = 400
    code = "body_not_allowed"
    message = "GET and HEAD requests must not have a body. Send the request without one."


class HeadTooLarge(Refused):
    status = 431
    code = "request_header_fields_too_large"
    message = "The request line and headers are larger than 16 KB. Send fewer or shorter headers."


class HeadTooSlow(Refused):
    status = 408
    code = "request_timeout"
    message = "The request line and headers were not received in time. Send them without a pause."


class RateLimitExceeded(ApiError):
    status = 429
    code = "rate_limit_exceeded"
    message = "Too many requests. Try again after `retry_after` seconds."

    def __init__(self, retry_after: int, violated: list[Policy], *, headers: bytes = b"") -> None:
        super().__init__(headers=headers)
        self.retry_after = retry_after
        self.violated = violated


class TooManyGuesses(RateLimitExceeded):
    message = "Too many unknown API keys were sent from your address. Try again after `retry_after` seconds."

    def __init__(self, retry_after: int, *, headers: bytes = b"") -> None:
        super().__init__(retry_after, ["address"], headers=headers)


class Unavailable(ApiError, redis.Unavailable):
    """Whatever catches the errors of the client of Redis catches this one, too."""

    status = 503
    code = "service_unavailable"
    message = "The service is temporarily unavailable. Try again after `retry_after` seconds."
    retry_after = 1


def as_unavailable(error: Exception) -> Exception:
    """Returns the response to an error of the client of Redis; any other error as it is."""
    if isinstance(error, redis.Unavailable) and not isinstance(error, ApiError):
        return Unavailable(str(error))
    return error


class Rebuilding(Unavailable):
    kind = "rebuilding"
    message = "The data is being rebuilt. Try again after `retry_after` seconds."
    retry_after = 5


class StartError(Exception):
    """The API cannot start. The message is for operators: it names the setting and says what to do."""


class CannotListen(StartError):
    """The API or its metrics cannot listen on their address and port."""

    def __init__(self, host: str, port: int, error: OSError, setting: str) -> None:
        """`setting` is the common prefix of both settings' names, such as `LEADVIEW_API`."""
        super().__init__(
            f"cannot listen on {host}:{port}: {error.strerror or error}. Stop the process that uses it, or choose "
            f"another address with {setting}_HOST and {setting}_PORT."
        )
