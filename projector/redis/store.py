"""Redis, as the projector uses it: scripts in pipelines, positions, dead letters and jobs.

Only `projector/redis/servers.py` knows which servers these are. Every error of Redis is raised as Unavailable. The
commands may or may not have been executed. It is safe to repeat them, because every write compares versions.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from projector.errors import Refused, Unavailable
from projector.operate.words import say
from projector.problem import RedisEvicts
from projector.redis.fence import Fence
from projector.redis.node import ClientConnection, pack_bytes
from projector.redis.scripts import SCRIPTS
from projector.redis.servers import ERRORS, NoScriptError, Request, ResponseError, pack, servers
from schemas import names
from schemas.redis_access import was_reset
from schemas.scripts import Command
from schemas.settings import ProjectorSettings, RedisSettings

_WRITER = "leadview-writer-"
"""The names of the connections of programs that write begin with this; the id of the program follows."""
SLICE = 100
"""Maximum keys per batch of an operator command. Redis is single-threaded, so larger batches delay API reads (a SCAN of
1000 keys took up to 2.5 ms)."""


class Store:
    """Redis: one server, a primary behind Sentinels, or a cluster. Safe to use from several asyncio tasks at once."""

    def __init__(self, settings: RedisSettings, *, writer_id: str = "") -> None:
        """A program that writes documents gives its connections its id, so that `drop` can find and close them."""
        self.writer_id = writer_id
        self.compresses = isinstance(settings, ProjectorSettings) and settings.compression == "zstd"
        """Whether documents are written compressed."""
        self._servers = servers(settings, f"{_WRITER}{writer_id}" if writer_id else "leadview-operator")
        self._client = self._servers.client  # redis-py's client can scan all primaries of a cluster
        self.sharded = self._servers.sharded
        """Whether there are several servers, each with a part of the keys."""
        self._clustered: bool | None = True if self.sharded else None
        self.beginning = asyncio.Lock()
        """Held while this program begins a control record."""

    @property
    def replication_epoch(self) -> int:
        """Increases whenever a server restarted or failed over, and so may have lost writes (`servers.py`)."""
        return self._servers.replication_epoch.number

    @property
    def connections_opened(self) -> int:
        """Increases with each connection that is opened."""
        return self._servers.replication_epoch.opened

    async def close(self) -> None:
        """Close all connections."""
        await self._servers.close()

    async def clustered(self) -> bool:
        """Returns whether all keys of a call must be in one slot. It asks Redis only once. Raises Unavailable."""
        if self._clustered is None:
            with _errors():
                self._clustered = bool((await self._client.info("cluster"))["cluster_enabled"])
        return self._clustered

    async def run(
        self, commands: Sequence[Command], *, replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        """Call scripts in this order, in one round trip; a cluster keeps the order in each slot. Returns their replies.

        Raises Unavailable if any of them failed, if `replication_epoch` is no longer the current one, or if the fence
        refuses a new connection.
        """
        requests = [Request(command.keys[0], pack_bytes(command.words())) for command in commands]
        replies = await self._send(requests, replication_epoch, fence)
        missing = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            await self._load_scripts()
            retried = await self._send([requests[number] for number in missing], replication_epoch, fence)
            for number, reply in zip(missing, retried, strict=True):
                replies[number] = reply
        return _good(replies)

    async def ask(self, commands: Sequence[tuple[Any, ...]], *, fence: Fence | None = None) -> list[Any]:
        """Send plain commands, whose second word is the key, in one round trip. Returns the replies in order.

        Replies are what Redis sends: bytes, a number, a list or None. Raises Unavailable if any command failed, or if
        the fence refuses a new connection.
        """
        return _good(await self._send([Request(words[1], pack(*words)) for words in commands], fence=fence))

    async def ask_one(self, *words: Any) -> Any:
        """Send one plain command, whose second word is the key. Returns its reply as `ask` does. Raises Unavailable."""
        [reply] = await self.ask([words])
        return reply

    async def read_hash(self, key: bytes) -> dict[str, bytes]:
        """Returns all fields of a hash; none if the key does not exist. Raises Unavailable."""
        reply = await self.ask_one(b"HGETALL", key)
        return {field.decode(): value for field, value in zip(reply[::2], reply[1::2], strict=True)}

    async def shards(self) -> list[set[int]]:
        """Returns the slots of each shard; an empty list if Redis is not a cluster. Raises Unavailable."""
        with _errors():
            return await self._servers.shards()

    async def servers_of(self, tags: Iterable[bytes]) -> dict[bytes, str]:
        """Returns the address of the server of each tag; nothing if Redis is not a cluster. Raises Unavailable."""
        with _errors():
            return {tag: self._servers.address(tag) for tag in tags} if self._servers.sharded else {}

    async def silent_shards(self) -> tuple[list[str], int]:
        """Returns the addresses of the shards that do not answer, and how many there are. Raises Unavailable."""
        with _errors():
            return await self._servers.silent()

    async def check(self) -> None:
        """Check that Redis cannot evict documents and that it is what its URL says. Raises Refused or Unavailable."""
        await self.check_url()
        await self.check_policy()

    async def check_url(self) -> None:
        """Check that Redis is what its URL says. Raises Refused or Unavailable."""
        with _errors():
            if wrong := await self._servers.wrong_url():
                raise Refused(f"Redis cannot be used like this: {wrong}.")

    async def check_policy(self) -> None:
        """Check that Redis cannot evict documents. Raises Refused or Unavailable."""
        for memory in await self.memories():
            policy = str(memory.get("maxmemory_policy", "noeviction"))
            # The policies volatile-* evict only keys that expire, and no document does.
            if policy.startswith("allkeys-"):
                raise Refused(f"{say(RedisEvicts((policy,)))}.")

    async def memories(self) -> list[dict[str, Any]]:
        """Returns INFO memory of each server that holds documents. Raises Unavailable."""
        return await self.info("memory")

    async def info(self, section: str) -> list[dict[str, Any]]:
        """Returns this section of INFO of each server that holds documents. Raises Unavailable."""
        with _errors():
            return await self._servers.info(section)

    async def memory_ratio(self) -> float:
        """Returns the used share of maxmemory on the fullest server; 0 if none has a maxmemory. Raises Unavailable."""
        bounded = [memory for memory in await self.memories() if int(memory.get("maxmemory") or 0)]
        return max((int(memory["used_memory"]) / int(memory["maxmemory"]) for memory in bounded), default=0.0)

    async def writer_connections(self) -> dict[str, list[ClientConnection]]:
        """Returns the connections of programs that write, by the id of the program. Raises Unavailable."""
        found: dict[str, list[ClientConnection]] = {}
        with _errors():
            for client in await self._servers.clients():
                if client.name.startswith(_WRITER):
                    found.setdefault(client.name.removeprefix(_WRITER), []).append(client)
        return found

    async def close_all_writers(self) -> None:
        """Close the connections of all programs that write, also of this one: no batch that any of them has under way
        goes on unless the control record is still the same (`projector/redis/fence.py`). Raises Unavailable.
        """
        self._servers.replication_epoch.fence()  # Redis does not close the connection that asks it to close the others
        found = await self.writer_connections()
        await self.close_connections([client for clients in found.values() for client in clients])

    async def close_connections(self, clients: Sequence[ClientConnection]) -> None:
        """Close connections of any program. Raises Unavailable."""
        with _errors():
            await self._servers.kill(clients)

    async def add_jobs(self, jobs: Iterable[str]) -> None:
        """Add jobs for any projector to run (`projector/upkeep/jobs.py`). Raises Unavailable."""
        await self.ask_one(b"SADD", names.JOBS, *jobs)

    async def scan(self, pattern: bytes) -> AsyncIterator[list[bytes]]:
        """Yields the keys that match a pattern, in lists of up to `SLICE`. A key may come twice. Raises Unavailable."""
        keys: list[bytes] = []
        with _errors():
            async for key in self._client.scan_iter(match=pattern, count=SLICE):
                keys.append(key)
                if len(keys) == SLICE:
                    yield keys
                    keys = []
        if keys:
            yield keys

    async def _send(
        self, requests: Sequence[Request], replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        with _errors():
            return await self._servers.send(requests, replication_epoch, fence)

    async def _load_scripts(self) -> None:
        with _errors():
            await self._servers.load([script.text for script in SCRIPTS])


@contextmanager
def _errors() -> Iterator[None]:
    """Raise every error of Redis as Unavailable."""
    try:
        yield
    except ERRORS as error:
        raise _unavailable(error) from error
    except RuntimeError as error:
        if not was_reset(error):
            raise
        raise Unavailable("Redis: the connection was reset") from error


def _good(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise _unavailable(reply)
    return replies


def _unavailable(error: Exception) -> Unavailable:
    text = str(error).partition(" : <")[0]  # redis-py appends the connections to the Sentinels
    return Unavailable(f"Redis: {text or type(error).__name__}")
