"""The projector process: two lines, so that access never waits for documents, the keeper, and the metrics server."""

import asyncio
import logging

from projector.errors import Unavailable
from projector.ledger.ledger import Ledger
from projector.line.line import Line
from projector.line.metrics import MetricsServer
from projector.mapping import VERSION
from projector.record import ACCESS_KINDS, DOCUMENT_KINDS
from projector.redis.store import Store
from projector.stop import Stop
from projector.upkeep.keeper import Keeper
from schemas.settings import ProjectorSettings, effective

logger = logging.getLogger(__name__)


async def run(settings: ProjectorSettings) -> None:
    """Project until SIGTERM or SIGINT. Raises Refused if Redis may evict documents or is not what its URL says."""
    logger.info("projector starts", extra={"mapping": VERSION, "settings": effective(settings)})
    stop = Stop.on_signals()
    store = Store(settings)
    lines = [
        Line("access", settings, ACCESS_KINDS, f"{settings.group_id}.access", store, Ledger(store)),
        Line("documents", settings, DOCUMENT_KINDS, settings.group_id, store, Ledger(store)),
    ]
    metrics = _metrics(settings, lines)
    try:
        await _wait_for_redis(store, stop)
        async with asyncio.TaskGroup() as group:
            for line in lines:
                group.create_task(line.run(stop))
            keeper = group.create_task(Keeper(settings, store).run(stop))
            await stop.wait()
            keeper.cancel()  # it may be in a long replay; the job stays in Redis for another projector
    finally:
        await store.close()
        if metrics:
            metrics.close()
    logger.info("projector stopped")


def _metrics(settings: ProjectorSettings, lines: list[Line]) -> MetricsServer | None:
    if settings.metrics_port is None:
        return None
    return MetricsServer(
        settings.metrics_host,
        settings.metrics_port,
        lambda: [problem for line in lines for problem in line.health.problems()],
    )


async def _wait_for_redis(store: Store, stop: Stop) -> None:
    while not stop.is_set():
        try:
            await store.check()
        except Unavailable as error:
            logger.warning("waiting for Redis", extra={"error": str(error)})
            await stop.sleep(1.0)
        else:
            return
