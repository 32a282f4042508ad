"""Whether a line works, and what runs beside the lines. The thread of the metrics server reads it, so that a blocked
event loop is noticed.

Whether a line that works also advances is not judged here, but from samples of Kafka and Redis (`projector/health`): a
line that measures itself would stop measuring exactly when it stops working.
"""

import time

from projector.errors import Denied, Unavailable
from projector.problem import Problem, Reported, of_line
from schemas import words
from schemas.heartbeat import FailingLine, LineTrouble, StandingByLine

_QUIET_SECONDS = 30.0


class LineHealth:
    """What a line reports about itself. `trouble` is why it does not work; None if it does.

    A line that fails because of a defect is unhealthy until it advances.
    """

    def __init__(self, line: str) -> None:
        self.name = line
        self.trouble: LineTrouble | None = None
        self._alive_at = time.monotonic()
        self.unavailable = ""
        """Why Redis or Kafka was not available for the last step; empty if it has succeeded."""
        self._is_denied = False

    def alive(self) -> None:
        """A step of the loop succeeded, with or without records."""
        self._alive_at = time.monotonic()
        self.unavailable = ""

    def failed(self, error: Unavailable) -> None:
        """Redis or Kafka was not available for a step."""
        self.unavailable = str(error)
        self._is_denied = isinstance(error, Denied)

    def advanced(self) -> None:
        """A position has moved forward, or all positions are at the end."""
        if self.fails:
            self.trouble = None

    def stops(self, trouble: LineTrouble) -> None:
        """A defect has made a step fail, or the line has left its work until `resumes`."""
        self.trouble = trouble
        if isinstance(trouble, StandingByLine):
            self.alive()

    def resumes(self) -> None:
        """The line is no longer halted, or does not stand by any more."""
        self.trouble = None
        self.alive()

    @property
    def fails(self) -> bool:
        return isinstance(self.trouble, FailingLine)

    @property
    def state(self) -> str:
        """What the line does, for the heartbeat."""
        return self.trouble.state if self.trouble else "running"

    def problem(self) -> Problem | None:
        """Returns what is wrong; None if the line works."""
        if self.trouble:
            return of_line(self.name, self.trouble)
        seconds = time.monotonic() - self._alive_at
        if seconds > _QUIET_SECONDS or (self.unavailable and self._is_denied):
            return Reported(self.name, (), "no_step", words.no_step(self.name, self.unavailable), seconds)
        return None


class WorkHealth:
    """What a work that is repeated beside the lines reports about itself. A turn may take as long as it needs: it is
    unhealthy only while turns fail.
    """

    def __init__(self, work: str) -> None:
        self.name = work
        self._failing: tuple[float, str, bool] | None = None
        """Since when, why, and whether this user lacks a right."""

    def succeeded(self) -> None:
        self._failing = None

    def failed(self, reason: str, *, denied: bool = False) -> None:
        since = self._failing[0] if self._failing else time.monotonic()
        self._failing = since, reason, denied

    def problem(self) -> Problem | None:
        """Returns what is wrong; None if the work is done."""
        if (failing := self._failing) is None:
            return None
        since, reason, denied = failing
        seconds = time.monotonic() - since
        if seconds <= _QUIET_SECONDS and not denied:
            return None
        return Reported(self.name, (), "no_step", words.no_step(self.name, reason), seconds)
