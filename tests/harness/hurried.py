"""`python -m tests.harness.hurried`: the projector's program, which looks several times as often as the usual one.

For tests of what happens, and not of when. What it does and says is the same.
"""

import sys

from projector.ledger import writers
from projector.operate import watch
from projector.rebuild import replay
from projector.upkeep import dead_letters, jobs, keeper

PROGRAM = (sys.executable, "-m", "tests.harness.hurried")

if __name__ == "__main__":
    writers.BEAT_SECONDS = jobs._PAUSE_SECONDS = keeper._PAUSE_SECONDS = replay._SETTLE_SECONDS = 0.25
    replay._CHECK_SECONDS = 0.05
    watch._EVERY_SECONDS = 0.5
    dead_letters._LOOK_SECONDS = 1.0
    from projector.__main__ import main

    sys.exit(main())
