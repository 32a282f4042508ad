"""Waits while a line cannot continue: it is halted by too many bad records, or a newer program has to write."""

import logging
import time
from contextlib import suppress

from projector.errors import LineStopped, Superseded, Unavailable
from projector.kafka.source import Source
from projector.line.accepted import AcceptedRecords
from projector.line.positions import Positions
from projector.stop import Stop

_CHECK_SECONDS = 2.0
_SUPERSEDED_SECONDS = 1.0
_LOG_SECONDS = 30.0

logger = logging.getLogger(__name__)


async def wait_until_accepted(
    line: str, source: Source, accepted: AcceptedRecords, error: LineStopped, stop: Stop
) -> None:
    """Do nothing until an operator has accepted bad records, or until `stop`.

    The line stays a member of its group meanwhile, so that no other projector gets the same bad records.
    """
    source.pause()
    logged_at = -_LOG_SECONDS
    while not (stop.is_set() or await accepted.include_any(error.bad)):
        if time.monotonic() - logged_at >= _LOG_SECONDS:
            logged_at = time.monotonic()
            logger.error(
                "the line is halted and skips nothing. Fix the producer or the projector, or raise the limit, then "
                "restart the projector: it resumes where it stopped. %s",
                error,
                extra={"line": line},
            )
        with suppress(Unavailable):
            # Everything is paused, so this returns no records; but a member that never polls is removed.
            await source.poll(1, 0)
        await stop.sleep(_CHECK_SECONDS)
    source.resume()
    if not stop.is_set():
        logger.info("bad records were accepted; the line resumes", extra={"line": line})


async def wait_while_superseded(source: Source, positions: Positions, stop: Stop) -> None:
    """Leave the partitions to newer programs until this one may write again, or until `stop`."""
    positions.reset()
    source.leave()
    while not stop.is_set() and await _is_superseded(positions):
        await stop.sleep(_SUPERSEDED_SECONDS)
    source.join()


async def _is_superseded(positions: Positions) -> bool:
    try:
        await positions.seek()
    except (Superseded, Unavailable):
        return True
    return False
