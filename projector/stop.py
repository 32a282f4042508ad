"""The request to stop, which all tasks of a projector share, and the loop that repeats work until then."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

from projector import defect
from projector.errors import Denied, ProjectorError, Unavailable
from projector.liveness import WorkHealth


class Stop(asyncio.Event):
    """An event that is set once, when the process is asked to stop."""

    @classmethod
    def on_signals(cls) -> "Stop":
        """Returns a stop that SIGTERM and SIGINT set."""
        stop = cls()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return stop

    @staticmethod
    def release_signals() -> None:
        """Restore the default actions of SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    async def sleep(self, seconds: float) -> None:
        """Sleep for this time, or until the stop is set if that is earlier."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), seconds)


logger = logging.getLogger(__name__)


async def repeat(
    what: str,
    turn: Callable[[], Awaitable[None]],
    stop: Stop,
    pause: Callable[[], float],
    health: WorkHealth | None = None,
) -> None:
    """Call `turn` until `stop` is set, and wait after each call for as many seconds as `pause` returns. `health` gets
    the outcome of each call.

    While Redis or Kafka is unavailable, and after an unexpected error, the next call tries again. Raises the other
    errors of the projector, such as Refused.
    """
    while not stop.is_set():
        try:
            await turn()
            if health:
                health.succeeded()
        except Unavailable as error:
            if health:
                health.failed(str(error), error if isinstance(error, Denied) else None)
            logger.warning("%s cannot continue now, and will be retried", what, extra={"error": str(error)})
        except ProjectorError:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            if health:
                health.failed(type(error).__name__)
            defect.report(what, error)
        await stop.sleep(pause())
