"""Programs that tests run until they end."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness.waiting import PATIENCE_SECONDS

_MOST_SECONDS = 15 * PATIENCE_SECONDS


def printed_by(
    command: Sequence[str | Path],
    *,
    status: int = 0,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program, and return its standard output. By default, its directory and its variables are those of this
    process. The test fails with all that it printed if it ends with another status.
    """
    ended = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False
    )
    assert ended.returncode == status, f"{command}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
    return ended.stdout
