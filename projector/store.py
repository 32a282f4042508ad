"""Redis, as the projector uses it: scripts in pipelines, positions, dead letters and tasks.

The only module of this package that opens Redis. Every error of Redis comes out as Unavailable: what was sent may
or may not have been written, and is safe to send again, since a version guards every write.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha1
from importlib.resources import files
from math import inf
from typing import Any, cast

import hiredis
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from projector.command import Command
from projector.errors import Refused, Unavailable
from schemas import names
from schemas.settings import RedisSettings

_LUA = files("projector") / "lua"
_TIMEOUT = 10.0


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
    """A pool of connections to Redis. Safe to use from several tasks at once."""

    def __init__(self, settings: RedisSettings) -> None:
        # redis-py sends a timed-out command again by itself, ten times by default: whether to try again is the
        # line's decision, which also looks where Redis stands.
        self._pool = ConnectionPool.from_url(
            settings.redis_url,
            protocol=2,
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_TIMEOUT,
            retry=Retry(NoBackoff(), 0),
            client_name="leadview-projector",
            **_overrides(settings),
        )
        self.redis = Redis(connection_pool=self._pool)
        self._clustered: bool | None = None

    async def close(self) -> None:
        await self.redis.aclose()
        await self._pool.disconnect()

    async def clustered(self) -> bool:
        """Whether all keys of a call must lie in one slot: asked once. Raises Unavailable."""
        if self._clustered is None:
            async with self.errors():
                self._clustered = bool((await self.redis.info("cluster"))["cluster_enabled"])
        return self._clustered

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """Call the scripts in this order, in one round trip. Raises Unavailable where any of them failed."""
        replies = await self._send(commands)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            await self._load_scripts()
            replies = await self._send(commands)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise _unavailable(reply)
        return replies

    async def check_policy(self) -> None:
        """Refuse a Redis that may evict documents. Raises Refused or Unavailable."""
        async with self.errors():
            memory = await self.redis.info("memory")
        policy = str(memory.get("maxmemory_policy", "noeviction"))
        # volatile-* takes only keys that expire, and no document does.
        if policy.startswith("allkeys-"):
            raise Refused(
                f"Redis evicts keys when its memory is full (maxmemory-policy is {policy}): documents would vanish. "
                "Set its maxmemory-policy to noeviction."
            )

    async def memory_ratio(self) -> float:
        """Memory in use, of maxmemory; 0 where there is no such bound."""
        async with self.errors():
            memory = await self.redis.info("memory")
        most = int(memory.get("maxmemory") or 0)
        return int(memory["used_memory"]) / most if most else 0.0

    async def add_tasks(self, tasks: Iterable[str]) -> None:
        async with self.errors():
            await self.redis.sadd(names.TASKS, *tasks)

    @asynccontextmanager
    async def errors(self) -> AsyncIterator[None]:
        """Whatever goes wrong with Redis inside comes out as Unavailable."""
        try:
            yield
        except (RedisError, OSError, TimeoutError) as error:
            raise _unavailable(error) from error

    async def _send(self, commands: Sequence[Command]) -> list[Any]:
        """The replies in order, errors among them: all are read, so that none is left for the next user."""
        packed = b"".join([_pack(command) for command in commands])
        async with self.errors(), self._connection() as connection:
            await connection.send_packed_command(packed, check_health=False)
            replies: list[Any] = []
            async with asyncio.timeout(_TIMEOUT):  # one for all: one for each reply would cost as much as reading it
                for _ in commands:
                    try:
                        replies.append(await connection.read_response(disable_decoding=True, timeout=inf))
                    except ResponseError as error:
                        replies.append(error)
            return replies

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AbstractConnection]:
        connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            yield connection
        except BaseException:
            # Replies may still be on their way: they must never meet another caller.
            await connection.disconnect(nowait=True)
            raise
        finally:
            await asyncio.shield(self._pool.release(connection))

    async def _load_scripts(self) -> None:
        async with self.errors():
            for script in SCRIPTS.values():
                await self.redis.script_load(script.text)


def _pack(command: Command) -> bytes:
    keys = command.keys
    words = (b"EVALSHA", SCRIPTS[command.script].sha, len(keys), *keys, *command.arguments)
    return cast(bytes, hiredis.pack_command(words))  # type: ignore[arg-type]  # its stub takes one word only


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(f"Redis: {str(error) or type(error).__name__}")


def _overrides(settings: RedisSettings) -> dict[str, Any]:
    """Settings of their own win over the URL's parameters."""
    found = {
        "username": settings.redis_username,
        "password": settings.redis_password,
        "ssl_ca_certs": settings.redis_tls_ca_file,
        "ssl_certfile": settings.redis_tls_cert_file,
        "ssl_keyfile": settings.redis_tls_key_file,
    }
    return {name: value for name, value in found.items() if value is not None}
