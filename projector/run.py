"""The projector process: two lines, the keeper and the metrics server.

API keys and organizations have a line of their own, so that a revoked key never waits behind documents.
"""

import asyncio
import logging

from prometheus_client import REGISTRY

from projector.errors import Unavailable
from projector.ledger.ledger import Ledger
from projector.line.line import Line
from projector.mapping import VERSION
from projector.redis.store import Store
from projector.stop import Stop
from projector.upkeep.keeper import Keeper
from projector.upkeep.renewal import Renewal
from schemas.resources import ACCESS_KINDS, RESOURCES
from schemas.settings import ProjectorSettings, effective
from telemetry.metrics_server import Health, MetricsServer

logger = logging.getLogger(__name__)


async def run(settings: ProjectorSettings) -> None:
    """Project until SIGTERM or SIGINT. Raises Refused if Redis may evict documents, or does not fit its URL."""
    logger.info("projector starts", extra={"mapping": VERSION, "settings": effective(settings)})
    stop = Stop.on_signals()
    store = Store(settings)
    lines = [
        Line("access", settings, ACCESS_KINDS, f"{settings.group_id}.access", store, Ledger(store)),
        Line("documents", settings, RESOURCES, settings.group_id, store, Ledger(store)),
    ]
    metrics = _metrics(settings, lines)
    try:
        await _wait_for_redis(store, stop)
        async with asyncio.TaskGroup() as group:
            for line in lines:
                group.create_task(line.run(stop))
            renewal = group.create_task(Renewal(settings, store).run(stop))
            keeper = group.create_task(Keeper(settings, store).run(stop))
            await stop.wait()
            renewal.cancel()
            keeper.cancel()  # its current job, perhaps a long one, stays stored: another projector continues it
    finally:
        await store.close()
        if metrics:
            metrics.close()
    logger.info("projector stopped")


def _metrics(settings: ProjectorSettings, lines: list[Line]) -> MetricsServer | None:
    if settings.metrics_port is None:
        return None
    return MetricsServer(settings.metrics_host, settings.metrics_port, REGISTRY, lambda: _health(lines))


def _health(lines: list[Line]) -> Health:
    """Called in threads of the metrics server."""
    problems = [problem for line in lines for problem in line.health.problems()]
    return Health(not problems, {"status": "unhealthy" if problems else "ok", "problems": problems})


async def _wait_for_redis(store: Store, stop: Stop) -> None:
    while not stop.is_set():
        try:
            await store.check()
        except Unavailable as error:
            logger.warning("waiting for Redis", extra={"error": str(error)})
            await stop.sleep(1.0)
        else:
            return
