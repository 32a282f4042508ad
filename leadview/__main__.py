"""`python -m leadview`: the same as the command `leadview`, also where it is not installed."""

import sys

from leadview.command import main

if __name__ == "__main__":
    sys.exit(main())
