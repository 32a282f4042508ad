"""The projector process: two lines, the keeper and the metrics server.

API keys and organizations have a line of their own, so that a revoked key never waits behind documents.
"""

import asyncio
import gc
import logging

from prometheus_client import REGISTRY

from projector.errors import Refused, Unavailable
from projector.ledger import copies, writers
from projector.ledger.ledger import Ledger
from projector.ledger.writers import Writing
from projector.line.line import Line
from projector.mapping import VERSION
from projector.redis.store import Store
from projector.stop import Stop
from projector.upkeep import jobs
from projector.upkeep.keeper import Keeper
from projector.upkeep.renewal import Renewal
from schemas.resources import ACCESS_KINDS, RESOURCES
from schemas.settings import ProjectorSettings, effective
from telemetry.metrics_server import Health, MetricsServer

# Decoding creates very many objects without cycles. With the default of 700, the collector looks at a large record many
# times.
COLLECT_AFTER = 50_000

logger = logging.getLogger(__name__)


async def run(settings: ProjectorSettings) -> None:
    """Project until SIGTERM or SIGINT.

    Raises Refused if Redis may evict documents, does not fit its URL, or holds data of another layout, and if the
    metrics port is not free.
    """
    logger.info("projector starts", extra={"mapping": VERSION, "settings": effective(settings)})
    gc.set_threshold(COLLECT_AFTER)
    stop = Stop.on_signals()
    await _wait_for_redis(settings, stop)
    lines: list[Line] = []
    states = lambda: {line.health.name: line.health.state for line in lines}  # noqa: E731
    async with writers.writing(settings, "run", states) as writing:
        lines += _lines(settings, writing)
        metrics = _metrics(settings, lines)
        try:
            async with asyncio.TaskGroup() as group:
                for line in lines:
                    group.create_task(line.run(stop))
                beside = [
                    group.create_task(Renewal(settings, writing.store).run(stop)),
                    group.create_task(Keeper(settings, writing).run(stop)),
                    group.create_task(jobs.run(writing, settings, stop)),
                ]
                await stop.wait()
                for task in beside:
                    task.cancel()  # a job, perhaps a long one, stays stored: another projector continues it
        finally:
            if metrics:
                metrics.close()
    logger.info("projector stopped")


def _lines(settings: ProjectorSettings, writing: Writing) -> list[Line]:
    store, sessions = writing.store, writing.sessions
    access = Ledger(store, sessions, documents=False)
    return [
        Line("access", settings, ACCESS_KINDS, f"{settings.group_id}.access", store, access),
        Line("documents", settings, RESOURCES, settings.group_id, store, Ledger(store, sessions)),
    ]


def _metrics(settings: ProjectorSettings, lines: list[Line]) -> MetricsServer | None:
    if settings.metrics_port is None:
        return None
    try:
        return MetricsServer(settings.metrics_host, settings.metrics_port, REGISTRY, lambda: _health(lines))
    except OSError as error:
        raise Refused(
            f"cannot listen on {settings.metrics_host}:{settings.metrics_port}: {error.strerror or error}. Stop the "
            "process that uses it, or choose another address with LEADVIEW_METRICS_HOST and LEADVIEW_METRICS_PORT."
        ) from error


def _health(lines: list[Line]) -> Health:
    """Called in threads of the metrics server."""
    problems = [problem for line in lines for problem in line.health.problems()]
    return Health(not problems, {"status": "unhealthy" if problems else "ok", "problems": problems})


async def _wait_for_redis(settings: ProjectorSettings, stop: Stop) -> None:
    store = Store(settings)
    try:
        while not stop.is_set():
            try:
                await store.check()
                await copies.check_layout(store)
                await copies.current(store)  # now, because to begin a record closes all connections of writers
            except Unavailable as error:
                logger.warning("waiting for Redis", extra={"error": str(error)})
                await stop.sleep(1.0)
            else:
                return
    finally:
        await store.close()
