"""A stopwatch for promises in seconds: time during which this machine stood still does not count."""

import threading
import time
from typing import Self

_PAUSE_SECONDS = 0.01
_USUAL_DELAY_SECONDS = 0.01


class Stopwatch:
    """A context manager that counts seconds from its beginning.

    A thread sleeps for hundredths of a second. If it wakes up late, the machine had no processor to spare or stood
    still, and so did what is being measured: `seconds` leaves this time out.
    """

    def __init__(self) -> None:
        self._began = self._woke_up = time.monotonic()
        self._lost = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stopwatch", daemon=True)
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning, without the lost ones."""
        with self._lock:
            now = time.monotonic()
            return now - self._began - self._lost - self._delay(now)

    @property
    def lost(self) -> float:
        """Seconds since the beginning in which the machine stood still."""
        with self._lock:
            return self._lost + self._delay(time.monotonic())

    def __enter__(self) -> Self:
        self._began = self._woke_up = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            time.sleep(_PAUSE_SECONDS)
            with self._lock:
                now = time.monotonic()
                self._lost += self._delay(now)
                self._woke_up = now

    def _delay(self, now: float) -> float:
        """Returns how many seconds the thread is late by now."""
        if self._ended.is_set():
            return 0.0
        return max(0.0, now - self._woke_up - _PAUSE_SECONDS - _USUAL_DELAY_SECONDS)
