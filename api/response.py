"""A response: status, headers and body. Errors are answered as section 1 of the contract says."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from api.errors import ApiError, Header, Headers, InvalidApiKey, MissingApiKey, RateLimitExceeded, Unavailable
from schemas.problems import ErrorBody, RateLimitError, RetryableError

JSON = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")

_STATUS_LINES = {int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
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
    """A response without the headers that depend on the request alone (its id, CORS)."""

    status: int
    headers: Headers = ()
    body: bytes = b""


def json_response(body: Struct) -> Response:
    """Returns a 200 that must not be stored."""
    return Response(200, (JSON, NO_STORE), msgspec.json.encode(body))


def error_response(error: ApiError, request_id: bytes, docs_url: str | None) -> Response:
    """Returns the response that reports an error to the caller. `docs_url` is the setting of that name."""
    body = msgspec.json.encode(_body(error, request_id.decode(), docs_url))
    return Response(error.status, (JSON, NO_STORE, *_headers(error), *error.headers), body)


def all_headers(response: Response, request_id: bytes, *, cors: bool) -> list[Header]:
    """Returns the headers of the response and those that depend on the request. A 204 or 304 has no length."""
    headers = [*response.headers, (b"x-request-id", request_id)]
    if response.status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(response.body)))
    if cors:
        headers += _CORS
    return headers


def encode_head(status: int, headers: Iterable[Header], *, close: bool) -> bytes:
    """Returns the status line and the headers as they are sent. `close` adds `Connection: close`."""
    lines = [b": ".join(header) for header in headers]
    lines.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    return _STATUS_LINES[status] + b"\r\n".join(lines)


def _body(error: ApiError, request_id: str, docs_url: str | None) -> ErrorBody:
    fields: dict[str, Any] = {
        "error": error.code,
        "message": error.message,
        "status": error.status,
        "request_id": request_id,
        "docs_url": f"{docs_url.rstrip('/')}/errors.html#{error.code}" if docs_url else UNSET,
    }
    match error:
        case RateLimitExceeded():
            return RateLimitError(**fields, retry_after=error.retry_after, violated_policies=error.violated)
        case Unavailable():
            return RetryableError(**fields, retry_after=error.retry_after)
        case _:
            return ErrorBody(**fields)


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
