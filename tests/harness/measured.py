"""`python -m tests.harness.measured <words>`: the projector, which prints at its end how much memory it has had."""

import os
import sys
from pathlib import Path


def peak_memory(pid: int) -> int:
    """Returns the highest resident memory that a process has had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    from projector.__main__ import main

    result = main()
    sys.stdout.write(f"peak {peak_memory(os.getpid())}\n")
    sys.exit(result)
