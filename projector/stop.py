"""The wish to stop, shared by all that runs in a projector."""

import asyncio
import signal
from contextlib import suppress


class Stop(asyncio.Event):
    """Set once, when the process is asked to end."""

    @classmethod
    def on_signals(cls) -> "Stop":
        """One that SIGTERM and SIGINT set."""
        stop = cls()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return stop

    @staticmethod
    def release_signals() -> None:
        """Let SIGTERM and SIGINT do again what they do by themselves."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    async def sleep(self, seconds: float) -> None:
        """Sleep, but no longer than until the stop."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), seconds)
