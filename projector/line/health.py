"""Whether a line is healthy. The thread of the metrics server reads it, so that a blocked event loop is noticed."""

import time

_QUIET_SECONDS = 30.0


class LineHealth:
    """What a line reports about itself. A line that has records to apply and does not advance is unhealthy."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._alive_at = self._advanced_at = time.monotonic()
        self._lag = 0
        self._trouble: str | None = None
        self._stopped: str | None = None

    def alive(self) -> None:
        """A step of the loop succeeded, with or without records."""
        self._alive_at = time.monotonic()
        self._trouble = None

    def advanced(self) -> None:
        """A position has moved forward."""
        self._advanced_at = time.monotonic()

    def lag(self, records: int) -> None:
        self._lag = records
        if not records:
            self.advanced()

    def trouble(self, error: str) -> None:
        self._trouble = error

    def stopped(self, reason: str) -> None:
        self._stopped = reason

    def resumed(self) -> None:
        """The line is no longer halted."""
        self._stopped = None
        self.alive()
        self.advanced()

    def problems(self) -> list[str]:
        """Returns what is wrong, in words; an empty list if the line is healthy."""
        now = time.monotonic()
        if self._stopped:
            return [f"{self._line}: halted: {self._stopped}"]
        if now - self._alive_at > _QUIET_SECONDS:
            trouble = f" ({self._trouble})" if self._trouble else ""
            return [f"{self._line}: no step has succeeded for {now - self._alive_at:.0f} s{trouble}"]
        if self._lag and now - self._advanced_at > _QUIET_SECONDS:
            return [
                f"{self._line}: {self._lag} records behind, and has not advanced for {now - self._advanced_at:.0f} s"
            ]
        return []
