"""A cluster of any number of masters, simulated with one Redis: it has all slots, and each master is a port that leads
to it.

Only the reply to CLUSTER SLOTS is another one, and names these ports. So the commands that programs send can be counted
without as many servers.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from socket import create_server, socket

from devstack.ports import LOOPBACK
from devstack.threads import loop_in_thread
from devstack.waiting import PATIENCE_SECONDS
from schemas.names import SLOTS

_ASKS_FOR_SLOTS = b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n"
_AT_ONCE = 65536


class Masters:
    """The masters of a simulated cluster. Created by `masters`."""

    def __init__(self, server_port: int, sockets: list[socket]) -> None:
        self.answered = 0
        """How often the slot map was read."""
        self._server_port = server_port
        self._ports: list[int] = [each.getsockname()[1] for each in sockets]
        borders = [number * SLOTS // len(sockets) for number in range(len(sockets) + 1)]
        self._slots = b"*%d\r\n" % len(sockets) + b"".join(
            b"*3\r\n:%d\r\n:%d\r\n*3\r\n$%d\r\n%s\r\n:%d\r\n$40\r\n%040x\r\n"
            % (first, end - 1, len(LOOPBACK), LOOPBACK.encode(), port, port)
            for port, (first, end) in zip(self._ports, pairwise(borders), strict=True)
        )

    @property
    def url(self) -> str:
        """Returns the address of the cluster."""
        return f"redis+cluster://{LOOPBACK}:{self._ports[0]}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one client's connection until it ends."""
        above, below = await asyncio.open_connection(LOOPBACK, self._server_port)
        replies = asyncio.create_task(_pass(above, writer))
        with suppress(OSError):
            while request := await reader.read(_AT_ONCE):
                if request.upper() == _ASKS_FOR_SLOTS:  # programs send it alone
                    self.answered += 1
                    writer.write(self._slots)
                else:
                    below.write(request)
        below.transport.abort()
        await replies


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while reply := await reader.read(_AT_ONCE):
            writer.write(reply)
    writer.transport.abort()


@contextmanager
def masters(server_port: int, count: int) -> Iterator[Masters]:
    """Run `count` masters in a separate thread until the block ends. The server is a cluster that has all slots."""
    with ExitStack() as stack, loop_in_thread("masters") as loop:
        sockets = [stack.enter_context(create_server((LOOPBACK, 0))) for _ in range(count)]
        simulated = Masters(server_port, sockets)

        async def listen() -> None:
            for each in sockets:
                await asyncio.start_server(simulated.handle, sock=each)

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        try:
            asyncio.run_coroutine_threadsafe(listen(), loop).result(PATIENCE_SECONDS)
            yield simulated
        finally:
            asyncio.run_coroutine_threadsafe(end(), loop).result(PATIENCE_SECONDS)
