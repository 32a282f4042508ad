"""Leadview's programs as processes (`devstack.programs`), and the API while a block runs."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from devstack.child import Child
from devstack.ports import free_port
from devstack.programs import API, PROJECTOR, ROOT, environment, while_running
from schemas.settings import ApiSettings, load
from tests.harness import control
from tests.harness.api_server import ApiServer
from tests.harness.waiting import wait_until

__all__ = [
    "API",
    "PROJECTOR",
    "ROOT",
    "descendants",
    "environment",
    "is_alive",
    "running_api_process",
    "while_running",
]


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
