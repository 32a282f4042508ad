"""`python -m tests.model`: TLC checks every configuration in `docs/model`, and prints how many states it has."""

import os
import sys

from tests.model import tlc

HOLES = (
    ("drops", "fence", "NothingLeft"),
    ("drops", "reconnect", "NothingLeft"),
    ("failover", "bring-back", "NothingLeft"),
    ("rebuild", "target", "NoStepBack"),
)
"""A configuration, a rule, and what TLC finds violated without it. `test_model.py` has those that take seconds."""


def main() -> int:
    """Returns 1 if a configuration has an error, or if a hole is not found."""
    failed = False
    for name, rule, violated in HOLES:
        found = tlc.check(tlc.MODELS / f"{name}.cfg", workers=len(os.sched_getaffinity(0)), off=[rule])
        print(
            f"{name:<20} {found.states:>12,} states {found.seconds:>8.1f} s  without {rule}: {found.violated}",
            flush=True,
        )
        failed |= found.violated != violated
    for configuration in sorted(tlc.MODELS.glob("*.cfg")):
        found = tlc.check(configuration, workers=len(os.sched_getaffinity(0)))
        what = "no error" if found.violated is None else f"VIOLATED: {found.violated}"
        print(f"{configuration.stem:<20} {found.states:>12,} states {found.seconds:>8.1f} s  {what}", flush=True)
        if found.violated:
            print(found.output)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
