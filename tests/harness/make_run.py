"""`make run` with sample data, and its console in Chromium."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.chromium import Page, open_page
from tests.harness.processes import ROOT
from tests.harness.waiting import wait_until


@contextmanager
def page_and_output() -> Iterator[tuple[Page, str]]:
    """Run it until the block ends. The block gets a page, which shows nothing yet, and what `make run` has printed."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        command = [sys.executable, "-m", "devstack", "--no-live", "--port", "0", "--rate", "20"]
        with output.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT) as process:
            try:
                wait_until(lambda: "/openapi.json" in output.read_text(), "`make run` is ready")
                with open_page(Path(folder)) as page:
                    yield page, output.read_text()
            finally:
                process.send_signal(signal.SIGINT)
