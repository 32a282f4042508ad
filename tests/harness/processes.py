"""Leadview's programs as processes: their command lines, their environment, and the API while a block runs."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from devstack.child import Child
from devstack.ports import free_port
from schemas.settings import ApiSettings, load
from tests.harness import control
from tests.harness.api_server import ApiServer
from tests.harness.waiting import wait_until

ROOT = Path(__file__).parents[2]
PROJECTOR = (sys.executable, "-m", "projector")
API = (sys.executable, "-m", "api")


def environment(**settings: object) -> dict[str, str]:
    """Returns all environment variables of a process: these settings, and no others of Leadview."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LEADVIEW_")}
    named = {f"LEADVIEW_{name.upper()}": str(value) for name, value in settings.items()}
    return inherited | {"PYTHONPATH": str(ROOT), "COLUMNS": "160"} | named


@contextmanager
def running_api_process(log: Path, **settings: object) -> Iterator[tuple[Child, ApiServer]]:
    """Run `python -m api` on a free port until the block ends. The block begins when it is ready."""
    api = ApiServer(free_port())
    control.complete_all(load(ApiSettings, environment(**settings)))
    child = Child(API, log=log, environment=environment(**settings, api_port=api.port))
    try:
        wait_until(while_running(child, api.is_ready), "the API is ready")
        yield child, api
    finally:
        child.stop()


def is_alive(pid: int) -> bool:
    """Returns whether a process runs. One that has ended may remain as a zombie: not every container has a program that
    waits for it.
    """
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int, words: str = "") -> set[int]:
    """Returns the process ids of the children that run, and of their children, if their command lines contain these
    words.
    """
    found = set()
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it may end meanwhile; ZombieProcess is such an error, too
            if words in " ".join(child.cmdline()):
                found.add(child.pid)
    return found


def while_running(child: Child, predicate: Callable[[], object]) -> Callable[[], object]:
    """Returns a predicate that raises ServerFailed if the child has ended."""

    def checked() -> object:
        child.check_running()
        return predicate()

    return checked
