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

    _before("write", look, bytes)
    _before("writelines", look, b"".join)
    sys.argv = ["projector", *sys.argv[3:]]
    runpy.run_module("projector", run_name="__main__", alter_sys=True)


def _before(method: str, look: Callable[[bytes], None], joined: Callable[[Any], bytes]) -> None:
    """Let `look` see what a method of a stream is about to send."""
    real = getattr(asyncio.StreamWriter, method)

    def write(writer: asyncio.StreamWriter, pieces: Any) -> None:
        data = joined(pieces)
        look(data)
        real(writer, data if method == "write" else [data])

    setattr(asyncio.StreamWriter, method, write)


if __name__ == "__main__":
    main()
