"""A document by its id. The checks, in this order; code and documentation call them by these rows:

    1   the path is known                                   404 not_found
    2   the method is GET, HEAD or OPTIONS                  405 method_not_allowed
    3   a key was sent                                      401 missing_api_key
    4   its form and checksum are right                     401 invalid_api_key
    5   it is known, active, and not expired                401 invalid_api_key
    6   its organization has access to the API              403 api_access_disabled
    7   both rate limits allow the request                  429 rate_limit_exceeded
    8   the id is a UUID                                    400 invalid_id
    9   the record exists in this organization              404 not_found
    10  `If-None-Match` does not name its present ETag      304

Before row 5, Redis has to answer, and to hold the whole projection: otherwise 503 service_unavailable.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from api import limits
from api.errors import (
    AccessDisabled,
    ApiError,
    InternalError,
    InvalidApiKey,
    InvalidId,
    NoSuchRecord,
)
from api.redis.store import Reply
from api.request import (
    JSON,
    Credentials,
    Request,
    Response,
    answer_other_method,
    credentials,
    etag_of,
    etags_to_match,
    is_uuid,
)
from api.waiting import Waiter, wait_of
from api.worker import Worker
from runtime.redis.errors import Unavailable
from schemas.bodies import body
from schemas.compression import Unreadable
from schemas.layouts import ETAG, JSON_START, NO_ETAG, Outcome
from schemas.resources import Resource

_UNTRIED = b"?"
_ABOUT_DOCUMENT = b"etag: %b\r\ncache-control: private, no-cache\r\n%b%b"
_JSON_DOCUMENT = JSON + _ABOUT_DOCUMENT
_REFUSALS: Mapping[int, Callable[[Reply, bytes], ApiError]] = {
    Outcome.KEY_REFUSED: lambda _reply, _applied: InvalidApiKey("the key is unknown, revoked or expired"),
    Outcome.NO_ACCESS: lambda _reply, _applied: AccessDisabled(),
    Outcome.LIMITED: lambda reply, _applied: limits.exceeded(reply),
    Outcome.NO_ID: lambda reply, _applied: InvalidId(headers=limits.headers(reply)),
    Outcome.MISSING: lambda reply, applied: NoSuchRecord(headers=limits.headers(reply) + reply.as_of + applied),
}
"""The errors of rows 5 to 9, made of the reply and of the header `Preference-Applied`."""


class Documents:
    """The documents of one resource."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._body_offset = resource.body_offset

    async def read(self, worker: Worker, request: Request) -> Response:
        """Answer GET, HEAD and OPTIONS. Raises ApiError for every response that is an error."""
        if request.method not in ("GET", "HEAD"):  # row 2
            return answer_other_method(request)
        if request.method == "GET" and b"prefer" in request.headers:
            return await self._read_or_wait(worker, request)
        return self._response(await self._reply(worker, request))  # rows 5 to 10

    async def _reply(self, worker: Worker, request: Request, *, waits: bool = False) -> Reply:
        """Returns the reply of Redis to a request. One that `waits` for a record is not charged while there is none."""
        try:
            caller, reply = await self._serve(worker, request, waits=waits)  # rows 3 and 4, then Redis
            if not reply.charged:  # Redis refused to write the charge: the local limiter decides about the request
                worker.counters.limiter_failures += 1
                reply = worker.limiter.charge(caller, reply)
                worker.counters.limiter_refusals += reply.outcome == Outcome.LIMITED
            if reply.outcome == Outcome.LARGE:
                queue = caller.organization_tag
                reply = await worker.store.read_large(caller, self._resource, request.last_segment, reply, queue)
        except Unavailable as error:
            worker.counters.redis_errors[error.kind] += 1
            raise
        return reply

    async def _read_or_wait(self, worker: Worker, request: Request) -> Response:
        """Answer a GET as soon as the record differs from the ETags of the request; without any, as soon as there is a
        record; at the latest after the seconds that `Prefer` names. Only the last reply of Redis is charged.

        A request keeps its place among those that wait until it is answered, however often its record changes to what
        it has seen.
        """
        now = asyncio.get_running_loop().time
        seconds, tags = wait_of(request.headers[b"prefer"]), request.headers.get(b"if-none-match")
        awaited = Outcome.MISSING if tags is None else Outcome.UNCHANGED
        is_honoured, until = seconds > 0, now() + seconds
        waiter: Waiter | None = None
        with ExitStack() as place:
            while True:
                if waiter is not None:
                    waiter.over.clear()  # what changes while Redis serves the request must not be missed
                may_wait = is_honoured and now() < until
                reply = await self._reply(worker, request, waits=may_wait and tags is None)
                caller = request.caller
                if caller is None or not may_wait or reply.outcome != awaited:
                    break
                if waiter is None:
                    waiter = Waiter(caller, self._resource, request.last_segment)
                    is_honoured = place.enter_context(worker.waiting.place(waiter))
                waiter.seen = reply.value[ETAG] or NO_ETAG
                is_honoured = is_honoured and await self._wait(worker, request, waiter, until)
        return self._response(reply, b"preference-applied: wait=%d\r\n" % seconds if is_honoured else b"")

    async def _wait(self, worker: Worker, request: Request, waiter: Waiter, until: float) -> bool:
        """Returns when the record may differ from what was seen, or at this time of the event loop. Returns False if
        the request has to be answered earlier, because its connection or the worker is about to end.
        """
        now = asyncio.get_running_loop().time
        if not (request.waits_no_longer or worker.waiting.has_ended):
            request.waits, began_at = waiter.over, now()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await waiter.over.wait()
            request.waits = None
            request.waited += now() - began_at
        return not (request.waits_no_longer or worker.waiting.has_ended)

    async def _serve(self, worker: Worker, request: Request, *, waits: bool) -> tuple[Credentials, Reply]:
        """Call Redis for a key that was valid lately, or try a key out: admit it, serve the request, settle it."""
        authorization, segment = request.headers.get(b"authorization", b""), request.last_segment
        caller, trial = worker.keys.known(authorization), None
        is_known = caller is not None
        if caller is None:
            caller = request.caller = credentials(authorization)
            trial = await worker.keys.admit(caller, request)
            # Made-up keys that name an organization must not use up the turns of its real keys.
            queue = _UNTRIED + caller.organization_tag
        else:
            request.caller = caller
            queue = caller.organization_tag
        record_id, accepted = segment if is_uuid(segment) else None, None
        try:
            etags = etags_to_match(request.headers.get(b"if-none-match"))
            reply = await worker.store.serve(caller, self._resource, record_id, etags, queue, waits=waits)
            accepted = reply.outcome != Outcome.KEY_REFUSED
        finally:
            if not (is_known and accepted):
                worker.keys.settle(authorization, caller, trial, accepted)
        return caller, reply

    def _response(self, reply: Reply, applied: bytes = b"") -> Response:
        if refusal := _REFUSALS.get(reply.outcome):
            raise refusal(reply, applied)
        about = etag_of(reply.value), limits.headers(reply), reply.as_of + applied
        if reply.outcome == Outcome.UNCHANGED:  # row 10
            return Response(304, _ABOUT_DOCUMENT % about)
        head = _JSON_DOCUMENT % about
        json = reply.value[self._body_offset :]
        if json[:1] == JSON_START:
            return Response(200, head, json, reply.rest)
        try:
            unpacked = body(self._resource, b"".join((reply.value, *reply.rest)))
        except Unreadable as error:
            raise InternalError(
                f"the stored document cannot be read: {error} (`rebuild --organization` writes it again)"
            ) from error
        return Response(200, head, unpacked)
