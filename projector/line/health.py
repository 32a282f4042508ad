"""Whether a line does its work. Asked from the thread of the metrics port, so that a stuck event loop shows."""

import time

_QUIET_SECONDS = 30.0


class LineHealth:
    """Notes of a line about itself. A line with work that does not move forward is unhealthy."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._alive_at = self._advanced_at = time.monotonic()
        self._lag = 0
        self._trouble: str | None = None
        self._stopped: str | None = None

    def alive(self) -> None:
        """A turn went well, with or without records."""
        self._alive_at = time.monotonic()
        self._trouble = None

    def advanced(self) -> None:
        """A position moved."""
        self._advanced_at = time.monotonic()

    def lag(self, records: int) -> None:
        self._lag = records
        if not records:
            self.advanced()

    def trouble(self, error: str) -> None:
        self._trouble = error

    def stopped(self, reason: str) -> None:
        self._stopped = reason

    def problems(self) -> list[str]:
        """What is wrong, in words; nothing when all is well."""
        now = time.monotonic()
        if self._stopped:
            return [f"{self._line}: stopped: {self._stopped}"]
        if now - self._alive_at > _QUIET_SECONDS:
            trouble = f" ({self._trouble})" if self._trouble else ""
            return [f"{self._line}: no turn has succeeded for {now - self._alive_at:.0f} s{trouble}"]
        if self._lag and now - self._advanced_at > _QUIET_SECONDS:
            return [f"{self._line}: {self._lag} records behind, and not advancing for {now - self._advanced_at:.0f} s"]
        return []
