"""`make screenshots`: writes the pictures of README.md and docs/runbook.md, of `make run` in Chromium.

The page is shown in two widths and schemes.
"""

import os
import re
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from devstack.programs import ROOT, ask
from tests.harness.chromium import Page, open_page
from tests.harness.console import find
from tests.harness.make_run import running

IMAGES = ROOT / "docs" / "images"
_WORK_SECONDS = 40.0
_WIDE, _NARROW = 1200, 400


def main() -> int:
    """Returns the exit code."""
    IMAGES.mkdir(exist_ok=True)
    with TemporaryDirectory() as name, running(Path(name), "--no-live", "--port", "0", "--rate", "20") as run:
        run.wait_until_ready()
        with open_page(Path(name)) as page:
            _take(page, run.output)
        run.end(signal.SIGINT)
    return 0


def _take(page: Page, printed: str) -> None:
    found = dict(re.findall(r"^  (console|base URL|API key|of organization) +(\S+)$", printed, re.MULTILINE))
    lead = re.search(r"leads/(\S+)", printed)
    assert lead
    page.size(_WIDE)
    page.open(found["console"])
    page.wait_for("#connection", "live")
    _work(found["base URL"], found["API key"], lead[1])
    find(page, f"{found['of organization']}:{lead[1]}", "Readers see", "contact")
    page.screenshot(IMAGES / "console-way.webp", until="#lines")
    for width in (_WIDE, _NARROW):
        for dark in (False, True):
            page.size(width, dark=dark)
            time.sleep(2)
            page.screenshot(
                IMAGES / f"console-{'wide' if width == _WIDE else 'narrow'}-{'dark' if dark else 'light'}.webp"
            )


def _work(url: str, key: str, lead: str) -> None:
    """Read documents for a while, so that the lines have a shape; some of it with a wrong key."""
    host, port = url.removeprefix("http://").split(":")
    until = time.monotonic() + _WORK_SECONDS
    for number in range(100_000):
        ask(host, int(port), f"/api/v1/ext/leads/{lead}", key if number % 9 else f"{key[:-1]}x")
        time.sleep(0.15)
        if time.monotonic() > until:
            return


if __name__ == "__main__":
    os.environ.pop("LEADVIEW_API_PORT", None)
    sys.exit(main())
