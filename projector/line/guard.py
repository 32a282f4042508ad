"""Counts bad records: a few are parked, too many halt the line."""

from collections import deque
from copy import copy

from projector.errors import LineStopped

WINDOW = 1000


class BadRecordGuard:
    """Halts the line after `row` consecutive bad records, or if more than `share` of the last 1000 records are bad."""

    def __init__(self, share: float, row: int) -> None:
        self._max_bad = share * WINDOW
        self._max_consecutive = row
        self._seen = 0
        self._bad: deque[int] = deque()
        """The numbers of the bad records among the last 1000, counted from the start."""
        self._consecutive = 0

    def fork(self) -> "BadRecordGuard":
        """Returns a copy that counts one batch. The copy replaces this guard when the batch is covered.

        A batch that is not covered is read again, and its records must count only once.
        """
        fork = copy(self)
        fork._bad = self._bad.copy()  # noqa: SLF001 - of the same class
        return fork

    def passed(self, count: int) -> None:
        """Count this many good records."""
        self._seen += count
        if count:
            self._consecutive = 0

    def note(self, reason: str) -> None:
        """Count a bad record; `reason` says what is wrong with it. Raises LineStopped if there are too many."""
        self._seen += 1
        self._consecutive += 1
        self._bad.append(self._seen)
        while self._bad[0] <= self._seen - WINDOW:
            self._bad.popleft()
        if self._consecutive >= self._max_consecutive:
            raise LineStopped(f"{self._consecutive} consecutive bad records; the last: {reason}")
        if len(self._bad) > self._max_bad:
            raise LineStopped(f"{len(self._bad)} of the last {WINDOW} records are bad; the last: {reason}")
