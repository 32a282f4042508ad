"""Connections to one place of Redis, and the pipelines that are sent there."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import hiredis
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

TIMEOUT = 10.0
"""Seconds for a connection, and for all replies of a pipeline."""


class Request(NamedTuple):
    """A command as it is sent, and a key of it, which says where to."""

    key: bytes
    packed: bytes


class HistoryChanged(RedisError):
    """Redis restarted or failed over since: what was written before may be missing."""


class Histories:
    """Counts how often a server turned out to have another history than before."""

    def __init__(self) -> None:
        self.number = 0


class Node:
    """Connections to one place: whatever server answers there."""

    def __init__(self, pool: ConnectionPool, histories: Histories, *, must_be_master: bool = False) -> None:
        pool.connection_kwargs["redis_connect_func"] = self._greet
        self.pool = pool
        self._histories = histories
        self._must_be_master = must_be_master
        self._id = b""
        self._ids: WeakKeyDictionary[AbstractConnection, bytes] = WeakKeyDictionary()

    async def send(self, packed: Sequence[bytes], history: int | None = None) -> list[Any]:
        """The replies in order, errors among them: all are read, so that none is left for the next user."""
        async with self._connection() as connection:
            if history not in (None, self._histories.number):
                raise HistoryChanged("it restarted or failed over while a batch was being written")
            await connection.send_packed_command(b"".join(packed), check_health=False)
            replies: list[Any] = []
            async with asyncio.timeout(TIMEOUT):  # one for all: one for each reply would cost as much as reading it
                for _ in packed:
                    try:
                        replies.append(await connection.read_response(disable_decoding=True, timeout=inf))
                    except ReadOnlyError:
                        raise  # demoted: this connection leads nowhere
                    except ResponseError as error:
                        replies.append(error)
            return replies

    async def close(self) -> None:
        await self.pool.disconnect()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AbstractConnection]:
        connection = await self.pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            if self._ids.get(connection) != self._id:  # to the server that was here before
                await connection.disconnect(nowait=True)
                await connection.connect()
            yield connection
        except BaseException:
            # Replies may still be on their way: they must never meet another caller.
            await connection.disconnect(nowait=True)
            raise
        finally:
            await asyncio.shield(self.pool.release(connection))

    async def _greet(self, connection: AbstractConnection) -> None:
        """Called by redis-py for each new connection."""
        await connection.on_connect()
        await connection.send_command("INFO", "replication")
        text: bytes = await connection.read_response(disable_decoding=True)
        lines = (line.partition(b":") for line in text.splitlines())
        found = {name: value for name, _, value in lines}
        if self._must_be_master and found[b"role"] != b"master":
            raise ConnectionError("the Sentinels name a server that is a replica")
        self._ids[connection] = found[b"master_replid"]
        if self._id != found[b"master_replid"]:
            self._id = found[b"master_replid"]
            self._histories.number += 1


def pack(*words: Any) -> bytes:
    """A command as it is sent."""
    return cast(bytes, hiredis.pack_command(words))
