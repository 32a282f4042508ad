"""Connections to one address of Redis, and pipelines of commands."""

import asyncio
import socket
import struct
from asyncio import StreamWriter
from collections.abc import Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import hiredis
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError

from projector.redis.fence import Fence

TIMEOUT = 10.0
"""Seconds to connect, and to send a pipeline and receive all of its replies."""
_NO_LINGER = struct.pack("ii", 1, 0)


class Request(NamedTuple):
    """A command in the protocol of Redis, and one of its keys, which decides the server that it is sent to."""

    key: bytes
    packed: bytes


class ClientConnection(NamedTuple):
    """A connection that a server has: the server (None if there is only one), the id there, and the client's name."""

    server: Any
    id: str
    name: str


class ReplicationEpochChanged(RedisError):
    """Redis restarted or failed over: writes that it acknowledged before may be missing."""


class ReplicationEpoch:
    """Counts how often a server had another replication id than before, and how many connections were opened."""

    def __init__(self) -> None:
        self.number = 0
        self.opened = 0
        self._fenced = 0

    def fence(self) -> None:
        """From now on, batches that this program has under way have to confirm each connection before they use it."""
        self.opened += 1
        self._fenced = self.opened

    def needs_confirmation(self, number: int, fence: Fence) -> bool:
        """Returns whether a batch has to confirm the connection with this number before it uses it."""
        return (number > fence.opened or fence.opened < self._fenced) and number not in fence.confirmed


class Node:
    """Connections to one address, whichever server answers there."""

    def __init__(self, pool: ConnectionPool, epoch: ReplicationEpoch, *, must_be_master: bool = False) -> None:
        pool.connection_kwargs["redis_connect_func"] = self._on_connect
        self.pool = pool
        self._epoch = epoch
        self._must_be_master = must_be_master
        self._replication_id = b""
        self._replication_ids: WeakKeyDictionary[AbstractConnection, bytes] = WeakKeyDictionary()
        self._numbers: WeakKeyDictionary[AbstractConnection, int] = WeakKeyDictionary()

    async def send(
        self, packed: Sequence[bytes], replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        """Returns the replies in order, including errors. All are read, so that none is left for the next caller.

        Raises ReplicationEpochChanged if `replication_epoch` is no longer the current one, and what the fence raises.
        """
        connection = await self.pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            opened_before = self._replication_ids.get(connection) != self._replication_id  # a restart or failover
            # redis-py notices that a connection was closed while nobody used it, but not that it was reset.
            if opened_before or _writer(connection).transport.is_closing():
                await connection.disconnect(nowait=True)
                await connection.connect()
            await self._confirm(connection, replication_epoch, fence)
            return await _exchange(connection, packed)
        except BaseException:
            # Replies may still arrive on this connection: another caller must never read them.
            await connection.disconnect(nowait=True)
            raise
        finally:
            await self.pool.release(connection)  # it awaits nothing, so it cannot be cancelled

    async def close(self) -> None:
        await self.pool.disconnect()

    async def _confirm(
        self, connection: AbstractConnection, replication_epoch: int | None, fence: Fence | None
    ) -> None:
        """Raises ReplicationEpochChanged if the epoch is no longer this one, and what the fence raises."""
        number = self._numbers[connection]
        if fence and self._epoch.needs_confirmation(number, fence):
            await fence.confirm()
            fence.confirmed.add(number)
        if replication_epoch not in (None, self._epoch.number):
            raise ReplicationEpochChanged("it restarted or failed over while a batch was being written")

    async def _on_connect(self, connection: AbstractConnection) -> None:
        """Called by redis-py for each new connection."""
        self._replication_ids.pop(connection, None)  # what was found before it was opened again
        await connection.on_connect()
        await connection.send_command("INFO", "replication")
        text: bytes = await connection.read_response(disable_decoding=True)
        lines = (line.partition(b":") for line in text.splitlines())
        found = {name: value for name, _, value in lines}
        if self._must_be_master and found[b"role"] != b"master":
            # redis-py closes the connection only if this is an error of its own.
            raise RedisConnectionError("the Sentinels name a server that is a replica")
        self._replication_ids[connection] = found[b"master_replid"]
        self._epoch.opened += 1
        self._numbers[connection] = self._epoch.opened
        if self._replication_id != found[b"master_replid"]:
            self._replication_id = found[b"master_replid"]
            self._epoch.number += 1


async def _exchange(connection: AbstractConnection, packed: Sequence[bytes]) -> list[Any]:
    """Returns the replies to a pipeline, including errors.

    It uses the streams of redis-py's connection: redis-py would create a task for what it sends, and would take a
    timeout of the network for the reply None.
    """
    writer = _writer(connection)
    parser: Any = connection._parser  # noqa: SLF001 - redis-py has no other name for it
    try:
        async with asyncio.timeout(TIMEOUT):  # one for all: one for each reply costs as much as reading it
            writer.write(b"".join(packed))
            await writer.drain()
            replies = [await parser.read_response(disable_decoding=True) for _ in packed]
    except BaseException:
        _abort(writer)
        raise
    for reply in replies:
        if isinstance(reply, ReadOnlyError):
            raise reply  # the server was demoted, so this connection must not be used any more
    return replies


def _writer(connection: AbstractConnection) -> StreamWriter:
    """Returns the stream of a connection. Raises ConnectionError if the connection was closed meanwhile."""
    writer: StreamWriter | None = connection._writer  # noqa: SLF001 - redis-py has no other name for it
    if writer is None:
        raise ConnectionError("the connection was closed meanwhile")
    return writer


def _abort(writer: StreamWriter) -> None:
    """Close a connection, and discard what it has not sent: it might arrive at any later time, and write into a
    generation that was dropped meanwhile.
    """
    if not writer.transport.is_closing():  # otherwise the socket may be closed already
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


def pack(*words: Any) -> bytes:
    """Returns a command in the protocol of Redis."""
    return cast(bytes, hiredis.pack_command(words))


def pack_bytes(words: Sequence[bytes]) -> bytes:
    """Returns the same as `pack`, for words that are bytes, in a third of the time: no loop of Python, and one copy."""
    parts = [b"\r\n"] * (2 * len(words) + 2)
    parts[0] = b"*%d" % len(words)
    parts[1:-1:2] = map(_length, map(len, words))
    parts[2:-1:2] = words
    return b"".join(parts)


class _Lengths(dict[int, bytes]):
    """What stands before a word of each length: the end of the line before it, and the length."""

    def __missing__(self, length: int) -> bytes:
        return b"\r\n$%d\r\n" % length


_length = _Lengths((length, b"\r\n$%d\r\n" % length) for length in range(4096)).__getitem__
