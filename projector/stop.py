"""The request to stop, which all tasks of a projector share."""

import asyncio
import signal
from contextlib import suppress


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
