"""`python -m tests.model`: TLC checks every configuration in `docs/model`, and prints how many states it has."""

import os
import sys

from tests.model import tlc

HOLES = (
    ("all-emptied", "leftovers", "NothingLeft"),
    ("all-emptied", "lineage", "NothingLeft"),
    ("all-emptied", "new-lineage", "NothingLeft"),
    ("all-emptied", "own", "NothingLeft"),
    ("drops", "fence", "NothingLeft"),
    ("drops", "reconnect", "NothingLeft"),
    ("emptied", "ends", "NoStepBack"),
    ("emptied", "live", "OneRecord"),
    ("emptied", "pointer", "NoStepBack"),
    ("failover", "bring-back", "NothingLeft"),
    ("failover", "history", "Covered"),
    ("failover", "reconnect-all", "NothingLeft"),
    ("failover", "sweep-history", "Covered NothingLeft"),
    ("operators", "compare", "NeverUndone"),
    ("operators", "counts", "Covered NeverUndone"),
    ("operators", "exact", "NeverUndone"),
    ("operators", "operator-history", "NeverUndone"),
    ("rebuild", "target", "NoStepBack"),
    ("rebuild-emptied", "filling", "Complete"),
    ("rebuild-failover", "highest target", "Covered"),
    ("recovery-failover", "remake", "Recovers"),
    ("registry", "connections", "NothingLeft"),
)
"""A configuration, the rules that are switched off, and what TLC may find violated without them. `test_model.py` has
those that take seconds. Only for the rule `epoch` no configuration has a hole: every checkpoint ends with the home
copy, which compares the stamp as well, so the rule only saves work.
"""


def main() -> int:
    """Returns 1 if a configuration has an error, or if a hole is not found."""
    failed = False
    for name, rules, violated in HOLES:
        found = tlc.check(tlc.MODELS / f"{name}.cfg", workers=len(os.sched_getaffinity(0)), off=rules.split())
        print(
            f"{name:<20} {found.states:>12,} states {found.seconds:>8.1f} s  without {rules}: {found.violated}",
            flush=True,
        )
        failed |= found.violated not in violated.split()
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
