"""Counts bad records: a few are parked, too many stop the line."""

from collections import deque
from copy import copy

from projector.errors import LineStopped

WINDOW = 1000


class BadRecordGuard:
    """Stops the line on `row` bad records in a row, or on more than `share` of the last 1000 records."""

    def __init__(self, share: float, row: int) -> None:
        self._most = share * WINDOW
        self._longest = row
        self._seen = 0
        self._bad: deque[int] = deque()
        """The bad ones among the last records, by their number."""
        self._row = 0

    def fork(self) -> "BadRecordGuard":
        """Returns a copy that counts one batch, and replaces this guard when the batch is covered.

        A batch that is not covered is read again, and its records must count only once.
        """
        fork = copy(self)
        fork._bad = self._bad.copy()  # noqa: SLF001  # of its own class
        return fork

    def passed(self, count: int) -> None:
        """Count so many good records."""
        self._seen += count
        if count:
            self._row = 0

    def note(self, reason: str) -> None:
        """Count a bad record: `reason` says what is wrong with it. Raises LineStopped."""
        self._seen += 1
        self._row += 1
        self._bad.append(self._seen)
        while self._bad[0] <= self._seen - WINDOW:
            self._bad.popleft()
        if self._row >= self._longest:
            raise LineStopped(f"{self._row} bad records in a row; the last: {reason}")
        if len(self._bad) > self._most:
            raise LineStopped(f"{len(self._bad)} of the last {WINDOW} records are bad; the last: {reason}")
