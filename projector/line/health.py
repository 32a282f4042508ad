"""Whether a line is healthy. The thread of the metrics server reads it, so that a blocked event loop is noticed."""

import time

_QUIET_SECONDS = 30.0


class LineHealth:
    """What a line reports about itself. A line that has records to apply and does not advance is unhealthy."""

    def __init__(self, line: str) -> None:
        self.name = line
        self._alive_at = self._advanced_at = time.monotonic()
        self._lag = 0
        self._trouble: str | None = None
        self._failure: str | None = None
        self._stopped: str | None = None
        self._standing_by: str | None = None

    def alive(self) -> None:
        """A step of the loop succeeded, with or without records."""
        self._alive_at = time.monotonic()
        self._trouble = None

    def advanced(self) -> None:
        """A position has moved forward, or is at the end."""
        self._advanced_at = time.monotonic()
        self._failure = None

    def lag(self, records: int) -> None:
        self._lag = records
        if not records:
            self.advanced()

    def trouble(self, error: str) -> None:
        self._trouble = error

    def failed(self, failure: str) -> None:
        """A step has failed because of a defect. The line is unhealthy until it advances."""
        self._failure = failure

    @property
    def fails(self) -> bool:
        return self._failure is not None

    def stopped(self, reason: str) -> None:
        self._stopped = reason

    def standing_by(self, reason: str | None) -> None:
        """The line leaves its work to newer programs, and says why; None if it works again."""
        self._standing_by = reason
        self.alive()
        self.advanced()

    @property
    def state(self) -> str:
        """The state in a few words, for the heartbeat."""
        if self._stopped:
            return f"halted: {self._stopped}"
        if self._failure:
            return f"failing: {self._failure}"
        return f"standing by: {self._standing_by}" if self._standing_by else "running"

    def resumed(self) -> None:
        """The line is no longer halted."""
        self._stopped = None
        self.alive()
        self.advanced()

    def problems(self) -> list[str]:
        """Returns what is wrong, in words; an empty list if the line is healthy."""
        now = time.monotonic()
        if self._stopped:
            return [f"{self.name}: halted: {self._stopped}"]
        if self._failure:
            return [f"{self.name}: {self._failure}"]
        if self._standing_by:
            return [f"{self.name}: standing by: {self._standing_by}"]
        if now - self._alive_at > _QUIET_SECONDS:
            trouble = f" ({self._trouble})" if self._trouble else ""
            return [f"{self.name}: no step has succeeded for {now - self._alive_at:.0f} s{trouble}"]
        if self._lag and now - self._advanced_at > _QUIET_SECONDS:
            return [
                f"{self.name}: {self._lag} records behind, and has not advanced for {now - self._advanced_at:.0f} s"
            ]
        return []
