"""Notes when the machine was too busy to judge the API: even a thread that only sleeps did not wake up in time."""

import threading

from tests.chaos.history import Window, now

BUSY = "machine-busy"
_PAUSE_SECONDS = 0.02
_LATE_SECONDS = 0.15
_AFTER_SECONDS = 1.0  # until a connection that was closed is open again


class Pulse(threading.Thread):
    """Runs until `stop`. `windows` are the times in which an unavailable API is not counted as wrong."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self.windows: list[Window] = []

    def run(self) -> None:
        before = now()
        while not self._ended.wait(_PAUSE_SECONDS):
            at = now()
            if at - before > _PAUSE_SECONDS + _LATE_SECONDS:
                over = at + _AFTER_SECONDS
                self.windows.append(Window(BUSY, frozenset({0, 503}), before, at, over))
            before = at

    def stop(self) -> None:
        self._ended.set()
        self.join()
