"""A request, as the edge has read it, with the credentials of its caller; and a response, as the edge sends it.

Headers of a response are the lines that are sent, each with its line end. All of them are constants, numbers, or values
that were validated when they came in, so nobody has to search them for forbidden characters. The bodies of errors are
in `schemas/error_body.py`.
"""

import asyncio
import random
import re
from binascii import hexlify
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from api.errors import ApiError, InternalError, InvalidApiKey, MethodNotAllowed, MissingApiKey, RateLimitExceeded
from schemas import api_keys, names
from schemas.error_body import ErrorBody, RateLimitError, RetryableError
from schemas.fields import UUID_PATTERN
from schemas.layouts import ETAG
from schemas.settings import Network

REPEATED = b"\n"
"""Joins the values of a header that was sent more than once. No header value can contain a line feed."""
JSON = b"content-type: application/json\r\n"
NO_STORE = b"cache-control: no-store\r\n"
MAX_ETAGS = 32
"""Further ETags of a request are ignored: at worst, a whole document is sent although a 304 was possible."""
_OPAQUE_TAG = re.compile(rb'"([^"]*)"')
is_uuid = re.compile(UUID_PATTERN).fullmatch

_VALID_ID = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,128}")
_OWN_ETAG = re.compile(rb"[0-9a-f]{24}")
_CODING = re.compile(rb"(?:--?|;)(?:gzip|x-gzip|br|zstd|deflate|compress|x-compress|dcb|dcz)$", re.IGNORECASE)
"""The end that a proxy which compresses bodies appends to an ETag, as Apache and Jetty do."""
TOKEN_CHARACTERS = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
"""What names of headers and methods consist of (RFC 9110, section 5.6.2)."""
_is_token = re.compile(TOKEN_CHARACTERS + b"+").fullmatch
_OF_PREFLIGHT = {b"origin", b"access-control-request-method"}
_MOST_HOPS = 32
_IPV6_NETWORK_BYTES = 8
_STATUS_LINES = {int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_CORS = (
    b"access-control-allow-origin: *\r\n"
    b"access-control-expose-headers: Data-As-Of, ETag, Preference-Applied, RateLimit, RateLimit-Policy, Retry-After, "
    b"WWW-Authenticate, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, X-Request-Id\r\n"
)


class Credentials(Struct, eq=False):
    """The names of Redis keys that belong to an API key. They contain no secret: the API key itself is not kept."""

    organization_tag: bytes
    """The organization that is encoded in the key. The script compares it with the stored record of the key."""
    organization: bytes
    """The name of the organization's record in Redis, which says whether it has access."""
    key_record: bytes
    """The name under which Redis has the record of the key, if there is such a key. It may be revoked."""
    key_limit: bytes
    organization_limit: bytes
    """The names of the buckets of both rate limits."""
    packed: tuple[int, bytes, bytes] | None = None
    """The parts that all calls of the script for this caller share (`api/redis/store.py`): the number of words without
    ETags, the words before the name of the document, and those after it, in the protocol of Redis. None until the first
    call.
    """


def credentials(authorization: bytes | None) -> Credentials:
    """Read the Authorization header. Raises MissingApiKey and InvalidApiKey (rows 3 and 4 of `api/documents.py`)."""
    if not authorization:
        raise MissingApiKey
    if REPEATED in authorization:
        raise InvalidApiKey("there is more than one Authorization header")
    scheme, _, token = authorization.partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token:
        raise MissingApiKey
    try:
        key = api_keys.parse(token.decode("latin-1"))
    except api_keys.MalformedKey:
        raise InvalidApiKey from None
    owner = names.tagged(key.organization_tag)
    return Credentials(
        organization_tag=key.organization_tag.encode(),
        organization=owner,
        key_record=names.api_key(owner, key.hash),
        key_limit=names.key_limit(owner, key.hash),
        organization_limit=names.organization_limit(owner),
    )


class Request(Struct):
    """`headers` holds only the headers that are used; the values of a repeated one are joined by REPEATED."""

    id: bytes
    """X-Request-Id: the caller's own id if it is valid, otherwise a new one."""
    method: str = ""
    """Empty if nobody knows it, because it may be anything, and is logged."""
    raw_path: bytes = b""
    headers: dict[bytes, bytes] = {}
    client: str | None = None
    """The address from which the connection was opened."""
    last_segment: str = ""
    """Of the path of a document, the part after the last slash, which should be an id."""
    caller: Credentials | None = None
    """The names of the Redis keys that belong to the API key, as soon as its form is known to be right."""
    error: BaseException | None = None
    """Why the response is an error."""
    waits: asyncio.Event | None = None
    """While it waits for a change of its record: what ends this wait."""
    waits_no_longer: bool = False
    """True if it has to be answered now, because its connection is about to end."""
    waited: float = 0.0
    """The seconds that it has waited for a change."""


def request_id(sent: bytes | None) -> bytes:
    """Returns the id that was sent if it is safe in headers and logs, otherwise 32 new hex digits."""
    if sent is not None and _VALID_ID.fullmatch(sent) and not api_keys.is_in(sent):  # it is logged, and no key may be
        return sent
    return hexlify(random.getrandbits(128).to_bytes(16))


def client_address(request: Request, proxies: tuple[Network, ...]) -> bytes:
    """Returns the client's IPv4 address, or its IPv6 network of 64 bits, because one client has all addresses of such a
    network.

    Each of the `proxies` appends to `X-Forwarded-For` the address from which it was called. So the client's address is
    the last one that is not a proxy's. What stands before it was sent by the client, and proves nothing. If there is no
    such address, because all are proxies or one is not an address, it is the farthest proxy's. Without any address, it
    is empty. So clients whose addresses are not known share one.
    """
    hops = request.headers.get(b"x-forwarded-for", b"").decode("latin-1").replace("\n", ",").rsplit(",", _MOST_HOPS)
    found, address = b"", _address(request.client or "")
    while address is not None:
        found = address.packed[:_IPV6_NETWORK_BYTES]
        is_proxy = any(address in network for network in proxies)
        address = _address(hops.pop()) if is_proxy and hops else None
    return found


def etag_of(value: bytes) -> bytes:
    """Returns the ETag header for a document's value in Redis: the 12 bytes of hashes in it, as 24 hex digits.

    The ETags (RFC 9110, 8.8.3 and 13.1.2) are weak, because a proxy may compress a body on its way. `If-None-Match`
    compares weakly, so one that a proxy turned into a strong one matches as well.
    """
    return b'W/"' + hexlify(value[ETAG]) + b'"'


def opaque_tags(header: bytes) -> list[bytes]:
    """Returns what stands between the quotes of the ETags in a header, without the name of a coding that a proxy has
    appended.
    """
    return [_CODING.sub(b"", tag) for tag in _OPAQUE_TAG.findall(header)]


def etags_to_match(header: bytes | None) -> tuple[bytes, ...]:
    """Returns the ETags of an `If-None-Match` header in the form that the script takes: 12 bytes each, or `*`.

    ETags that this API cannot have sent are left out, because they match nothing.
    """
    if header is None:
        return ()
    if header.strip() == b"*":
        return (b"*",)
    own = filter(_OWN_ETAG.fullmatch, opaque_tags(header))
    return tuple(bytes.fromhex(etag.decode()) for etag, _ in zip(own, range(MAX_ETAGS), strict=False))


class Response(Struct, frozen=True, gc=False):
    """A response without the headers that depend on the request alone (its id, CORS), or on the connection."""

    status: int
    headers: bytes = b""
    body: bytes = b""
    rest: tuple[bytes, ...] = ()
    """The parts after `body`: a large document is not copied into one piece."""


_ALLOW = b"allow: GET, HEAD, OPTIONS\r\n"
_OPTIONS = (
    _ALLOW + b"access-control-allow-methods: GET, HEAD, OPTIONS\r\n"
    b"access-control-max-age: 86400\r\n"
    b"vary: Access-Control-Request-Headers\r\n"
    b"access-control-allow-headers: %b\r\n"
)
_USUAL_HEADERS = b"Authorization, If-None-Match, Prefer, X-Request-Id"


def is_preflight(request: Request) -> bool:
    """Returns whether a browser asks if a page of another origin may send a request. No key is sent with it."""
    return request.method == "OPTIONS" and request.headers.keys() >= _OF_PREFLIGHT


def answer_other_method(request: Request) -> Response:
    """Returns the response of every known path to OPTIONS. Raises MethodNotAllowed for all methods but GET and HEAD.

    A page may send every header that the browser asks for, such as those of a tracing SDK: the API reads no cookies, so
    none of them lets a page do more than any other program.
    """
    if request.method != "OPTIONS":
        raise MethodNotAllowed(headers=_ALLOW)
    asked = request.headers.get(b"access-control-request-headers", b"").replace(REPEATED, b",").split(b",")
    names = [name.strip(b" \t") for name in asked]
    return Response(204, _OPTIONS % (b", ".join(filter(_is_token, names)) or _USUAL_HEADERS))


def error_response(error: BaseException, request_id: bytes, docs_url: str | None) -> Response:
    """Returns the response that reports an error to the caller. Any error but an ApiError is a defect in the API, and
    the caller learns nothing else about it. `docs_url` is the setting of that name.
    """
    if not isinstance(error, ApiError):
        error = InternalError()
    fields: dict[str, Any] = {
        "error": error.code,
        "message": error.message,
        "status": error.status,
        "request_id": request_id.decode(),
        "docs_url": f"{docs_url.rstrip('/')}/errors.html#{error.code}" if docs_url else UNSET,
    }
    retry = b""
    body = ErrorBody(**fields)
    if error.retry_after:
        retry = b"retry-after: %d\r\n" % error.retry_after
        fields["retry_after"] = error.retry_after
        body = (
            RateLimitError(**fields, violated_policies=error.violated)
            if isinstance(error, RateLimitExceeded)
            else RetryableError(**fields)
        )
    return Response(error.status, JSON + NO_STORE + retry + error.headers, msgspec.json.encode(body))


def encode_head(response: Response, request_id: bytes, common: bytes = b"", *, cors: bool, close: bool) -> bytes:
    """Returns all of a response but its body. `common` are the lines of every response. A 204 or 304 has no length."""
    length = len(response.body)
    if response.rest:
        length += sum(map(len, response.rest))
    return b"%b%b%bx-request-id: %b\r\n%b%b%b\r\n" % (
        _STATUS_LINES[response.status],
        common,
        response.headers,
        request_id,
        b"" if response.status in (204, 304) else b"content-length: %d\r\n" % length,
        _CORS if cors else b"",
        b"connection: close\r\n" if close else b"",
    )


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Returns the address in this text, None if it is none. Some proxies append the port as well."""
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
