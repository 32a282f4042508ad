"""`python -m tests.chaos.stopping UNLINK 2 drop`: an operator's command that stands still before its second UNLINK.

So it can be hit between any two requests to Redis, whatever the speed of the machine. SIGCONT lets it continue. With
`ANY` as name, each request counts; of those that are sent together, the first one.
"""

import asyncio
import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any

from leadview.redis.connection import Connection

ANY = "ANY"


def main() -> None:
    name, number = sys.argv[1], int(sys.argv[2])
    seen = 0

    def look(data: bytes) -> None:
        nonlocal seen
        if data[:1] == b"*" and name in (ANY, data.split(b"\r\n", 3)[2].decode()):  # Kafka's begin with their length
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGSTOP)

    made = Connection.connection_made
    Connection.connection_made = lambda self, transport: made(self, Looking(transport, look))  # type: ignore[method-assign]
    sys.argv = ["projector", *sys.argv[3:]]
    runpy.run_module("projector", run_name="__main__", alter_sys=True)


class Looking(asyncio.Transport):
    """A transport that shows what is about to be sent."""

    def __init__(self, transport: Any, look: Callable[[bytes], None]) -> None:
        self._transport = transport
        self._look = look
        for name in ("abort", "close", "get_extra_info", "is_closing"):
            setattr(self, name, getattr(transport, name))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._look(bytes(data))
        self._transport.write(data)


if __name__ == "__main__":
    main()
