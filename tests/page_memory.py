"""`make page-memory`: keeps the console's page open on `make run` for as long as you choose, and prints what it holds.

`make browser` shows with an hour that is compressed that the page does not grow. This shows it in real time. It ends
with 1 if the page held more at the end than when its window of 15 minutes was full.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator

from projector.console.feed import HISTORY_SECONDS
from tests.harness.chromium import Held, Page, page_and_output

MOST_GROWTH = 1_000_000
"""Bytes of heap: what Chromium compiles and caches in the meantime, for the whole run."""
_EVERY_SECONDS = 60.0


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make page-memory", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long the page is open (default: an hour)")
    seconds = parser.parse_args().seconds
    with page_and_output() as (page, printed):
        console = re.search(r"^  console +(\S+)$", printed, re.MULTILINE)
        assert console, printed
        page.open(console[1])
        page.wait_for("#connection", "live")
        return _judge(list(_watch(page, seconds)))


def _watch(page: Page, seconds: float) -> Iterator[tuple[float, Held]]:
    began = time.monotonic()
    while True:
        elapsed, held = time.monotonic() - began, page.held()
        shown = page.text("#connection")
        _say(f"{elapsed:6.0f} s  heap {held.heap:,} bytes  nodes {held.nodes:,}  listeners {held.listeners}  {shown}")
        yield elapsed, held
        if elapsed >= seconds:
            return
        time.sleep(min(_EVERY_SECONDS, max(0.0, seconds - elapsed)))


def _judge(watched: list[tuple[float, Held]]) -> int:
    full = [held for elapsed, held in watched if elapsed >= HISTORY_SECONDS]
    if len(full) < 2:
        _say(f"The page was open for less than {HISTORY_SECONDS} s, so its window was not full: this proves nothing.")
        return 0
    growth = full[-1].heap - min(held.heap for held in full[:5])
    _say(
        f"growth of the heap since the window was full: {growth:,} bytes; nodes {full[0].nodes:,} to {full[-1].nodes:,}"
    )
    return 1 if growth > MOST_GROWTH else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ.pop("LEADVIEW_API_PORT", None)
    sys.exit(main())
