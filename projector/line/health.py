"""Whether a line works. The thread of the metrics server reads it, so that a blocked event loop is noticed.

Whether a line that works also advances is not judged here, but from samples of Kafka and Redis (`projector/operate`): a
line that measures itself would stop measuring exactly when it stops working.
"""

import time

from projector.problem import Reported

_QUIET_SECONDS = 30.0


class LineHealth:
    """What a line reports about itself."""

    def __init__(self, line: str) -> None:
        self.name = line
        self._alive_at = time.monotonic()
        self._trouble: str | None = None
        self._failure: str | None = None
        self._stopped: str | None = None
        self._standing_by: str | None = None

    def alive(self) -> None:
        """A step of the loop succeeded, with or without records."""
        self._alive_at = time.monotonic()
        self._trouble = None

    def advanced(self) -> None:
        """A position has moved forward, or all positions are at the end."""
        self._failure = None

    def trouble(self, error: str) -> None:
        self._trouble = error

    def failed(self, failure: str) -> None:
        """A step has failed because of a defect. The line is unhealthy until it advances."""
        self._failure = failure

    @property
    def fails(self) -> bool:
        return self._failure is not None

    @property
    def halted(self) -> bool:
        return self._stopped is not None

    @property
    def stands_by(self) -> bool:
        return self._standing_by is not None

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

    def problem(self) -> Reported | None:
        """Returns what is wrong; None if the line works."""
        if self._stopped:
            return Reported(self.name, (), "halted", f"{self.name}: halted: {self._stopped}")
        if self._failure:
            return Reported(self.name, (), "failing", f"{self.name}: {self._failure}")
        if self._standing_by:
            return Reported(self.name, (), "standing_by", f"{self.name}: standing by: {self._standing_by}")
        seconds = time.monotonic() - self._alive_at
        if seconds > _QUIET_SECONDS:
            trouble = f" ({self._trouble})" if self._trouble else ""
            text = f"{self.name}: no step has succeeded for {seconds:.0f} s{trouble}"
            return Reported(self.name, (), "no_step", text)
        return None
