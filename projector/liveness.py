"""Records whether each line, and the work beside the lines, succeeds. The thread of the metrics server reads this, so
that a blocked event loop is noticed.

`projector/health` judges from samples of Kafka and Redis whether a line advances: a line that measured itself would
stop measuring when it stops working.
"""

import time

from projector.errors import Denied, Unavailable
from projector.problem import KafkaDenies, Problem, Reported, of_line
from schemas import words
from schemas.heartbeat import FailingLine, LineTrouble, StandingByLine

_QUIET_SECONDS = 30.0


class LineHealth:
    """The state that a line reports. `trouble` is the reason why it does not work; None if it works.

    A line that fails because of a defect is unhealthy until it advances.
    """

    def __init__(self, line: str) -> None:
        self.name = line
        self.trouble: LineTrouble | None = None
        self._alive_at = time.monotonic()
        self.unavailable = ""
        """The error if Redis or Kafka was not available for the last step; empty if the step has succeeded."""
        self._denied: Denied | None = None

    def alive(self) -> None:
        """Notes that a step of the loop succeeded, with or without records."""
        self._alive_at = time.monotonic()
        self.unavailable = ""

    def failed(self, error: Unavailable) -> None:
        """Notes that Redis or Kafka was not available for a step."""
        self.unavailable = str(error)
        self._denied = error if isinstance(error, Denied) else None

    def advanced(self) -> None:
        """Notes that a position has moved forward, or that all positions are at the end."""
        if self.fails:
            self.trouble = None

    def stops(self, trouble: LineTrouble) -> None:
        """Notes that a defect has made a step fail, or that the line does nothing until `resumes`."""
        self.trouble = trouble
        if isinstance(trouble, StandingByLine):
            self.alive()

    def resumes(self) -> None:
        """Notes that the line is no longer halted or standing by."""
        self.trouble = None
        self.alive()

    @property
    def fails(self) -> bool:
        return isinstance(self.trouble, FailingLine)

    @property
    def state(self) -> str:
        """The state of the line, for the heartbeat."""
        return self.trouble.state if self.trouble else "running"

    def problem(self) -> Problem | None:
        """Returns what is wrong; None if the line works."""
        if self.trouble:
            return of_line(self.name, self.trouble)
        seconds, denied = time.monotonic() - self._alive_at, self._denied if self.unavailable else None
        if denied and denied.right:
            return KafkaDenies((), denied.right)
        if seconds > _QUIET_SECONDS or denied:
            return Reported(self.name, (), "no_step", words.no_step(self.name, self.unavailable), seconds)
        return None


class WorkHealth:
    """The state of work that is repeated beside the lines. A turn may take any time: the work is unhealthy only while
    turns fail.
    """

    def __init__(self, work: str) -> None:
        self.name = work
        self._failing: tuple[float, str, Denied | None] | None = None
        """The time of the first failure, the reason of the last one, and its error if this user lacks a right."""

    def succeeded(self) -> None:
        self._failing = None

    def failed(self, reason: str, denied: Denied | None = None) -> None:
        since = self._failing[0] if self._failing else time.monotonic()
        self._failing = since, reason, denied

    def problem(self) -> Problem | None:
        """Returns what is wrong; None if the work is done."""
        if (failing := self._failing) is None:
            return None
        since, reason, denied = failing
        if denied and denied.right:
            return KafkaDenies((), denied.right)
        seconds = time.monotonic() - since
        if seconds <= _QUIET_SECONDS and not denied:
            return None
        return Reported(self.name, (), "no_step", words.no_step(self.name, reason), seconds)
