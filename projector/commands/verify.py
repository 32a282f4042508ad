"""`verify --continuous`: audits Redis until SIGTERM, logs what differs, and exports it as metrics."""

import logging

from leadview.metrics_port import Health, MetricsServer
from projector.commands.operator import Operator
from projector.errors import Refused, Unavailable
from projector.line.metrics import DIFFERENCES, PASSES, VERIFICATION, VERIFIED
from projector.stop import Stop
from projector.verify import rolling
from projector.verify.rolling import Turn
from schemas.resources import KINDS

_RETRY_SECONDS = 5.0

logger = logging.getLogger(__name__)


async def run(operator: Operator) -> int:
    """Audit until SIGTERM or SIGINT. Returns 1 if anything differed, else 0.

    Waits while Redis or Kafka is unavailable, Redis is empty or a topic is missing, and says so in the health.
    """
    settings = operator.settings
    stop = Stop.on_signals()
    problems: list[str] = []
    for kind in KINDS:
        for counter in (VERIFIED, DIFFERENCES, PASSES):
            counter.labels(f"{settings.topic_prefix}{kind.topic}")  # 0, and not absent, before the first turn
    server = None
    if settings.metrics_port is not None:
        server = MetricsServer(settings.metrics_host, settings.metrics_port, VERIFICATION, lambda: _health(problems))
    logger.info("continuous verification starts", extra={"share": rolling.SHARE})
    differences = 0
    try:
        while not stop.is_set():
            try:
                async for turn in rolling.audit(operator.store, settings, stop):
                    problems.clear()
                    differences += _note(turn)
            except (Refused, Unavailable) as error:
                problems[:] = [str(error)]
                logger.warning("cannot verify now, and will try again", extra={"error": str(error)})
                await stop.sleep(_RETRY_SECONDS)
    finally:
        stop.release_signals()
        if server:
            server.close()
    return 1 if differences else 0


def _note(turn: Turn) -> int:
    VERIFIED.labels(turn.topic).inc(turn.checked)
    DIFFERENCES.labels(turn.topic).inc(len(turn.differences))
    PASSES.labels(turn.topic).inc(turn.passed)
    for found in turn.differences:
        logger.warning(
            "Redis differs from the topic; `verify` compares everything, `rebuild --organization` repairs documents",
            extra={
                "kind": found.kind,
                "organization": found.organization,
                "entity": found.id,
                "fields": list(found.fields),
            },
        )
    return len(turn.differences)


def _health(problems: list[str]) -> Health:
    """Called in threads of the metrics server."""
    found = list(problems)
    return Health(not found, {"status": "unhealthy" if found else "ok", "problems": found})
