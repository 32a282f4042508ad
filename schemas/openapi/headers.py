"""The headers of the HTTP API's answers, as OpenAPI describes them, and which status carries which."""

from typing import Any

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

# Name: what it says, schema, example.
HEADERS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "X-Request-Id": (
        "Names this answer: the id you sent, or a new one",
        _TEXT,
        "01982f6ab4c87d1e9f3a52b6c0d4e8f7",
    ),
    "Cache-Control": (
        "`private, no-cache` on records: keep a copy, and ask whether it still holds. `no-store` on errors",
        _TEXT,
        "private, no-cache",
    ),
    "ETag": (
        "Changes whenever the record does; send it back in `If-None-Match`",
        _TEXT,
        'W/"vYcS0nE2mQ8xL4aB"',
    ),
    "RateLimit-Policy": (
        "The limits: `q` requests in `w` seconds",
        _TEXT,
        '"key";q=100;w=10, "organization";q=300;w=10',
    ),
    "RateLimit": (
        "`r` requests are left of each limit, all are back in `t` seconds",
        _TEXT,
        '"key";r=99;t=1, "organization";r=299;t=1',
    ),
    "X-RateLimit-Limit": ("Quota of the tighter limit", _POSITIVE, 100),
    "X-RateLimit-Remaining": ("Requests left of the tighter limit", _COUNT, 99),
    "X-RateLimit-Reset": (
        "When the tighter limit is whole again, seconds since 1970 UTC",
        _COUNT,
        1789000000,
    ),
    "Retry-After": ("Seconds to wait; waiting that long is enough", _POSITIVE, 2),
    "WWW-Authenticate": (
        'How to authenticate; with `error="invalid_token"` where a key was sent that is not valid',
        {"type": "string", "enum": [_REALM, f'{_REALM}, error="invalid_token"']},
        _REALM,
    ),
    "Allow": ("The methods of this path", _TEXT, "GET, HEAD, OPTIONS"),
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
# Only where the limiter was reached: other checks with the same status come before it.
_OPTIONAL = {400: _RATE_LIMIT, 404: _RATE_LIMIT}


def of_resource(status: int) -> dict[str, Any]:
    """Header objects of an answer of the two resources, by name."""
    required = {name: header(name) for name in (*ALWAYS, *_REQUIRED.get(status, ()))}
    return required | {name: header(name, required=False) for name in _OPTIONAL.get(status, ())}


def header(name: str, *, required: bool = True) -> dict[str, Any]:
    """One Header Object."""
    description, schema, example = HEADERS[name]
    return {"description": description, "required": required, "schema": schema, "example": example}
