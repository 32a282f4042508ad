"""A TCP proxy that misbehaves as it is told: what a network, a load balancer or a dying server does to a connection.

Faults apply to what goes from the server to the client, unless they say otherwise. They may be changed at any time,
from any thread, and apply from the next bytes on.
"""

import asyncio
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ssl import SSLContext
from typing import Literal

from msgspec import Struct

from devstack.threads import loop_in_thread
from devstack.waiting import PATIENCE_SECONDS

_AT_ONCE = 65536
_LONGEST_HELD = 200
_NO_LINGER = struct.pack("ii", 1, 0)


class Faults(Struct, frozen=True):
    """What to do to each connection; by default nothing."""

    slice_bytes: int = _AT_ONCE
    """The number of bytes of each write."""
    delay_seconds: float = 0.0
    """The pause before each write."""
    both_ways: bool = False
    """Whether slices and delays apply to requests as well."""
    end_after: int | None = None
    """End a connection after this number of bytes to its client."""
    end: Literal["reset", "close"] = "reset"
    stalled: bool = False
    """Nothing goes through in either direction, and nothing is closed. New connections are accepted."""
    refusing: bool = False
    """New connections are reset at once."""
    held: bytes | re.Pattern[bytes] | None = None
    """The proxy holds back a request that contains these bytes, and all that its connection sends after it."""


class FaultyProxy:
    """Forwards what arrives at `port`. Created by `faulty_proxy`."""

    def __init__(self, server_port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.server_port = server_port
        """The port that new connections are forwarded to."""
        self.faults = Faults()
        self.accepted = 0
        """How many connections there were; each has its number, from 1."""
        self.forgotten: set[int] = set()
        """The numbers of connections over which nothing goes any more, and which are not closed: NAT forgot them."""
        self.holding = 0
        """The number of connections whose request is held back now."""
        self.port = 0
        self._loop = loop
        self._writers: set[asyncio.StreamWriter] = set()
        self._upward: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Returns the address of the proxy as that of a Redis."""
        return f"redis://127.0.0.1:{self.port}/0"

    def reset_all(self) -> None:
        """Reset every connection, on the client's side and on the server's."""
        asyncio.run_coroutine_threadsafe(self._reset_all(), self._loop).result(PATIENCE_SECONDS)

    def half_close(self) -> None:
        """Tell each server that its client sends nothing more; the other direction stays open."""
        asyncio.run_coroutine_threadsafe(self._half_close(), self._loop).result(PATIENCE_SECONDS)

    def switch(self, server_port: int) -> None:
        """Reset all connections, and forward new ones to another server, as after a failover that moves an address."""
        self.server_port = server_port
        self.reset_all()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one client's connection until it ends."""
        self.accepted += 1
        number = self.accepted
        if self.faults.refusing:
            _reset(writer)
            return
        self._writers.add(writer)  # it may be reset from now on, also before there is a connection to the server
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        except OSError:
            self._writers.discard(writer)
            _reset(writer)
            return
        self._writers.add(up_writer)
        self._upward.add(up_writer)
        requests = asyncio.create_task(self._pass_requests(reader, up_writer, number))
        try:
            with suppress(OSError):
                await self._pass_replies(up_reader, writer, number)
        finally:
            requests.cancel()
            self._writers -= {writer, up_writer}
            self._upward.discard(up_writer)
            up_writer.transport.abort()
            writer.transport.abort()

    async def end(self) -> None:
        """Reset every connection, and wait until all of them have ended."""
        self.faults = Faults()
        self.forgotten = set()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await self._reset_all()
            await asyncio.wait(others, timeout=0.02)

    async def _pass_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        tail = b""  # of the previous piece: the bytes to hold may be spread over two pieces
        with suppress(OSError, RuntimeError):  # the latter if it was half closed
            while piece := await reader.read(_AT_ONCE):
                await self._while_stalled(number)
                await self._while_held(tail + piece, len(tail))
                tail = (tail + piece)[-_LONGEST_HELD:]
                await self._pass(writer, piece)
        writer.transport.abort()  # the client is gone, so the server's side ends as well

    async def _pass_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        sent = 0
        while piece := await reader.read(_AT_ONCE):
            while piece:
                await self._while_stalled(number)
                faults = self.faults
                await asyncio.sleep(faults.delay_seconds)
                size = faults.slice_bytes
                if faults.end_after is not None:
                    size = min(size, faults.end_after - sent)
                if size <= 0:
                    if faults.end == "reset":
                        _reset(writer)
                    return
                writer.write(piece[:size])
                await writer.drain()
                sent, piece = sent + len(piece[:size]), piece[size:]

    async def _pass(self, writer: asyncio.StreamWriter, request: bytes) -> None:
        while request:
            faults = self.faults if self.faults.both_ways else Faults()
            await asyncio.sleep(faults.delay_seconds)
            writer.write(request[: faults.slice_bytes])
            await writer.drain()
            request = request[faults.slice_bytes :]

    async def _while_stalled(self, number: int) -> None:
        while self.faults.stalled or number in self.forgotten:  # noqa: ASYNC110 - set from other threads
            await asyncio.sleep(0.005)

    async def _while_held(self, requests: bytes, passed: int) -> None:
        if not self._holds(requests, passed):
            return
        self.holding += 1
        try:
            while self._holds(requests, passed):  # noqa: ASYNC110 - set from other threads
                await asyncio.sleep(0.005)
        finally:
            self.holding -= 1

    def _holds(self, requests: bytes, passed: int) -> bool:
        """Returns whether what is held back is in the requests, not only in the bytes that were passed on already."""
        held = self.faults.held
        if held is None:
            return False
        pattern = held if isinstance(held, re.Pattern) else re.escape(held)
        return any(found.end() > passed for found in re.finditer(pattern, requests))

    async def _reset_all(self) -> None:
        for writer in self._writers:
            _reset(writer)

    async def _half_close(self) -> None:
        for writer in self._upward:
            with suppress(OSError):
                writer.write_eof()


@contextmanager
def faulty_proxy(server_port: int, tls: SSLContext | None = None) -> Iterator[FaultyProxy]:
    """Run a proxy to this port of 127.0.0.1, in a separate thread, until the block ends. With `tls`, its clients need
    TLS, and the server gets what is inside.
    """
    with loop_in_thread("faulty-proxy") as loop:
        proxy = FaultyProxy(server_port, loop)
        listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(proxy.handle, "127.0.0.1", 0, ssl=tls), loop)
        server = listening.result(PATIENCE_SECONDS)
        proxy.port = server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            loop.call_soon_threadsafe(server.close)
            asyncio.run_coroutine_threadsafe(proxy.end(), loop).result(PATIENCE_SECONDS)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()
