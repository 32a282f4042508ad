"""Finds out which generation is served, and from which shards. Each shard says so in its copy of the control record.

Redis executes a check after the requests that are sent together (`runtime/redis/connection.py`), so a reply counts
only if the shard held everything of the live generation when it was made. From a shard that was emptied, or is still
being filled, the API answers 503 and nothing else.

Usually a shard has one copy. A shard that took over the slots of another one has the copy of that shard, too, or lacks
it because that shard was lost. Then all copies that it should have are asked after each reply.

On a cluster, slots move without the copy that speaks for them. So the record says which copies answer for which slots.
If no copy of a shard answers for a slot, the shard is believed for it only if all copies of all shards are complete
(`docs/how-it-works.md`).

A usual request needs four functions of this module: `known` and `check` before it is sent, `read` and `as_of` when its
reply has come (`Store._read`, `Store._call` and `Connection.call_packed`). All else is for the beginning of a
connection, for promotions, for slots that move, and for the poll.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache
from uuid import UUID

from api.errors import Rebuilding
from api.redis.link import Link, LiveGeneration
from api.redis.links import Links
from api.redis.scripts import serve
from runtime.redis.connection import Check, pack
from runtime.redis.errors import ErrorReply, Unavailable
from schemas import base62, control, names
from schemas.control import GenerationId, number_of, parse_generation, parse_slots
from schemas.layouts import SHORT_ID
from schemas.resources import RESOURCES
from schemas.words import utc

POLL_SECONDS = 0.5
_FIELDS = [field.encode() for field in control.SERVED_FIELDS]
_STAMP = control.STAMP.encode()
_LAYOUT = b"%d" % control.LAYOUT
_ALL_SLOTS = b"\1" * names.SLOTS
_NOBODY = str(UUID(int=0))
_NOBODYS = GenerationId("0.000000")


AsOf = tuple[int, bytes]
"""A moment in microseconds since 1970, and the header that says it."""
UNKNOWN: AsOf = 0, b""


class Serving:
    """Knows which generation each server serves."""

    def __init__(self, servers: Links) -> None:
        self._servers = servers
        self._fields = [*_FIELDS, *([_STAMP] if servers.sharded else [])]
        self._copies: bytes = names.HOME
        self._checks: dict[Link, Check | None] = {}
        self._checks_of: tuple[int, bytes] = (-1, b"")
        self.ready = False
        """True if the last `check_ready` succeeded. `unready` is the text of its error; empty if there was none."""
        self.unready = ""
        self.rebuilding = False
        """True if it failed because no shard holds everything."""
        self._reserved: dict[Link, str | None] = {}
        self._reserved_of = -1
        self._incomplete = b""
        """The copy that was found to be incomplete last."""

    @property
    def generation(self) -> int:
        """The live generation for the metrics; 0 if it is not known."""
        return max((number_of(link.served.generation) for link in self._servers.links if link.served), default=0)

    def known(self, link: Link, tag: bytes) -> GenerationId | None:
        """Returns the generation that was served from this shard when it was asked last; None if it has to be asked, or
        if it is not believed for the slot of this hash tag.
        """
        served = link.served
        return served.generation if served is not None and self._believes(served, tag) else None

    def check(self, link: Link) -> Check | None:
        """Returns the check of a request: `as_of` takes the first reply to it, and `read` the last one. None if the
        shard has no copy of the control record, or several, so that `ask` has to decide.
        """
        of = (self._servers.map_version, self._copies)
        if of != self._checks_of:
            self._checks, self._checks_of = {}, of
        if link not in self._checks:
            tags = self._tags(link)
            self._checks[link] = self._check_of(tags[0]) if len(tags) == 1 else None
        return self._checks[link]

    def _check_of(self, tag: bytes) -> Check:
        before = pack((b"GET", names.copy(names.AS_OF, tag)))
        return Check(before, pack((b"HMGET", names.copy(names.CONTROL, tag), *self._fields)))

    def read(self, link: Link, tag: bytes, reply: list[bytes | None] | ErrorReply) -> GenerationId | None:
        """Returns the live generation, from the reply to `check`; None if `ask` has to decide whether the shard is
        believed for the slot of this hash tag. Raises Unavailable, and Rebuilding if the shard is not complete.
        """
        if isinstance(reply, ErrorReply):
            return None  # the copy of the control record is being moved
        served = link.served
        if served is not None and served.reply == reply and self._believes(served, tag):
            return served.generation
        link.served = None
        generation = self._complete(reply)
        if self._servers.sharded:
            return None
        link.served = LiveGeneration(reply, generation)
        return generation

    def as_of(self, link: Link, reply: bytes | ErrorReply | None) -> AsOf:
        """Returns the header `Data-As-Of`, from the first reply to `check`; nothing if it is not known, or if the shard
        has taken over slots of another one.

        It is read before the document: a moment that is read later may cover a change that the document lacks. And it
        is read together with the document, so it is never earlier than a moment that another worker has read before.
        """
        served = link.served
        if not isinstance(reply, bytes) or served is None or served.slots is _ALL_SLOTS:
            return UNKNOWN  # in the last case, the copy of this shard knows nothing of the other slots
        return _as_of(reply)

    async def ask(self, link: Link, tag: bytes | None = None) -> GenerationId:
        """Ask whether a shard is believed for the slot of this hash tag; without one, for any slot. Returns the live
        generation. Raises Unavailable, and Rebuilding if the shard is not believed.

        For a shard without a copy of its own, the home copy is asked: slots were moved to the shard a moment ago, and a
        projector is about to give it a copy. If a shard has several copies, all of them have to be complete.

        This is not enough. The copy that speaks for a slot may be elsewhere, because the slot has moved without it. So
        one of these copies has to name the slot, or all copies of all shards have to be complete.
        """
        while True:
            map_version = self._servers.map_version
            try:
                return await self._ask(link, tag, map_version)
            except Rebuilding:
                if map_version == self._servers.map_version:
                    raise  # otherwise slots have moved meanwhile, so the shard is asked again

    async def _ask(self, link: Link, tag: bytes | None, map_version: int) -> GenerationId:
        said: dict[bytes, list[bytes | None]] = {}
        slots_of: dict[bytes, bytes | None] = {}
        try:
            while left := set(self._tags(link) or [names.HOME]) - said.keys():
                for copy in sorted(left):  # what they say may name further copies
                    said[copy], slots_of[copy] = await self._ask_copy(copy)
            generation = self._live(said.values())
        except Unavailable:
            link.served = None
            raise
        reply = [word for words in said.values() for word in words]
        if not self._servers.sharded:
            link.served = LiveGeneration(reply, generation)
            return generation
        before = link.served
        if before is None or before.reply != reply or before.map_version != map_version:
            slots = _flags({copy: slots for copy, slots in slots_of.items() if copy in self._tags(link)})
            before = LiveGeneration(reply, generation, map_version, slots)
        link.served = before if before.slots and b"\1" in before.slots else None
        if link.served is None or (tag is not None and not self._believes(before, tag)):
            await self._ask_all()
            link.served = LiveGeneration(reply, generation, map_version, _ALL_SLOTS)
        return generation

    def _live(self, said: Collection[list[bytes | None]]) -> GenerationId:
        """Returns the live generation, from what the complete copies of one shard say. Raises Rebuilding if one of them
        does not have it.

        A change of the record reaches one copy after the other, so they may name different generations for a moment,
        or until a projector ends what a command began. The latest state is the one that all copies will have.
        """
        latest = max(said, key=lambda reply: reply[-1] or b"")  # its stamp, or the only reply
        for layout, _, *others in said:
            self._complete([layout, latest[1], *others])
        return self._complete(latest)

    def _believes(self, served: LiveGeneration, tag: bytes) -> bool:
        slots = served.slots
        return slots is None or (served.map_version == self._servers.map_version and slots[names.tag_slot(tag)] == 1)

    def _complete(self, reply: list[bytes | None]) -> GenerationId:
        """Returns the live generation, if the shard of the copy that said this is complete. Raises Unavailable, and
        Rebuilding if it is not.
        """
        layout, live, filled, copies, *_ = reply
        if layout is None or live is None or filled is None or copies is None:
            raise Rebuilding("nothing is projected yet, or Redis was emptied")
        if layout != _LAYOUT:
            raise Unavailable(
                f"Redis holds data of layout {layout.decode(errors='replace')}, this program has {control.LAYOUT}"
            )
        try:
            generation = parse_generation(live)
        except ValueError as error:
            raise Unavailable(f"the live generation in Redis is {error}") from None
        self._copies = copies
        if live not in filled.split(b","):
            raise Rebuilding("the projection is not complete in this part of Redis")
        return generation

    async def _ask_copy(self, tag: bytes) -> tuple[list[bytes | None], bytes | None]:
        """Returns what a copy replies to `check`, and its field that says which slots each copy answers for, both read
        at the same moment. Raises Unavailable, and Rebuilding if the copy is not complete.
        """
        name = names.copy(names.CONTROL, tag)
        try:
            *reply, slots = await self._servers.call(tag, b"HMGET", name, *self._fields, control.SLOTS)
            self._complete(reply)
        except Unavailable:
            self._incomplete = tag
            raise
        return reply, slots

    async def _ask_all(self) -> None:
        """Raises Unavailable, and Rebuilding, unless all copies are complete."""
        if self._incomplete in (names.HOME, *self._copies.split()):
            # Usually it still is not complete, and then the others need not be asked.
            await self._ask_copy(self._incomplete)
            self._incomplete = b""
        asked: set[bytes] = set()
        while left := {names.HOME, *self._copies.split()} - asked:
            await asyncio.gather(*map(self._ask_copy, left))
            asked |= left

    async def check_ready(self) -> None:
        """Ask all shards, and let each one that serves execute what a request executes. Raises Unavailable if none
        serves, or if one that serves would refuse requests.
        """
        try:
            await self._try_out_all()
        except Exception as error:  # also after a defect, nobody knows whether requests would be served
            self.ready, self.unready = False, str(error) or type(error).__name__
            self.rebuilding = isinstance(error, Rebuilding)
            raise
        self.ready, self.unready, self.rebuilding = True, "", False

    async def _try_out_all(self) -> None:
        asked = await asyncio.gather(*map(self._asked, self._servers.links))
        served = [link for link, error in asked if error is None]
        if not served:
            raise next((error for _, error in asked if error), Unavailable("there is no connection to Redis"))
        await asyncio.gather(*map(self._try_out, served))

    async def _asked(self, link: Link) -> tuple[Link, Unavailable | None]:
        """Returns the link, and why nothing is served from this shard; None if it serves."""
        try:
            await self.ask(link)
        except Unavailable as error:
            link.served = None
            return link, error
        return link, None

    async def _try_out(self, link: Link) -> None:
        """Execute what a request executes, for an organization that nobody has. Raises Unavailable."""
        if (tag := self._tag_in(link)) is None:
            return  # it has no slots
        owner = names.tagged(tag)
        key, document = names.api_key(owner, ""), names.document(RESOURCES[0], owner, _NOBODYS, _NOBODY)
        quotas = {"key_limit": names.key_limit(owner, ""), "organization_limit": names.organization_limit(owner)}
        command = serve(key=key, organization=owner, document=document, limits=b"", etags=(), **quotas)
        await self._servers.call(tag.encode(), *command.words(), script=serve)
        # The script reads no document of an organization that does not exist.
        await self._servers.call(tag.encode(), b"GETRANGE", document, 0, 0)

    def _tag_in(self, link: Link) -> str | None:
        """Returns a hash tag that no organization uses, in a slot of this shard; None if the shard has no slots. Raises
        Unavailable.
        """
        if self._reserved_of != self._servers.map_version:
            self._reserved, self._reserved_of = {}, self._servers.map_version
        if link not in self._reserved:
            tags = (base62.encode(number, SHORT_ID) for number in range(names.SLOTS))
            self._reserved[link] = next((tag for tag in tags if self._servers.link(tag.encode()) is link), None)
        return self._reserved[link]

    async def poll(self) -> None:
        """Asks all shards twice a second until it is cancelled."""
        await self._servers.first_attempt()  # otherwise every start would warn that there is no connection
        while True:
            with suppress(Unavailable):
                await self.check_ready()
            await asyncio.gather(*map(self._keep_large, self._servers.links))
            await asyncio.sleep(POLL_SECONDS)

    async def _keep_large(self, link: Link) -> None:
        """Use the second connection to this server, as a request for a large document does."""
        with suppress(Unavailable):
            if (tag := self._tag_in(link)) is not None:
                owner = names.tagged(tag)
                await link.keep_large(b"GETRANGE", names.document(RESOURCES[0], owner, _NOBODYS, _NOBODY), 0, 0)

    def _tags(self, link: Link) -> list[bytes]:
        """Returns the hash tags of the copies of the control record that this shard should have."""
        found = []
        for tag in dict.fromkeys((names.HOME, *self._copies.split())):
            with suppress(Unavailable):
                if self._servers.link(tag) is link:
                    found.append(tag)
        return found


@lru_cache
def _as_of(moment: bytes) -> AsOf:
    """Returns the header for a moment; UNKNOWN if it is not a number, or in the future by this machine's clock when it
    is first seen.
    """
    if not moment.isdigit() or int(moment) > time.time() * 1000:
        return UNKNOWN
    return int(moment) * 1000, b"data-as-of: %b\r\n" % utc(int(moment)).encode()


def _flags(slots_of: Mapping[bytes, bytes | None]) -> bytes:
    """Returns a byte for each slot: 1 if one of these copies says that it answers for the slot, otherwise 0. Raises
    Rebuilding.
    """
    flags = bytearray(names.SLOTS)
    for tag, slots in slots_of.items():
        if slots is None:
            raise Rebuilding("a copy of the control record does not say which copies answer for which slots")
        for each in parse_slots(slots).get(tag, ()):
            flags[each.start : each.stop] = b"\1" * len(each)
    return bytes(flags)
