"""Repeats what a projector does beside its lines. The lines must not end because this fails."""

import logging
from collections.abc import Awaitable, Callable

from projector import defect
from projector.errors import ProjectorError, Unavailable
from projector.stop import Stop

logger = logging.getLogger(__name__)


async def repeat(what: str, turn: Callable[[], Awaitable[None]], stop: Stop, pause: Callable[[], float]) -> None:
    """Call `turn` until `stop` is set, and wait after each call for as many seconds as `pause` returns.

    While Redis or Kafka is unavailable, and after an error that nobody expected, the next call tries again. Raises the
    other errors of the projector, such as Refused.
    """
    while not stop.is_set():
        try:
            await turn()
        except Unavailable as error:
            logger.warning("%s cannot continue now, and will be retried", what, extra={"error": str(error)})
        except ProjectorError:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            defect.report(what, error)
        await stop.sleep(pause())
