"""`python -m tests.chaos.greedy <key> <path> <connections> <manner> <port> …`: asks as fast as it can, until it dies.

`free`: every request names the version that it has, and costs nothing (304). `paid`: each is charged or refused (429).
"""

import asyncio
import sys
from contextlib import suppress

FREE, PAID = "free", "paid"


async def main() -> None:
    key, path, connections, manner, *ports = sys.argv[1:]
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


if __name__ == "__main__":
    asyncio.run(main())
