"""A document by its id: the checks of contract section 1, in the order of its table, from row 2 on."""

import re
from collections.abc import Coroutine
from functools import partial
from typing import Any

from api import limits
from api.credentials import Credentials
from api.errors import (
    AccessDisabled,
    Headers,
    InternalError,
    InvalidApiKey,
    InvalidId,
    MethodNotAllowed,
    NoSuchRecord,
)
from api.etags import etag, tags_to_match
from api.keys.known import KnownKeys
from api.local_limiter import LocalLimiter
from api.metrics.counters import Counters
from api.redis.store import Reply
from api.request import Request
from api.response import JSON, Response
from leadview.redis.errors import Unavailable
from schemas.bodies import body
from schemas.compression import Unreadable
from schemas.fields import UUID_PATTERN
from schemas.layouts import JSON_START, LARGE
from schemas.resources import Resource

_UNTRIED = b"?"
_ALLOW = (b"allow", b"GET, HEAD, OPTIONS")
_REVALIDATE = (b"cache-control", b"private, no-cache")
_OPTIONS = Response(
    204,
    (
        _ALLOW,
        (b"access-control-allow-methods", b"GET, HEAD, OPTIONS"),
        (b"access-control-allow-headers", b"Authorization, If-None-Match, X-Request-Id"),
        (b"access-control-max-age", b"86400"),
    ),
)
_uuid = re.compile(UUID_PATTERN).fullmatch


class Documents:
    """The documents of one resource. The other arguments belong to the worker; all resources share them."""

    def __init__(self, resource: Resource, counters: Counters, limiter: LocalLimiter, keys: KnownKeys) -> None:
        self._resource = resource
        self._body = resource.body
        self._counters = counters
        self._limiter = limiter
        self._keys = keys

    async def read(self, request: Request) -> Response:
        """Answer GET, HEAD and OPTIONS. Raises ApiError for every response that is an error."""
        if request.method not in ("GET", "HEAD"):
            return self._other_method(request.method)
        authorization = request.headers.get(b"authorization")
        caller = self._keys.valid(authorization)
        try:
            if caller is None:
                caller, reply = await self._keys.try_out(authorization, request, partial(self._serve_untried, request))
            else:
                request.caller = caller
                reply = await self._serve(request, caller, caller.organization_tag)
            if not reply.charged:
                reply = self._charge_locally(caller, reply)
            if reply.status == LARGE:
                reply = await request.state["store"].read_large(
                    caller, self._resource, request.last_segment, reply, caller.organization_tag
                )
        except Unavailable as error:
            self._counters.redis_errors[error.kind] += 1
            raise
        if reply.status == 401:
            self._keys.refuse(authorization, caller)
            raise InvalidApiKey("the key is unknown, revoked or expired")
        return self._response(reply)

    def _serve(self, request: Request, caller: Credentials, share: bytes) -> Coroutine[Any, Any, Reply]:
        headers, segment = request.headers, request.last_segment
        tags = tags_to_match(headers[b"if-none-match"]) if b"if-none-match" in headers else ()
        record_id = segment if _uuid(segment) else None
        return request.state["store"].serve(caller, self._resource, record_id, tags, share)

    def _serve_untried(self, request: Request, caller: Credentials) -> Coroutine[Any, Any, Reply]:
        """Whoever makes up keys that name an organization must not use up the turns of those who have one."""
        return self._serve(request, caller, _UNTRIED + caller.organization_tag)

    def _other_method(self, method: str) -> Response:
        if method == "OPTIONS":
            return _OPTIONS
        raise MethodNotAllowed(headers=(_ALLOW,))

    def _charge_locally(self, caller: Credentials, reply: Reply) -> Reply:
        """Redis served the read but refused to write the charge: the local limiter decides about the request."""
        self._counters.limiter_failures += 1
        charged = self._limiter.charge(caller, reply)
        if charged.status == 429:
            self._counters.limiter_refusals += 1
        return charged

    def _response(self, reply: Reply) -> Response:
        if reply.status == 403:
            raise AccessDisabled
        if reply.status == 429:
            raise limits.exceeded(reply)
        return self._document(reply, limits.headers(reply))

    def _document(self, reply: Reply, limit_headers: Headers) -> Response:
        if reply.status == 400:
            raise InvalidId(headers=limit_headers)
        if reply.status == 404:
            raise NoSuchRecord(headers=limit_headers)
        tag = (b"etag", etag(reply.value))
        if reply.status == 304:
            return Response(304, (tag, _REVALIDATE, *limit_headers))
        value = reply.value
        json = value[self._body :]
        if not json.startswith(JSON_START):
            json = self._unpacked(value)
        return Response(200, (JSON, tag, _REVALIDATE, *limit_headers), json)

    def _unpacked(self, value: bytes) -> bytes:
        try:
            return body(self._resource, value)
        except Unreadable as error:
            raise InternalError(
                f"the stored document cannot be read: {error} (`rebuild --organization` writes it again)"
            ) from error
