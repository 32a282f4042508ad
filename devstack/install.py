"""Installs the requirements of a file into an environment: `python -I install.py .venv requirements-run.txt STAMP`.

The Makefile calls it with the Python that the environment is made of, before anything is installed, so it imports
nothing of ours. `STAMP` is touched at the end.

`.venv.lock` is locked by the process that installs. It is empty unless an installation was broken off (the disk was
full, the machine was switched off): then the next one makes the environment again.
"""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO

_PIP = ("-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--requirement")
_UNREACHABLE = (
    "(from versions: none)",
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "ProxyError",
)
"""What pip says if it cannot reach the package index. Its other words do not help then."""
_FULL = "No space left on device"
_ROOM_BYTES = 10_000_000


class InstallationFailed(Exception):
    """Something could not be installed. The message says why and what to do."""


def main(environment: Path, requirements: Path, stamp: Path) -> int:
    """Returns the exit status: 1 if the installation failed."""
    try:
        path = environment.resolve().with_name(f"{environment.name}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as lock:
            _wait_for(lock)
            if not _is_done(requirements, stamp):
                _install(environment, requirements, lock)
                stamp.touch()
    except (InstallationFailed, OSError) as error:
        print(f"{environment} could not be made: {error}", file=sys.stderr)
        return 1
    return 0


def _wait_for(lock: IO[str]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another make installs here, and this one waits for it.", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _is_done(requirements: Path, stamp: Path) -> bool:
    """Returns whether another process has installed the same meanwhile."""
    return stamp.exists() and stamp.stat().st_mtime >= requirements.stat().st_mtime


def _install(environment: Path, requirements: Path, lock: IO[str]) -> None:
    print(f"Installing what Leadview needs into {environment}. This takes a minute or two, once.", flush=True)
    python = environment / "bin" / "python"
    was_broken_off = lock.seek(0, 2) > 0
    lock.write("unfinished\n")
    lock.flush()
    if was_broken_off or not _is_usable(python):
        _run(environment, sys.executable, "-I", "-m", "venv", "--clear", str(environment))
    _run(environment, str(python), *_PIP, str(requirements))
    lock.truncate(0)


def _is_usable(python: Path) -> bool:
    """Returns whether this is the Python of an environment that has pip, and new enough."""
    ask = "import pip, sys; sys.exit(sys.version_info < (3, 11))"
    return python.exists() and subprocess.call([python, "-I", "-c", ask], stderr=subprocess.DEVNULL) == 0


def _run(environment: Path, *command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode == 0:
        return
    # `venv` does not say that the disk is full, so the disk is asked, too.
    if _FULL in done.stdout or not _has_room(environment):
        raise InstallationFailed("the disk is full. Make room (about 500 MB), and run the same command again.")
    if any(words in done.stdout for words in _UNREACHABLE):
        raise InstallationFailed("pip reaches no package index. Connect to a network, and run the same command again.")
    raise InstallationFailed(f"`{' '.join(command)}` ended with status {done.returncode}:\n{done.stdout.strip()}")


def _has_room(environment: Path) -> bool:
    return shutil.disk_usage(environment).free > _ROOM_BYTES


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
