"""Whether this Python was built with optimizations (profile-guided), as the ones that users run are.

`python bench/interpreter.py` prints the path of its interpreter if that is so and if it can create environments, and
otherwise says why not: the Makefile chooses with it. It runs before anything is installed.
"""

import sys
import sysconfig
from importlib.util import find_spec

_OLDEST = (3, 11)


def is_optimized() -> bool:
    """Returns whether it was. Distributions do so, but Debian hides it from `sysconfig`: the prefix is left."""
    arguments = _arguments()
    return "--with-pydebug" not in arguments and ("--enable-optimizations" in arguments or "--prefix=/usr" in arguments)


def flags() -> str:
    """The flags of `configure` that say how the interpreter was built, without any path."""
    return " ".join(each for each in _arguments() if each.startswith(("--enable-", "--with-")) and "/" not in each)


def why_not() -> str | None:
    """Returns why benchmarks cannot run on this interpreter; None if they can."""
    version = sys.version.split()[0]
    if sys.version_info < _OLDEST:
        return f"Python {version} is too old: 3.11 or newer is needed"
    if not is_optimized():
        return f"Python {version} ({sys.executable}) was built without --enable-optimizations"
    if not (find_spec("venv") and find_spec("ensurepip")):
        return f"Python {version} ({sys.executable}) has no venv or no ensurepip (on Debian: python3-venv)"
    return None


def _arguments() -> list[str]:
    return [each.strip("'") for each in (sysconfig.get_config_var("CONFIG_ARGS") or "").split()]


if __name__ == "__main__":
    reason = why_not()
    print(sys.executable if reason is None else reason, file=sys.stdout if reason is None else sys.stderr)
    sys.exit(reason is not None)
