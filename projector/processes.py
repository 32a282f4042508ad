"""Several projectors, which one command starts, watches and stops: one process uses one core."""

import asyncio
import logging
import multiprocessing
import signal
import sys
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType

import uvloop
from msgspec import structs

from leadview import orphan
from leadview.logs import configure
from projector.errors import ProjectorError
from projector.run import run
from schemas.settings import ProjectorSettings

_RESTART_SECONDS = 1.0

logger = logging.getLogger(__name__)


def run_processes(settings: ProjectorSettings, count: int) -> int:
    """Run `count` projectors until SIGTERM or SIGINT. Returns the exit code: that of a projector which failed, else 0.

    A projector that a signal has killed is started again. One that ends by itself has a reason, such as a setting,
    which would end the next one too: the others are stopped.

    The metrics port of the first one is that of the settings, and each further one has the next port.
    """
    port = settings.metrics_port
    processes = _Processes(
        [structs.replace(settings, metrics_port=None if port is None else port + index) for index in range(count)]
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, processes.on_signal)
    return processes.run()


class _Processes:
    """The children, by their index: each has its own settings."""

    def __init__(self, settings: list[ProjectorSettings]) -> None:
        self._settings = settings
        self._children: dict[int, BaseProcess] = {}
        self._stopping = False
        self._code = 0

    def run(self) -> int:
        for index in range(len(self._settings)):
            self._start(index)
        while self._children:
            wait([child.sentinel for child in self._children.values()])
            for index, child in list(self._children.items()):
                if not child.is_alive():
                    self._ended(index, child)
        return self._code

    def on_signal(self, *_: int | FrameType | None) -> None:
        self._stopping = True
        for child in list(self._children.values()):
            child.terminate()

    def _start(self, index: int) -> None:
        # A new interpreter, and not a copy of this one, in which a signal handler of the parent would run. A daemon is
        # stopped if this process ends because of a defect.
        child = multiprocessing.get_context("spawn").Process(
            target=_project, args=(self._settings[index],), daemon=True
        )
        child.start()
        self._children[index] = child
        if self._stopping:  # the signal came while it was being started
            child.terminate()

    def _ended(self, index: int, child: BaseProcess) -> None:
        del self._children[index]
        code, about = child.exitcode or 0, {"projector": index + 1, "pid": child.pid, "exit_code": child.exitcode}
        if self._stopping:
            self._code = max(self._code, code)
        elif code < 0:
            logger.error("a projector was killed, and is started again", extra=about)
            time.sleep(_RESTART_SECONDS)
            if not self._stopping:
                self._start(index)
        else:
            logger.error("a projector ended by itself: the others are stopped", extra=about)
            self._code = code
            self.on_signal()


def _project(settings: ProjectorSettings) -> None:
    """The main function of a child."""
    configure(settings.log_level)
    try:
        uvloop.run(_run_with_parent(settings))
    except ProjectorError as error:
        sys.exit(f"{type(error).__name__}: {error}")


async def _run_with_parent(settings: ProjectorSettings) -> None:
    watching = asyncio.create_task(orphan.watch())
    await run(settings)
    watching.cancel()
