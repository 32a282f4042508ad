"""How a worker ends without losing a request: after SIGTERM it serves for a while, so that others stop sending to it.

Meanwhile `/readyz` answers 503, and each response closes its connection. So a load balancer that asks `/readyz` sends
new requests elsewhere, and one with open connections opens its next one elsewhere.
"""

import asyncio
import logging
import signal
from types import FrameType

logger = logging.getLogger(__name__)


class Drain:
    """Whether this worker is about to end."""

    def __init__(self) -> None:
        self.begun = False

    def at_sigterm(self, seconds: float) -> None:
        """Make SIGTERM begin the drain. After `seconds`, or at the next SIGTERM, what SIGTERM did until now happens.

        With 0, nothing changes. Otherwise it has to be called from the main thread, in the event loop that serves.
        """
        if not seconds:
            return
        loop, end = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)
        if not callable(end):
            raise TypeError("SIGTERM has no handler that could end this worker")

        def begin(number: int, frame: FrameType | None) -> None:
            if self.begun:
                end(number, frame)
                return
            self.begun = True
            loop.call_soon_threadsafe(loop.call_later, seconds, end, number, None)
            logger.info("this worker serves for a last time, then it ends", extra={"seconds": seconds})

        signal.signal(signal.SIGTERM, begin)
