"""Redis, as the projector uses it: scripts in pipelines, positions, dead letters and jobs.

Only `projector/redis/servers.py` knows which servers these are. Every error of Redis is raised as Unavailable: what
was sent may or may not have been written, and is safe to send again, since a version guards every write.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha1
from importlib.resources import files
from typing import Any

from projector.errors import Refused, Unavailable
from projector.redis.calls import Command
from projector.redis.servers import ERRORS, NoScriptError, Request, ResponseError, pack, servers
from schemas import names
from schemas.settings import RedisSettings

_LUA = files("projector.redis") / "lua"
SLICE = 100
"""Keys that operators' commands scan, read or drop at once: what a reader asks for waits behind them. (A SCAN of 1000
took up to 2.5 ms.)"""


class Script:
    """The text of a script and the SHA-1 that Redis knows it by."""

    def __init__(self, path: Any) -> None:
        self.text: str = (_LUA / "layout.lua").read_text() + path.read_text()
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest().encode()


SCRIPTS = {
    path.name.removesuffix(".lua"): Script(path)
    for path in _LUA.iterdir()
    if path.name.endswith(".lua") and path.name != "layout.lua"
}


class Store:
    """Redis, whatever servers it has. Safe to use from several tasks at once."""

    def __init__(self, settings: RedisSettings) -> None:
        self._servers = servers(settings)
        self._client = self._servers.client  # redis-py's: it knows how to scan all primaries of a cluster
        self.sharded = self._servers.sharded
        """Are there several servers, each with a part of the keys?"""
        self._clustered: bool | None = True if self.sharded else None

    @property
    def history(self) -> int:
        """Changes where a server lost its memory of what was written, perhaps (`projector/redis/servers.py`)."""
        return self._servers.histories.number

    @property
    def map_version(self) -> int:
        """Changes where slots have moved from one shard to another."""
        return self._servers.map_version

    async def close(self) -> None:
        await self._servers.close()

    async def clustered(self) -> bool:
        """Whether all keys of a call must lie in one slot: asked once. Raises Unavailable."""
        if self._clustered is None:
            async with self._errors():
                self._clustered = bool((await self._client.info("cluster"))["cluster_enabled"])
        return self._clustered

    async def run(self, commands: Sequence[Command], *, history: int | None = None) -> list[Any]:
        """Call the scripts in this order, in one round trip; on a cluster the order holds within a slot.

        Raises Unavailable where any of them failed, or where `history` is not the present one any more.
        """
        requests = [Request(command.keys[0], _pack(command)) for command in commands]
        replies = await self._send(requests, history)
        missing = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            await self._load_scripts()
            again = await self._send([requests[at] for at in missing], history)
            for at, reply in zip(missing, again, strict=True):
                replies[at] = reply
        return _good(replies)

    async def ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The replies to plain commands, whose second word is the key, in one round trip. Raises Unavailable."""
        return _good(await self._send([Request(words[1], pack(*words)) for words in commands]))

    async def ask_one(self, *words: Any) -> Any:
        """The reply to one plain command, as Redis sends it: bytes, a number, a list or None. Raises Unavailable."""
        [reply] = await self.ask([words])
        return reply

    async def read_hash(self, key: bytes) -> dict[str, bytes]:
        """All fields of a hash; none if there is no such key. Raises Unavailable."""
        reply = await self.ask_one(b"HGETALL", key)
        return {field.decode(): value for field, value in zip(reply[::2], reply[1::2], strict=True)}

    async def shards(self) -> list[set[int]]:
        """The slots of each shard of a cluster. Raises Unavailable."""
        async with self._errors():
            return await self._servers.shards()

    async def check(self) -> None:
        """Refuse a Redis that may evict documents, or that is not what its URL says. Raises Refused or Unavailable."""
        async with self._errors():
            if wrong := await self._servers.wrong_url():
                raise Refused(f"Redis cannot be used like this: {wrong}.")
        await self.check_policy()

    async def check_policy(self) -> None:
        """Refuse a Redis that may evict documents. Raises Refused or Unavailable."""
        for memory in await self.memories():
            policy = str(memory.get("maxmemory_policy", "noeviction"))
            # volatile-* takes only keys that expire, and no document does.
            if policy.startswith("allkeys-"):
                raise Refused(
                    f"Redis evicts keys when its memory is full (maxmemory-policy is {policy}): documents would "
                    "vanish. Set its maxmemory-policy to noeviction."
                )

    async def memories(self) -> list[dict[str, Any]]:
        """INFO memory of each server that holds documents. Raises Unavailable."""
        async with self._errors():
            return await self._servers.memories()

    async def memory_ratio(self) -> float:
        """Memory in use, of maxmemory, where it is fullest; 0 where there is no such bound."""
        bounded = [memory for memory in await self.memories() if int(memory.get("maxmemory") or 0)]
        return max((int(memory["used_memory"]) / int(memory["maxmemory"]) for memory in bounded), default=0.0)

    async def add_jobs(self, jobs: Iterable[str]) -> None:
        await self.ask_one(b"SADD", names.JOBS, *jobs)

    async def scan(self, pattern: bytes) -> AsyncIterator[list[bytes]]:
        """The names of keys like this, in slices; one perhaps more than once. Raises Unavailable."""
        found: list[bytes] = []
        async with self._errors():
            async for name in self._client.scan_iter(match=pattern, count=SLICE):
                found.append(name)
                if len(found) == SLICE:
                    yield found
                    found = []
        if found:
            yield found

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        """Raise every error of Redis as Unavailable."""
        try:
            yield
        except ERRORS as error:
            raise _unavailable(error) from error

    async def _send(self, requests: Sequence[Request], history: int | None = None) -> list[Any]:
        async with self._errors():
            return await self._servers.send(requests, history)

    async def _load_scripts(self) -> None:
        async with self._errors():
            await self._servers.load([script.text for script in SCRIPTS.values()])


def _pack(command: Command) -> bytes:
    keys = command.keys
    return pack(b"EVALSHA", SCRIPTS[command.script].sha, len(keys), *keys, *command.arguments)


def _good(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise _unavailable(reply)
    return replies


def _unavailable(error: Exception) -> Unavailable:
    text = str(error).partition(" : <")[0]  # redis-py shows the Sentinels' connections behind it
    return Unavailable(f"Redis: {text or type(error).__name__}")
