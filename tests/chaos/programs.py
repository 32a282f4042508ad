"""Programs that faults run, each in a process of its own (`python -m tests.chaos.programs <name> …`).

`greedy <key> <path> <connections> <manner> <port> …` asks as fast as it can, until it dies. `free`: every request names
the version that it has, and costs nothing (304). `paid`: each is charged or refused (429).

`stopping UNLINK 2 drop` is an operator's command that stands still before its second UNLINK. So it can be hit between
any two requests to Redis, whatever the speed of the machine. SIGCONT lets it continue. With `ANY` as name, each request
counts; of those that are sent together, the first one.
"""

import asyncio
import os
import runpy
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from runtime.redis.connection import Connection

FREE, PAID = "free", "paid"
ANY = "ANY"


async def greedy(key: str, path: str, connections: str, manner: str, *ports: str) -> None:
    condition = "If-None-Match: *\r\n" if manner == FREE else ""
    request = f"GET {path} HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer {key}\r\n{condition}\r\n".encode()
    async with asyncio.TaskGroup() as group:
        for number in range(int(connections)):
            group.create_task(_ask_forever(int(ports[number % len(ports)]), request))


async def _ask_forever(port: int, request: bytes) -> None:
    while True:
        with suppress(OSError, EOFError, asyncio.LimitOverrunError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                while True:
                    writer.write(request)
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    _, _, length = head.partition(b"content-length: ")
                    if length and not head.startswith(b"http/1.1 304"):
                        await reader.readexactly(int(length.split(b"\r")[0]))
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.05)


def stopping(name: str, number: str, *words: str) -> None:
    seen = 0

    def look(data: bytes) -> None:
        nonlocal seen
        if data[:1] == b"*" and name in (ANY, data.split(b"\r\n", 3)[2].decode()):  # Kafka's begin with their length
            seen += 1
            if seen == int(number):
                os.kill(os.getpid(), signal.SIGSTOP)

    made = Connection.connection_made
    Connection.connection_made = lambda self, transport: made(self, Looking(transport, look))  # type: ignore[method-assign, arg-type]
    sys.argv = ["projector", *words]
    runpy.run_module("projector", run_name="__main__", alter_sys=True)


class Looking:
    """A transport that shows what is about to be sent."""

    def __init__(self, transport: Any, look: Callable[[bytes], None]) -> None:
        self._transport = transport
        self._look = look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._look(data)
        self._transport.write(data)


if __name__ == "__main__":
    if sys.argv[1] == "greedy":
        asyncio.run(greedy(*sys.argv[2:]))
    else:
        stopping(*sys.argv[2:])
