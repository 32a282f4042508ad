"""The Redis servers that the API asks: one, or the shards of a cluster (`api/redis/cluster.py`)."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from api.errors import ErrorReply, ScriptMissing
from api.redis.link import Link

logger = logging.getLogger(__name__)


class Servers(ABC):
    """What the API needs of them."""

    def __init__(self, timeout: float) -> None:
        """`timeout` is how long, in seconds, a call may be repeated."""
        self._timeout = timeout

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Commands without a reply yet."""

    @abstractmethod
    def link(self, tag: bytes) -> Link:
        """The way to the keys of a hash tag; for a name without one, to that key. Raises Unavailable."""

    @abstractmethod
    async def redirected(self, error: ErrorReply, link: Link, tag: bytes) -> tuple[Link, bool]:
        """Where to call instead, and whether with ASKING. Raises ErrorReply where there is no such place."""

    @abstractmethod
    async def keep(self) -> None:
        """Runs until it is cancelled, then closes all connections."""

    @abstractmethod
    async def first_attempt(self) -> None:
        """Returns when the first attempt to connect is over, well or not."""

    async def call(self, tag: bytes, *command: Any) -> Any:
        """The reply to a command whose keys have this hash tag. Raises Unavailable."""
        link = self.link(tag)
        try:
            return await link.call(*command)
        except ErrorReply as error:
            return await self.retry(error, link, tag, command)

    async def retry(
        self, error: ErrorReply, link: Link, tag: bytes, command: Sequence[Any], script: bytes = b""
    ) -> Any:
        """Do what an error reply asks for, and call again: the command did not run, so nothing is charged twice.

        `script` is what a missing one is loaded from. Raises Unavailable, and ErrorReply where nothing can be done.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        asking = False
        while True:
            if loop.time() > deadline:
                raise error
            if isinstance(error, ScriptMissing) and script:
                await link.call(b"SCRIPT", b"LOAD", script)
            else:
                link, asking = await self.redirected(error, link, tag)
            try:
                if asking:
                    link.call(b"ASKING").cancel()  # holds for the next command; its own reply matters to nobody
                return await link.call(*command)
            except ErrorReply as next_error:
                error = next_error


class OneServer(Servers):
    """A single server, or the master that Sentinels name."""

    def __init__(self, link: Link, timeout: float) -> None:
        super().__init__(timeout)
        self._only = link
        self._told = False

    @property
    def in_flight(self) -> int:
        return self._only.in_flight

    def link(self, tag: bytes) -> Link:  # noqa: ARG002 - one server holds every key
        return self._only

    async def redirected(self, error: ErrorReply, link: Link, tag: bytes) -> tuple[Link, bool]:  # noqa: ARG002
        if "READONLY" in str(error):
            link.drop("it was demoted to a replica")
        if str(error).startswith(("MOVED ", "ASK ")) and not self._told:
            self._told = True
            logger.error("Redis is one node of a cluster: write redis+cluster:// in LEADVIEW_REDIS_URL")
        raise error

    async def keep(self) -> None:
        await self._only.keep()

    async def first_attempt(self) -> None:
        await self._only.first_attempt()
