"""`python -m tests.harness.impatient`: the projector's program, which says within seconds that it does not advance.

For tests of what it says, and not of when.
"""

import sys

from projector.line import health
from projector.operate import problems

PROGRAM = (sys.executable, "-m", "tests.harness.impatient")
_SECONDS = 2.0

if __name__ == "__main__":
    health._QUIET_SECONDS = _SECONDS
    problems.UNKNOWN_SECONDS = _SECONDS
    problems.STUCK_SECONDS = _SECONDS
    problems.STUCK_PARTITION_SECONDS = _SECONDS
    from projector.__main__ import main

    sys.exit(main())
