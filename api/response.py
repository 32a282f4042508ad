"""What goes back: status, headers, body; for errors as contract section 1 says."""

from typing import Any

import msgspec
from msgspec import Struct

from api.errors import ApiError, Headers, InvalidApiKey, MissingApiKey, RateLimitExceeded, Unavailable
from schemas.problems import Error, RateLimitError, RetryableError

JSON = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")

_CHALLENGE = b'Bearer realm="leadview"'
_CORS: Headers = (
    (b"access-control-allow-origin", b"*"),
    (
        b"access-control-expose-headers",
        (
            b"ETag, RateLimit, RateLimit-Policy, Retry-After, WWW-Authenticate, X-RateLimit-Limit, "
            b"X-RateLimit-Remaining, X-RateLimit-Reset, X-Request-Id"
        ),
    ),
)


class Response(Struct, frozen=True, gc=False):
    """An answer without what depends on the request alone (its id, CORS)."""

    status: int
    headers: Headers = ()
    body: bytes = b""


def json_response(body: Struct) -> Response:
    """200, not to be stored."""
    return Response(200, (JSON, NO_STORE), msgspec.json.encode(body))


def error_response(error: ApiError, request_id: bytes) -> Response:
    """The answer that an error stands for."""
    body = msgspec.json.encode(_body(error, request_id.decode()))
    return Response(error.status, (JSON, NO_STORE, *_headers(error), *error.headers), body)


def all_headers(answer: Response, request_id: bytes, *, cors: bool) -> list[tuple[bytes, bytes]]:
    """Those of the answer and those that depend on the request. 204 and 304 have no length."""
    headers = [*answer.headers, (b"x-request-id", request_id)]
    if answer.status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(answer.body)))
    if cors:
        headers += _CORS
    return headers


def _body(error: ApiError, request_id: str) -> Error:
    fields: dict[str, Any] = {
        "error": error.code,
        "message": error.message,
        "status": error.status,
        "request_id": request_id,
    }
    match error:
        case RateLimitExceeded():
            return RateLimitError(**fields, retry_after=error.retry_after, violated_policies=error.violated)
        case Unavailable():
            return RetryableError(**fields, retry_after=error.retry_after)
        case _:
            return Error(**fields)


def _headers(error: ApiError) -> Headers:
    match error:
        case MissingApiKey():
            return ((b"www-authenticate", _CHALLENGE),)
        case InvalidApiKey():
            return ((b"www-authenticate", _CHALLENGE + b', error="invalid_token"'),)
        case RateLimitExceeded() | Unavailable():
            return ((b"retry-after", b"%d" % error.retry_after),)
        case _:
            return ()
