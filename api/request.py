"""A request: the parts of an ASGI scope that the API uses.

The address of the client that sent a request, also behind proxies.

A response: status, headers and body. Errors are answered as section 1 of the contract says.

Entity tags (RFC 9110, 8.8.3 and 13.1.2): the 12 bytes of hashes in a stored value, as 24 hex digits.

The tags are weak, because a proxy may compress a body on its way. `If-None-Match` compares weakly, so a tag that a
proxy turned into a strong one matches as well.
"""

import random
import re
from collections.abc import Iterable
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, TypedDict

import msgspec
from msgspec import UNSET, Struct
from starlette.types import Scope

from api.credentials import REPEATED, Credentials
from api.errors import ApiError, Header, Headers, InvalidApiKey, MissingApiKey, RateLimitExceeded, Unavailable
from api.metrics import Counters
from api.redis.servers import Servers
from api.redis.serving import Serving
from api.redis.store import Store
from api.request_log import RequestLog
from api.worker import Drain
from schemas import api_keys
from schemas.layouts import ETAG
from schemas.problems import ErrorBody, RateLimitError, RetryableError
from schemas.settings import Network

_USED_HEADERS = frozenset(
    (b"accept-encoding", b"authorization", b"if-none-match", b"origin", b"x-forwarded-for", b"x-request-id")
)
_VALID_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class State(TypedDict):
    """What the lifespan yields. Each request finds it in `scope["state"]`."""

    store: Store
    servers: Servers
    serving: Serving
    counters: Counters
    log: RequestLog
    drain: Drain
    docs_url: str | None


class Request(Struct):
    """`headers` holds only the headers that are used; the values of a repeated one are joined by REPEATED."""

    id: bytes
    """X-Request-Id: the caller's own id if it is valid, otherwise a new one."""
    method: str
    raw_path: bytes
    headers: dict[bytes, bytes]
    state: State
    client: str | None = None
    """The address from which the connection was opened."""
    caller: Credentials | None = None
    """The names of the key, as soon as its form is known to be right."""
    error: Exception | None = None
    """Why the response is an error."""

    @property
    def last_segment(self) -> str:
        """The part of the path after the last slash."""
        return self.raw_path.rpartition(b"/")[2].decode("latin-1")


def read(scope: Scope) -> Request:
    """Returns the request of an ASGI scope."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _USED_HEADERS:
            headers[name] = headers[name] + REPEATED + value if name in headers else value
    client = scope.get("client")
    return Request(
        request_id(headers.get(b"x-request-id")),
        scope["method"],
        scope["raw_path"],
        headers,
        scope["state"],
        client[0] if client else None,
    )


def request_id(sent: bytes | None) -> bytes:
    """Returns the id that was sent if it is safe in headers and logs, otherwise 32 new hex digits."""
    if sent is not None and _VALID_ID.fullmatch(sent) and not api_keys.is_in(sent):  # it is logged, and no key may be
        return sent
    return b"%032x" % random.getrandbits(128)


_MOST_HOPS = 32
_IPV6_NETWORK_BYTES = 8


def client_address(request: Request, proxies: tuple[Network, ...]) -> bytes:
    """Returns the client's IPv4 address, or its IPv6 network of 64 bits, because one client has all addresses of such a
    network.

    Each of the `proxies` appends to `X-Forwarded-For` the address from which it was called. So the client's address is
    the last one that is not a proxy's. What stands before it was sent by the client, and proves nothing. If there is
    none, because all are proxies or one is not an address, it is the farthest proxy's; without any, it is empty. So
    clients whose addresses are not known share one.
    """
    hops = request.headers.get(b"x-forwarded-for", b"").decode("latin-1").replace("\n", ",").rsplit(",", _MOST_HOPS)
    found, address = b"", _parse(request.client or "")
    while address is not None:
        found = address.packed[:_IPV6_NETWORK_BYTES]
        is_proxy = any(address in network for network in proxies)
        address = _parse(hops.pop()) if is_proxy and hops else None
    return found


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    """Some proxies append the port as well."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


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


MAX_TAGS = 32
"""Further tags of a request are ignored: at worst, a whole document is sent although a 304 was possible."""

OPAQUE_TAG = re.compile(rb'"([^"]*)"')
_OWN_TAG = re.compile(rb"[0-9a-f]{24}")


def etag(value: bytes) -> bytes:
    """Returns the ETag header for a document's value in Redis."""
    return b'W/"%b"' % value[ETAG].hex().encode()


def tags_to_match(header: bytes) -> tuple[bytes, ...]:
    """Returns the tags of an `If-None-Match` header in the form that the script takes: 12 bytes each, or `*`.

    Tags that this API cannot have sent are left out, because they match nothing.
    """
    if header.strip() == b"*":
        return (b"*",)
    own = filter(_OWN_TAG.fullmatch, OPAQUE_TAG.findall(header))
    return tuple(bytes.fromhex(tag.decode()) for tag, _ in zip(own, range(MAX_TAGS), strict=False))
