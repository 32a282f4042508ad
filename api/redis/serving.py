"""Which generation is served, and from which shards: each shard says so itself, in its copy of the control record.

Redis executes a check after the requests of each write (`api/redis/connection.py`), so a reply counts only if the shard
held everything of the live generation when it was made. From a shard that was emptied, or is still being filled, the
API answers 503 and nothing else.

Usually a shard has one copy. If it took over the slots of another one, it has that one's copy too, or lacks it because
the other one was lost with all it held: then all copies that it should have are asked after each reply.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec import Struct

from api.errors import Rebuilding, Unavailable
from api.redis.connection import pack
from api.redis.link import Link
from api.redis.servers import Servers
from schemas import control, names
from schemas.control import GenerationId, number_of, parse_generation

POLL_SECONDS = 0.5
logger = logging.getLogger(__name__)
_FIELDS = [field.encode() for field in control.SERVED_FIELDS]
_LAYOUT = b"%d" % control.LAYOUT


class _Served(Struct, frozen=True):
    """What a shard answered last, and the generation that is served from it."""

    reply: list[bytes | None]
    generation: GenerationId


class Serving:
    """What the servers serve, as this worker knows it."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._copies: bytes = names.HOME
        self._checks: dict[Link, bytes | None] = {}
        self._checks_of: tuple[int, bytes] = (-1, b"")

    @property
    def generation(self) -> int:
        """The live generation for the metrics; 0 if it is not known."""
        return max((number_of(link.serving.generation) for link in self._servers.links if link.serving), default=0)

    @property
    def ready(self) -> bool:
        """Whether at least one shard was complete when it was asked last."""
        return any(link.serving for link in self._servers.links)

    def known(self, link: Link) -> GenerationId | None:
        """Returns the generation that was served from this shard when it was asked last; None if it has to be asked."""
        return link.serving.generation if link.serving else None

    def check(self, link: Link) -> bytes | None:
        """Returns the packed command whose reply `read` takes; None if the shard has no copy of the control record, or
        several, so that `ask` has to decide.
        """
        of = (self._servers.map_version, self._copies)
        if of != self._checks_of:
            self._checks, self._checks_of = {}, of
        if link not in self._checks:
            self._checks[link] = self._packed(link)
        return self._checks[link]

    def read(self, link: Link, reply: list[bytes | None]) -> GenerationId:
        """Returns the live generation, from the reply to `check`. Raises Unavailable, and Rebuilding if the shard is
        not complete.
        """
        served: _Served | None = link.serving
        if served is not None and served.reply == reply:
            return served.generation
        link.serving = None
        layout, live, filled, copies = reply
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
        link.serving = _Served(reply, generation)
        return generation

    async def ask(self, link: Link) -> GenerationId:
        """Ask a shard. Returns the live generation.

        A shard without a copy of its own is believed on the word of the home copy: slots were moved there a moment ago,
        and a projector is about to give it one. If it has several, all of them have to be complete. Raises Unavailable,
        and Rebuilding if the shard is not complete.
        """
        asked: set[bytes] = set()
        found: set[GenerationId] = set()
        while left := set(self._tags(link) or [names.HOME]) - asked:
            for tag in left:  # what they say may name further copies
                reply = await self._servers.call(tag, b"HMGET", names.copy(names.CONTROL, tag), *_FIELDS)
                found.add(self.read(link, reply))
            asked |= left
        if len(found) > 1:
            raise Unavailable("the copies of the control record name different generations")
        return found.pop()

    async def check_layout(self) -> None:
        """Log a warning if Redis holds only data of other layouts. Raises Unavailable."""
        if await self._servers.call(names.HOME, b"EXISTS", names.CONTROL):
            return
        others = names.OF_OTHER_LAYOUTS.items()
        found = {layout for key, layout in others if await self._servers.call(names.tag(key), b"EXISTS", key)}
        if found:
            logger.warning(
                "Redis holds data of another layout only: nothing is served until a projector of this version has "
                "filled it (docs/upgrading.md)",
                extra={"layouts": sorted(found), "own_layout": control.LAYOUT},
            )

    async def ask_any(self) -> None:
        """Ask the shards until one is complete. Raises Unavailable if none is."""
        error = Unavailable("there is no connection to Redis")
        for link in self._servers.links:
            try:
                await self.ask(link)
            except Unavailable as failure:
                error = failure
            else:
                return
        raise error

    async def poll(self, then: Callable[[], Awaitable[None]]) -> None:
        """Asks all shards twice a second until it is cancelled, and calls `then` after each time."""
        while True:
            for link in list(self._servers.links):
                with suppress(Unavailable):
                    await self.ask(link)
            await then()
            await asyncio.sleep(POLL_SECONDS)

    def _packed(self, link: Link) -> bytes | None:
        tags = self._tags(link)
        return pack((b"HMGET", names.copy(names.CONTROL, tags[0]), *_FIELDS)) if len(tags) == 1 else None

    def _tags(self, link: Link) -> list[bytes]:
        """Returns the hash tags of the copies of the control record that this shard should have."""
        found = []
        for tag in dict.fromkeys((names.HOME, *self._copies.split())):
            with suppress(Unavailable):
                if self._servers.link(tag) is link:
                    found.append(tag)
        return found
