"""Connections to one Redis server, as sessions use them. They are opened when they are needed.

Each pipeline has a connection of its own while it lasts. If it is given up, that connection is closed, and what was not
sent is discarded: nothing arrives after the program has acknowledged that its generation is gone. For the same reason a
session is not continued over a connection that was opened after it had begun, unless its *fence* allows it: a program
that stood still (SIGSTOP, a suspended machine) may wake up in the middle of its session, long after the generation that
it writes was dropped. Therefore `drop` closes the connections of each program that has not acknowledged the change
(`operate/rebuild/generations.py`), and the control record is read once more before a later connection is used.

A server and its replicas share a replication id. It changes with a restart or a failover, and writes that were
acknowledged before may then be missing. So every new connection asks for the id, and the *replication epoch* counts its
changes. A caller passes the epoch in which it wrote, so that its next commands fail unless they reach the same data.
The first pipeline to an address counts as a change, too.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple, Protocol

from projector.errors import Denied, Unavailable
from projector.reason import RedisReason
from runtime.redis import errors
from runtime.redis.access import Address, Sentinels
from runtime.redis.connection import Connection, connect, pack

_RENEW_SECONDS = 30.0
"""After this time another connection is opened, although there is one: the address may lead to another server by now,
while the former one still runs, as after a promotion by hand. The new server has another replication id."""
_INFO = pack((b"INFO", b"replication"))


class Fence(Protocol):
    """The connections that a session (`projector/ledger/ledger.py`) may use."""

    opened: int
    """The number of connections that the program had opened when the session began. Later ones have higher numbers."""
    confirmed: dict[int, int]
    """The numbers of the later connections that were confirmed, each with the value that `require_confirmation` had set
    by then: `drop` will find them, as it finds the earlier ones."""

    async def confirm(self) -> None:
        """Raises Unavailable if the control record is no longer the one that the session began with."""


class ReplicationEpoch:
    """Counts how often a server had another replication id than before, and how many connections were opened. It checks
    whether a session may use one of them.
    """

    def __init__(self) -> None:
        self.number = 0
        self.opened = 0
        self._fenced = 0

    def require_confirmation(self) -> None:
        """From now on, the sessions that this program has open have to confirm each connection before they use it, also
        one that they have confirmed before.
        """
        self.opened += 1
        self._fenced = self.opened

    async def check(self, connection_number: int, replication_epoch: int | None, fence: Fence | None) -> None:
        """Check that a session may use the connection with this number. Raises Unavailable."""
        if fence is not None and (connection_number > fence.opened or fence.opened < self._fenced):
            while fence.confirmed.get(connection_number) != self._fenced:
                fenced = self._fenced
                await fence.confirm()
                fence.confirmed[connection_number] = fenced
        if replication_epoch not in (None, self.number):
            raise Unavailable(RedisReason("restarted"))


class _Opened(NamedTuple):
    """A connection, its number, and the replication id that its server had when it was opened."""

    connection: Connection
    number: int
    replication_id: bytes


class Node:
    """Connections to one address, no matter which server answers there."""

    def __init__(
        self,
        where: Address | Sentinels,
        epoch: ReplicationEpoch,
        client_name: str,
        timeout: float,
        *,
        renew: float = _RENEW_SECONDS,
    ) -> None:
        """All connections have the name. `timeout`, in seconds, applies to connecting, and to sending a pipeline and
        receiving all of its replies. Another connection is opened every `renew` seconds.
        """
        self.host, self._port = (where.host, where.port) if isinstance(where, Address) else ("", 0)
        """Its host, unless a Sentinel names it."""
        self._where = where
        self._epoch = epoch
        self._client_name = client_name.encode()
        self._timeout = timeout
        self._renew = renew
        self._replication_id = b""
        """That of the connection that was opened last."""
        self._counted_id = b""
        """That of the last pipeline."""
        self._opened_at = -inf
        self._all: set[_Opened] = set()
        self._idle: list[_Opened] = []

    async def send(
        self, packed: Sequence[bytes], replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        """Returns the replies in order; each may be an ErrorReply. Raises Unavailable, also if `replication_epoch` is
        no longer the current one, or if the fence refuses the connection.
        """
        if not packed:
            return []
        with as_unavailable():
            opened = await self._take()
            if self._counted_id != opened.replication_id:
                self._counted_id = opened.replication_id
                self._epoch.number += 1
            return await self._exchange(opened, packed, replication_epoch, fence)

    async def ask(self, *words: Any) -> Any:
        """Returns the reply to a single command about the server. No session depends on it, so it does not count a new
        replication id. Raises Unavailable.
        """
        with as_unavailable():
            return good(await self._exchange(await self._take(), [pack(words)]))[0]

    def close(self) -> None:
        """Close all connections. Calls that use one fail."""
        for opened in list(self._all):
            self._drop(opened, "the connection was closed meanwhile")
        self._idle.clear()

    async def _exchange(
        self,
        opened: _Opened,
        packed: Sequence[bytes],
        replication_epoch: int | None = None,
        fence: Fence | None = None,
    ) -> list[Any]:
        try:
            await self._epoch.check(opened.number, replication_epoch, fence)
            replies = await opened.connection.pipeline(packed)
        except BaseException:
            self._drop(opened, "a pipeline was given up")
            raise
        for reply in replies:
            if isinstance(reply, errors.ReadOnly):  # the server was demoted: this connection must not be used again
                self._drop(opened, str(reply))
                raise reply
        self._idle.append(opened)
        return replies

    def __repr__(self) -> str:
        return f"{self.host}:{self._port}"

    async def _take(self) -> _Opened:
        while self._idle:
            opened = self._idle.pop()
            if opened.connection.closed or opened.replication_id != self._replication_id:
                self._drop(opened, "Redis has restarted or failed over")
            elif time.monotonic() - self._opened_at < self._renew:
                return opened
            else:
                return await self._renewed(opened)
        return await self._open()

    async def _renewed(self, former: _Opened) -> _Opened:
        """Returns another connection in place of this one; this one if no other one can be opened."""
        try:
            opened = await self._open()
        except (errors.Unavailable, Unavailable):
            self._opened_at = time.monotonic()
            return former
        except BaseException:
            self._drop(former, "it was given up while another one was opened")
            raise
        self._drop(former, "another connection has taken its place")
        return opened

    async def _open(self) -> _Opened:
        connection, replication_id = await connect(
            await self._where.find(), self._prove, within=self._timeout, max_in_flight=1
        )
        self._opened_at = time.monotonic()
        self._epoch.opened += 1
        self._replication_id = replication_id
        opened = _Opened(connection, self._epoch.opened, replication_id)
        self._all.add(opened)
        return opened

    def _drop(self, opened: _Opened, reason: str) -> None:
        self._all.discard(opened)
        opened.connection.close(reason)

    async def _prove(self, connection: Connection) -> bytes:
        """Sets the name of the connection, and returns the replication id of its server."""
        await connection.call((b"CLIENT", b"SETNAME", self._client_name))
        return fields(await connection.call_packed(_INFO))["master_replid"].encode()


@contextmanager
def as_unavailable() -> Iterator[None]:
    """Raise every error of the client as the projector's Unavailable; as Denied if this user lacks a right."""
    try:
        yield
    except errors.Unavailable as error:
        raise _ours(error) from error


def good(replies: list[Any]) -> list[Any]:
    """Returns the replies. Raises Unavailable if there is an error among them; Denied if this user lacks a right."""
    for reply in replies:
        if isinstance(reply, errors.ErrorReply):
            raise _ours(reply) from reply
    return replies


def _ours(error: errors.Unavailable) -> Unavailable:
    return (Denied if isinstance(error, errors.NotPermitted) else Unavailable)(RedisReason("redis_failed", str(error)))


def fields(info: bytes) -> dict[str, str]:
    """Returns the fields of a reply to INFO."""
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
