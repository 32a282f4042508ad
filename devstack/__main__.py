"""`python -m devstack`, which is `make run`."""

import sys
import time

from devstack.interrupt import ended_by_signals


def main() -> int:
    """The exit status: 0 after Ctrl-C or SIGTERM, 1 where something broke, 2 where it was called wrongly."""
    started, status = time.monotonic(), 0
    with ended_by_signals():
        # Importing all that is needed takes a while in which Ctrl-C may come, and counts as a part of the start.
        from devstack.run import run  # noqa: PLC0415

        status = run(started)
    return status  # noqa: RET504 - where a signal ended it, `run` returned nothing


if __name__ == "__main__":
    sys.exit(main())
