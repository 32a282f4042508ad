"""The requests' only use of Redis: one script call per request, whose keys all share the caller's hash tag. A large
document is then read by itself, in parts.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from api.errors import Rebuilding
from api.redis import scripts
from api.redis.fair_queue import FairQueue
from api.redis.link import Link
from api.redis.links import Links
from api.redis.serving import UNKNOWN, AsOf, Serving
from api.request import Credentials
from runtime.redis.connection import pack, pack_words
from runtime.redis.errors import ConnectionLost, ErrorReply, Unavailable
from runtime.redis.scripts import Command
from schemas import names
from schemas.control import GenerationId
from schemas.gcra import Bucket, bucket
from schemas.layouts import ETAG, KEY_EXPIRY, NO_ETAG, STATE_LIVE, Outcome
from schemas.resources import Resource
from schemas.settings import ApiSettings, limit

_HEAD = struct.Struct("<HQIIQIIQB")
_TIME = pack((b"TIME",))
_ETAG = b"%d" % ETAG.start, b"%d" % (ETAG.stop - 1)
"""The first and the last byte of the ETag of a document. The value of a deleted one ends before."""
_ATTEMPTS = 3
_PART_UNDER_WAY = 256
"""An organization has at most a 256th of `LEADVIEW_API_MAX_IN_FLIGHT` calls under way. Others wait for their turn."""


class Standing(NamedTuple):
    """What decides whether a key is served: equal ones are served alike."""

    key: bytes | None
    organization: bytes | None
    """The records of both; None if there is none."""
    ended: bool
    """The key does not exist, or is revoked or expired."""


class Look(NamedTuple):
    """What Redis has for a request that waits."""

    etag: bytes
    """That of the document; NO_ETAG if there is none."""
    standing: Standing


class Reply(Struct, frozen=True, gc=False):
    """The reply of `serve.lua`, in its order. Only `outcome` is set if the key is not served.

    Times are in microseconds, windows in seconds.
    """

    outcome: int
    """One of `Outcome`. It stays a number, because to make it a member would cost each request more than to compare
    it."""
    now: int = 0
    key_quota: int = 0
    key_window: int = 0
    key_full_in: int = 0
    organization_quota: int = 0
    organization_window: int = 0
    organization_full_in: int = 0
    charged: int = 1
    """0 if Redis refused to write the charge."""
    value: bytes = b""
    rest: tuple[bytes, ...] = ()
    """The parts after `value`, if the document is large."""
    as_of: bytes = b""
    """The header `Data-As-Of`; empty if it is not known."""

    def buckets(self) -> tuple[Bucket, Bucket]:
        """Returns what is left of the limits of the key and of the organization."""
        return (
            bucket(self.key_quota, self.key_window, self.key_full_in),
            bucket(self.organization_quota, self.organization_window, self.organization_full_in),
        )


def read_reply(reply: int | list[bytes], as_of: AsOf = UNKNOWN) -> Reply:
    """Decode a reply of `serve.lua`, as the header of the script describes it.

    A moment in the future by the clock of Redis is left out: that clock was set back, or is another one now.
    """
    if isinstance(reply, int):
        return Reply(reply)
    head, value = reply
    numbers = _HEAD.unpack(head)
    moment, header = as_of
    fields: list[Any] = [*numbers, value, (), header if moment <= numbers[1] else b""]
    return Reply(*fields)


def _has_ended(key: bytes | None, now: int) -> bool:
    """Returns whether no organization is served with this record of a key. `now` is in ms since 1970."""
    return key is None or 0 < int.from_bytes(key[KEY_EXPIRY], "little") <= now


class Store:
    """Redis as the endpoints of documents use it. On a cluster, the organization's hash tag decides which primary is
    called.
    """

    def __init__(self, settings: ApiSettings, servers: Links, serving: Serving) -> None:
        by_key, by_organization = limit(settings.key_rate_limit), limit(settings.organization_rate_limit)
        self._limits = struct.pack("<IIII", by_key.quota, by_key.window, by_organization.quota, by_organization.window)
        self._waiting_limits = self._limits + b"-"
        self._servers = servers
        self._serving = serving
        self._timeout = settings.api_redis_timeout
        self.sharded = servers.sharded
        most = settings.api_max_in_flight
        self._turns = FairQueue(max(1, most // _PART_UNDER_WAY), most, most=most, timeout=settings.api_redis_timeout)

    @property
    def pending(self) -> int:
        """The requests that have called Redis, or wait for their turn to do so."""
        return self._turns.pending

    def believes(self, tag: bytes) -> bool:
        """Returns whether the server that holds this organization was complete when it was asked last. Raises
        Unavailable.
        """
        return self._serving.known(self._servers.link(tag), tag) is not None

    async def serve(
        self,
        caller: Credentials,
        resource: Resource,
        record_id: str | None,
        etags: tuple[bytes, ...],
        queue: bytes,
        *,
        waits: bool = False,
    ) -> Reply:
        """Check the key, charge both rate limits and read a document, in one atomic step. With LARGE, the document
        is left to `read_large`.

        `record_id` is None if the path does not hold a UUID: the request is still charged, and the outcome is NO_ID.
        The request takes a turn in its `queue` (`FairQueue`). If the connection is lost, or another generation was
        promoted meanwhile, the request is sent again, and may then be charged twice. Raises Unavailable, also if the
        server that holds the organization is not completely filled, or while the records of a recreated organization
        are applied again. A request that `waits` for a record is not charged as long as there is none.
        """
        turn = self._turns.take(queue)
        if turn is not None:
            await self._turns.wait(queue, turn)
        try:
            reply = read_reply(*await self._read(caller, resource, record_id, etags, waits=waits))
        finally:
            self._turns.leave(queue)
        if reply.outcome == Outcome.BEING_APPLIED:
            raise Rebuilding("the records of a recreated organization are being applied again")
        return reply

    async def look(self, watched: Sequence[tuple[Credentials, Resource, str]]) -> list[Look]:
        """Returns what Redis has now for each key and document. On a cluster, all are of one organization. Raises
        Unavailable.
        """
        tag = watched[0][0].organization_tag
        link = self._servers.link(tag)
        generation = self._serving.known(link, tag) or await self._serving.ask(link, tag)
        callers = {caller.key_record: caller for caller, _, _ in watched}
        records = [name for caller in callers.values() for name in (caller.key_record, caller.organization)]
        documents = [
            names.document(resource, caller.organization, generation, record_id)
            for caller, resource, record_id in watched
        ]
        packed = [_TIME, pack((b"MGET", *records)), *(pack((b"GETRANGE", name, *_ETAG)) for name in documents)]
        replies = await link.connection.pipeline(packed)
        for place, reply in enumerate(replies):
            if isinstance(reply, ErrorReply):
                replies[place], _ = await self._servers.retry(reply, link, tag, packed[place])
        (seconds, microseconds), found, *etags = replies
        now = int(seconds) * 1000 + int(microseconds) // 1000
        pairs = zip(callers, found[::2], found[1::2], strict=True)
        standings = {name: Standing(key, organization, _has_ended(key, now)) for name, key, organization in pairs}
        return [
            Look(etag or NO_ETAG, standings[caller.key_record])
            for (caller, _, _), etag in zip(watched, etags, strict=True)
        ]

    async def read_large(
        self, caller: Credentials, resource: Resource, record_id: str, reply: Reply, queue: bytes
    ) -> Reply:
        """Returns a reply with LARGE as one with SERVED and the whole value, or MISSING if the document was deleted
        meanwhile. Nothing is charged. Raises Unavailable, also if all of it takes longer than the timeout.
        """
        try:
            async with asyncio.timeout(self._timeout):
                parts, as_of = await self._read(caller, resource, record_id, (), queue)
        except TimeoutError:
            raise Unavailable(f"a large document was not read within {self._timeout:g} s") from None
        value, *rest = parts
        reply = replace(
            reply, as_of=as_of[1] if as_of[0] <= reply.now else b""
        )  # meanwhile, another server may have taken over
        is_live = bool(value) and value[0] == STATE_LIVE
        if not is_live:
            return replace(reply, outcome=Outcome.MISSING)
        return replace(reply, outcome=Outcome.SERVED, value=value, rest=(*rest,))

    async def _read(
        self,
        caller: Credentials,
        resource: Resource,
        record_id: str | None,
        etags: tuple[bytes, ...],
        large_queue: bytes | None = None,
        *,
        waits: bool = False,
    ) -> tuple[Any, AsOf]:
        """Returns the reply of the script in the generation that is live when it is executed. With `large_queue`, it
        returns the parts of a large document's value instead, and takes its turn in that queue. Beside either, it
        returns the header `Data-As-Of`. Raises Unavailable.
        """
        tag, lost = caller.organization_tag, ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                await self._servers.link(tag).reconnected()
            link = self._servers.link(tag)
            try:
                generation = self._serving.known(link, tag) or await self._serving.ask(link, tag)
                name = names.document(resource, caller.organization, generation, record_id) if record_id else None
                if large_queue is None or name is None:
                    reply, as_of, live = await self._call(link, tag, self._command(caller, name, etags, waits=waits))
                else:
                    reply, as_of, live = await self._call_large(link, tag, name, large_queue)
            except ConnectionLost as error:
                lost = f": {error}"
                continue
            if live == generation:  # otherwise another one was promoted a moment ago
                return reply, as_of
        raise Unavailable(f"the connection is lost, or another generation is promoted, again and again{lost}")

    async def _call(self, link: Link, tag: bytes, packed: bytes) -> tuple[Any, AsOf, GenerationId]:
        """Returns the reply to the command, the header `Data-As-Of`, and the generation that was live right after it.
        Raises Unavailable.
        """
        check = self._serving.check(link)
        try:
            if check is None:
                return await link.connection.call_packed(packed), UNKNOWN, await self._believed(link, tag)
            reply, before, after = await link.connection.call_packed(packed, check)
        except ErrorReply as error:
            reply, answered = await self._servers.retry(error, link, tag, packed, scripts.serve)
            return reply, UNKNOWN, await self._believed(answered, tag)
        live = self._serving.read(link, tag, after) or await self._serving.ask(link, tag)
        return reply, self._serving.as_of(link, before), live

    async def _call_large(
        self, link: Link, tag: bytes, name: bytes, queue: bytes
    ) -> tuple[Sequence[bytes], AsOf, GenerationId]:
        """Returns the parts of a large value, the header `Data-As-Of`, and the generation that was live right after the
        last part was read. Raises Unavailable.
        """
        check = self._serving.check(link)
        try:
            parts, before, after = await link.read_large(queue, name, check)
        except ErrorReply as error:  # slots are being moved: the value comes in one part, over the usual connection
            value, answered = await self._servers.retry(error, link, tag, pack((b"GET", name)))
            return (value or b"",), UNKNOWN, await self._believed(answered, tag)
        if check is None:
            return parts, UNKNOWN, await self._believed(link, tag)
        live = self._serving.read(link, tag, after) or await self._serving.ask(link, tag)
        return parts, self._serving.as_of(link, before), live

    async def _believed(self, answered: Link, tag: bytes) -> GenerationId:
        """Returns the live generation, if the server that has answered is believed. Raises Unavailable."""
        owner = self._servers.link(tag)
        if answered is not owner:  # the slot is being moved there, or was moved there a moment ago
            await self._serving.ask(answered)
        return await self._serving.ask(owner, tag)

    def _command(self, caller: Credentials, name: bytes | None, etags: tuple[bytes, ...], *, waits: bool) -> bytes:
        """Returns the packed call of the script. `name` is that of the document."""
        if name is None or waits:
            limits = self._waiting_limits if waits else self._limits
            return pack((*self._call_of(caller, name, etags, limits).words(),))
        # All words but the name and the ETags are those of the caller's last request: to pack them again would take a
        # twelfth of the time of a request.
        if caller.packed is None:
            command = self._call_of(caller, b"", (), self._limits)
            words, after = command.words(), len(command.arguments)  # the document is the last key
            caller.packed = len(words), pack_words((*words[: -after - 1],)), pack_words((*words[-after:],))
        count, before_name, after_name = caller.packed
        packed_etags = pack_words(etags) if etags else b""
        return b"*%d\r\n%b$%d\r\n%b\r\n%b%b" % (
            count + len(etags),
            before_name,
            len(name),
            name,
            after_name,
            packed_etags,
        )

    def _call_of(self, caller: Credentials, document: bytes | None, etags: tuple[bytes, ...], limits: bytes) -> Command:
        return scripts.serve(
            key=caller.key_record,
            organization=caller.organization,
            key_limit=caller.key_limit,
            organization_limit=caller.organization_limit,
            document=document,
            limits=limits,
            etags=etags,
        )
