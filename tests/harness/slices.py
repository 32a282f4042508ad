"""`python -m tests.harness.slices <words>`: the projector, which prints at its end how long its event loop was held,
and how often Kafka gave partitions to its lines.

Not by the clock on the wall, but by the time of the thread: what else the machine does changes nothing. The same thread
reads a plain record of the same size at the end, so that the speed of the machine changes nothing either. Caches that
another program has emptied do: so a slice counts only if `TIMES` have taken as long. If each input is given as often,
an input that takes long is found.
"""

import asyncio
import heapq
import sys
import time
from typing import Any

import uvloop

from projector.__main__ import main
from projector.kafka.reader import Source
from tests.harness.worst_inputs import OF_RECORDS, PLAIN, Worst, seconds

TIMES = 4

longest = [(0.0, "")] * TIMES
"""The slices that took the longest, in seconds, and the task of each."""
assignments = 0
_run = asyncio.Handle._run
_on_partitions_assigned = Source.on_partitions_assigned


def _timed(handle: asyncio.Handle) -> None:
    """Run a callback, which nothing else in the event loop interrupts."""
    task = getattr(handle._callback, "__self__", handle)  # type: ignore[attr-defined]
    started = time.thread_time()
    _run(handle)
    if (took := time.thread_time() - started) > longest[0][0]:
        heapq.heapreplace(longest, (took, repr(task)))


async def _counted(self: Source, assigned: Any) -> None:
    global assignments  # noqa: PLW0603 - likewise
    assignments += bool(assigned)
    await _on_partitions_assigned(self, assigned)


if __name__ == "__main__":
    # uvloop's callbacks cannot be timed. What runs in them is the same.
    uvloop.run = asyncio.run  # type: ignore[assignment]
    asyncio.Handle._run = _timed  # type: ignore[assignment, method-assign]
    Source.on_partitions_assigned = _counted  # type: ignore[method-assign]
    result = main()
    plain = Worst("plain", lambda _: PLAIN, OF_RECORDS[0].run)
    took, what = longest[0]
    sys.stdout.write(
        f"longest slice {took:.4f} s, plain record {min(seconds(plain, PLAIN) for _ in range(5)):.4f} s, "
        f"{assignments} assignments, "
        f"the longest was {what}\n"
    )
    sys.exit(result)
