"""Runs a projector: two lines, the upkeep, and the watch over all of them. One process uses one core, so one command
can start, watch and stop several projectors.

API keys and organizations have a line of their own, so that a revoked key never waits behind documents.
"""

import asyncio
import gc
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

from projector.errors import ProjectorError, Unavailable
from projector.health.watch import Watch, metrics_port, watching
from projector.kafka.accepted import AcceptedRecords, OffsetTexts, accepted_texts
from projector.kafka.reader import Source
from projector.ledger import copies, writers
from projector.ledger.ledger import Ledger
from projector.ledger.writers import Writing
from projector.line.line import Line
from projector.line.metrics import REGISTRY
from projector.line.pace import Pacer
from projector.line.policy import Policy
from projector.liveness import WorkHealth
from projector.mapping import VERSION
from projector.redis.store import Store
from projector.stop import Stop
from projector.upkeep import dead_letters, jobs
from projector.upkeep.comparison import Comparing
from projector.upkeep.duty import Duty
from projector.upkeep.keeper import Keeper
from runtime.background import watch_parent
from runtime.logs import configure
from schemas.control import LAYOUT
from schemas.resources import ACCESS_KINDS, RESOURCES
from schemas.settings import ProjectorSettings, effective

# Decoding creates very many objects without cycles. With the default of 700, the collector looks at a large record many
# times.
COLLECT_AFTER = 50_000
_RESTART_SECONDS = 1.0

logger = logging.getLogger(__name__)


async def run(settings: ProjectorSettings) -> None:
    """Project until SIGTERM or SIGINT.

    Raises Refused if Redis may evict documents or does not fit its URL, or if the metrics port is not free.
    """
    logger.info("projector starts", extra={"mapping": VERSION, "settings": effective(settings)})
    gc.set_threshold(COLLECT_AFTER)
    stop = Stop.on_signals()
    lines: list[Line] = []
    watch = Watch(settings, lines)
    REGISTRY.register(watch)
    # Served from the start on, also while the projector waits for Redis.
    with metrics_port(settings, REGISTRY, watch.health, watch.live):
        async with watching(watch):
            await _wait_for_redis(settings, stop, watch)
            async with writers.writing(settings, "run", watch.condition) as writing:
                access = Source(settings, ACCESS_KINDS, f"{settings.group_id}.access")
                documents = Source(settings, RESOURCES, settings.group_id)
                lines += lines_of(settings, writing, access, documents, accepted_texts(settings))
                await _work(settings, writing, lines, watch.jobs, stop)
    logger.info("projector stopped")


async def _work(
    settings: ProjectorSettings, writing: Writing, lines: list[Line], of_jobs: WorkHealth, stop: Stop
) -> None:
    duty = Duty(settings, writing)
    async with asyncio.TaskGroup() as group:
        for line in lines:
            group.create_task(line.run(stop))
        beside = [
            group.create_task(AcceptedRecords(settings, writing.store).keep(stop)),
            group.create_task(dead_letters.keep_clear(writing.store, settings, stop)),
            group.create_task(Keeper(settings, writing, duty.often).run(stop)),
            group.create_task(duty.run(stop)),
            group.create_task(jobs.run(writing, settings, stop, of_jobs, duty.often)),
            group.create_task(Comparing(settings, writing).run(stop)),
        ]
        await stop.wait()
        for task in beside:
            task.cancel()  # a job, perhaps a long one, stays stored: another projector continues it


def lines_of(
    settings: ProjectorSettings, writing: Writing, access: Source, documents: Source, accepted: OffsetTexts
) -> list[Line]:
    """Returns the line of access and that of documents, which read from these sources. `accepted` has what operators
    have accepted.
    """
    store, sessions, policy = writing.store, writing.sessions, Policy.of(settings)
    return [
        Line(
            "access",
            access,
            AcceptedRecords(settings, store, accepted),
            store,
            Ledger(store, sessions, documents=False),
            policy,
        ),
        Line(
            "documents",
            documents,
            AcceptedRecords(settings, store, accepted),
            store,
            Ledger(store, sessions),
            policy,
            Pacer.of_live_line(store, settings),
        ),
    ]


async def _wait_for_redis(settings: ProjectorSettings, stop: Stop, watch: Watch) -> None:
    store = Store(settings)
    try:
        while not stop.is_set():
            try:
                await store.check()
                for layout in await copies.other_layouts(store):
                    logger.warning(
                        "Redis also holds data of another layout, which uses memory (docs/upgrading.md)",
                        extra={"layout": layout, "own_layout": LAYOUT},
                    )
                await copies.current(store)  # now, because to begin a record closes all connections of writers
            except Unavailable as error:
                logger.warning("the projector waits for Redis", extra={"error": str(error)})
                watch.waits_for = str(error)
                await stop.sleep(1.0)
            else:
                watch.waits_for = None
                return
    finally:
        await store.close()


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
        # A new interpreter: in a copy of this one, a signal handler of the parent would run. A daemon is stopped if
        # this process ends because of a defect.
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
    """Runs one projector as a child process."""
    configure(settings.log_level)
    try:
        uvloop.run(_run_with_parent(settings))
    except ProjectorError as error:
        sys.exit(f"{type(error).__name__}: {error}")


async def _run_with_parent(settings: ProjectorSettings) -> None:
    watching = asyncio.create_task(watch_parent())
    await run(settings)
    watching.cancel()
