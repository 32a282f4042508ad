"""The Redis servers that the API calls: one server, or the primaries of a cluster (`api/redis/cluster.py`)."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from api.errors import ErrorReply, ScriptMissing
from api.redis.connection import pack
from api.redis.link import Link

logger = logging.getLogger(__name__)


class Servers(ABC):
    """What the rest of the API needs from Redis, whatever the number of servers."""

    sharded = False
    """Whether there are several servers, each with a part of the keys."""

    def __init__(self, timeout: float) -> None:
        """`timeout` is the time, in seconds, during which a call may be retried."""
        self._timeout = timeout

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """The number of commands without a reply."""

    @property
    @abstractmethod
    def links(self) -> Collection[Link]:
        """The links to all servers that hold keys."""

    @property
    def map_version(self) -> int:
        """Increases whenever keys may have moved from one server to another."""
        return 0

    @abstractmethod
    def link(self, tag: bytes) -> Link:
        """Returns the link to the server that holds the keys with this hash tag, or the key of this name if the name
        has no hash tag. Raises Unavailable.
        """

    @abstractmethod
    async def redirect(self, error: ErrorReply, link: Link, tag: bytes) -> tuple[Link, bool]:
        """Returns the link to call after this error reply, and whether ASKING has to be sent first. Raises ErrorReply
        if the error reply names no other server.
        """

    @abstractmethod
    async def run(self) -> None:
        """Keeps the connections until it is cancelled, then closes them."""

    @abstractmethod
    async def first_attempt(self) -> None:
        """Returns when the first attempt to connect has succeeded or failed."""

    async def call(self, tag: bytes, *command: Any, script: bytes = b"") -> Any:
        """Returns the reply to a command whose keys have this hash tag. Raises Unavailable.

        `script` is the source of the script that the command calls.
        """
        link, packed = self.link(tag), pack(command)
        try:
            return await link.call_packed(packed)
        except ErrorReply as error:
            reply, _ = await self.retry(error, link, tag, packed, script)
            return reply

    async def retry(
        self, error: ErrorReply, link: Link, tag: bytes, packed: bytes, script: bytes = b""
    ) -> tuple[Any, Link]:
        """Do what an error reply asks for, then repeat the packed command. Redis did not execute a command that it
        answered with such an error, so nothing is charged twice. Returns the reply, and the link that it came over.

        `script` is the source of the script that the command calls; it is loaded if the server does not know it.
        Raises Unavailable, and ErrorReply if the error reply asks for nothing that can be done.
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
                link, asking = await self.redirect(error, link, tag)
            try:
                if asking:
                    link.call(b"ASKING").cancel()  # applies to the next command; its own reply is not needed
                return await link.call_packed(packed), link
            except ErrorReply as next_error:
                error = next_error


class OneServer(Servers):
    """A single server, or the master that Sentinels name."""

    def __init__(self, link: Link, timeout: float) -> None:
        super().__init__(timeout)
        self._link = link
        self._cluster_reported = False

    @property
    def in_flight(self) -> int:
        return self._link.in_flight

    @property
    def links(self) -> Collection[Link]:
        return (self._link,)

    def link(self, tag: bytes) -> Link:  # noqa: ARG002 - one server holds all keys
        return self._link

    async def redirect(self, error: ErrorReply, link: Link, tag: bytes) -> tuple[Link, bool]:  # noqa: ARG002
        if "READONLY" in str(error):
            link.disconnect("the server was demoted to a replica")
        if str(error).startswith(("MOVED ", "ASK ")) and not self._cluster_reported:
            self._cluster_reported = True
            logger.error("this Redis is a node of a cluster: write redis+cluster:// in LEADVIEW_REDIS_URL")
        raise error

    async def run(self) -> None:
        await self._link.run()

    async def first_attempt(self) -> None:
        await self._link.first_attempt()
