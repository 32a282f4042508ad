"""A fault proxy for TCP between a client and a server. Its mood can be changed at any time.

It runs in a thread with an event loop of its own, so that synchronous tests can use it.
"""

import asyncio
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self

from msgspec import Struct

from tests.harness.waiting import PATIENCE_SECONDS

_CHUNK = 65536
_STALL_POLL_SECONDS = 0.02
_BROKEN = (OSError, EOFError)


class Mood(Struct, frozen=True):
    """How bytes are passed on, in both directions.

    `latency`: delay in seconds. `slice`: size of a piece in bytes; each piece waits for a turn of the event loop.
    `stalled`: nothing is passed on, and connections stay open. `refusing`: new connections are reset at once.
    """

    latency: float = 0.0
    slice: int = 0
    stalled: bool = False
    refusing: bool = False


CALM = Mood()


class FaultProxy:
    """Listens on `port` and connects to `upstream`, a port of this machine, which may be changed. A context manager."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.mood = CALM
        self.port = 0
        self._writers: set[StreamWriter] = set()
        self._upward: set[StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._wait(self._listen())
        return self

    def __exit__(self, *_exception: object) -> None:
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """Returns the address of the proxy as that of a Redis."""
        return f"redis://127.0.0.1:{self.port}/0"

    def reset(self) -> None:
        """Break all connections with RST."""
        self._wait(self._reset())

    def half_close(self) -> None:
        """Tell each server that its client sends nothing more; the other direction stays open."""
        self._wait(self._half_close())

    def switch(self, upstream: int) -> None:
        """Forward new connections to another server, as after a failover that moves an address."""
        self.upstream = upstream
        self.reset()

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_SECONDS)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        return int(self._server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        self._server.close()
        self.mood = CALM
        await self._reset()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE_SECONDS)

    async def _reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _half_close(self) -> None:
        for writer in self._upward:
            with suppress(OSError):
                writer.write_eof()

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:  # always
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            if not self.mood.refusing:
                await self._serve(reader, writer)
        except _BROKEN:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        self._writers.add(up_writer)
        self._upward.add(up_writer)
        try:
            pumps = [
                asyncio.ensure_future(self._pump(reader, up_writer)),
                asyncio.ensure_future(self._pump(up_reader, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._writers.discard(up_writer)
            self._upward.discard(up_writer)
            up_writer.transport.abort()

    async def _pump(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(*_BROKEN):
            while piece := await reader.read(_CHUNK):
                while self.mood.stalled:  # noqa: ASYNC110 - the mood is set in another thread
                    await asyncio.sleep(_STALL_POLL_SECONDS)
                if self.mood.latency:
                    await asyncio.sleep(self.mood.latency)
                await self._send(writer, piece)

    async def _send(self, writer: StreamWriter, piece: bytes) -> None:
        step = self.mood.slice or len(piece)
        for start in range(0, len(piece), step):
            writer.write(piece[start : start + step])
            await writer.drain()
            await asyncio.sleep(0)
