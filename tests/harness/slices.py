"""`python -m tests.harness.slices <words>`: the projector, which prints at its end how long its event loop was held.

Not by the clock on the wall, but by the time of the thread: what else the machine does changes nothing. The same thread
reads a plain record of the same size at the end, so that the speed of the machine changes nothing either.
"""

import asyncio
import sys
import time

import uvloop

from projector.__main__ import main
from tests.harness.worst_inputs import OF_RECORDS, PLAIN, Worst, seconds

longest = 0.0
_run = asyncio.Handle._run


def _timed(handle: asyncio.Handle) -> None:
    """Run a callback, which nothing else in the event loop interrupts."""
    global longest  # noqa: PLW0603 - one event loop, one number
    started = time.thread_time()
    _run(handle)
    longest = max(longest, time.thread_time() - started)


if __name__ == "__main__":
    # uvloop's callbacks cannot be timed. What runs in them is the same.
    uvloop.run = asyncio.run  # type: ignore[assignment]
    asyncio.Handle._run = _timed  # type: ignore[assignment, method-assign]
    result = main()
    plain = Worst("plain", lambda _: PLAIN, OF_RECORDS[0].run)
    sys.stdout.write(
        f"longest slice {longest:.4f} s, plain record {min(seconds(plain, PLAIN) for _ in range(5)):.4f} s\n"
    )
    sys.exit(result)
