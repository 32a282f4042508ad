"""`python -m projector`: the same as the command `leadview`, without `leadview api`."""

import sys
from importlib import import_module

if __name__ == "__main__":
    # By name, because operators call the projector, and the projector knows nothing of operators.
    sys.exit(import_module("operate.main").main())
