"""`python -m devstack`, which is `make run`."""

import sys
import time

from devstack.interrupt import ended_by_signals


def main() -> int:
    """Returns the exit status: 0 after Ctrl-C or SIGTERM, 1 after a failure, 2 for invalid arguments or settings."""
    started, status = time.monotonic(), 0
    with ended_by_signals():
        # The imports take a moment. Ctrl-C must work during that time, and it counts as part of the start.
        from devstack.run import run  # noqa: PLC0415

        status = run(started)
    return status  # noqa: RET504 - if a signal ended `run`, it returned nothing


if __name__ == "__main__":
    sys.exit(main())
