"""The response headers of the HTTP API as OpenAPI describes them, and which status has which headers."""

from typing import Any

from schemas import examples

_RATE_LIMIT = (
    "RateLimit-Policy",
    "RateLimit",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
)

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_POSITIVE = {"type": "integer", "minimum": 1}
_REALM = 'Bearer realm="leadview"'

# Name: description, schema, example.
HEADERS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "X-Request-Id": (
        "Identifies this request: the id that you sent, or a new one",
        _TEXT,
        "01982f6ab4c87d1e9f3a52b6c0d4e8f7",
    ),
    "Cache-Control": (
        "`private, no-cache` on records: you may keep a copy, but revalidate it before use. `no-store` on errors",
        _TEXT,
        "private, no-cache",
    ),
    "ETag": (
        "Changes whenever the record changes; send it in `If-None-Match`",
        _TEXT,
        examples.ETAG,
    ),
    "RateLimit-Policy": (
        "The rate limits: `q` requests per `w` seconds",
        _TEXT,
        '"key";q=100;w=10, "organization";q=300;w=10',
    ),
    "RateLimit": (
        "Per rate limit: `r` requests remain, and in `t` seconds there are more; 0 if none was used",
        _TEXT,
        '"key";r=99;t=1, "organization";r=299;t=1',
    ),
    "X-RateLimit-Limit": ("Quota of the limit with fewer requests remaining", _POSITIVE, 100),
    "X-RateLimit-Remaining": ("Requests that remain of that limit", _COUNT, 99),
    "X-RateLimit-Reset": (
        "When the full quota of that limit is available again, in seconds since 1970 UTC",
        _COUNT,
        1789000000,
    ),
    "Retry-After": ("Seconds to wait before a retry; with 429, this wait is sufficient", _POSITIVE, 2),
    "WWW-Authenticate": (
        'How to authenticate; has `error="invalid_token"` if a key was sent and is not valid',
        {"type": "string", "enum": [_REALM, f'{_REALM}, error="invalid_token"']},
        _REALM,
    ),
    "Vary": (
        "The request headers on which the response depends",
        _TEXT,
        "Accept-Encoding, Origin",
    ),
    "Allow": ("The methods that this path supports", _TEXT, "GET, HEAD, OPTIONS"),
}

ALWAYS = ("X-Request-Id", "Cache-Control")
_REQUIRED = {
    200: ("ETag", *_RATE_LIMIT),
    304: ("ETag", *_RATE_LIMIT),
    401: ("WWW-Authenticate",),
    405: ("Allow",),
    429: (*_RATE_LIMIT, "Retry-After"),
    503: ("Retry-After",),
}
# Present only if the rate limiter was reached: some checks with these statuses come before it.
_OPTIONAL = {400: _RATE_LIMIT, 404: _RATE_LIMIT}


def of_resource(status: int) -> dict[str, Any]:
    """Returns the Header Objects of a resource's response with this status, by header name."""
    required = {name: header(name) for name in (*ALWAYS, *_REQUIRED.get(status, ()))}
    return required | {name: header(name, required=False) for name in _OPTIONAL.get(status, ())}


def header(name: str, *, required: bool = True) -> dict[str, Any]:
    """Returns the Header Object of one header."""
    description, schema, example = HEADERS[name]
    return {"description": description, "required": required, "schema": schema, "example": example}
