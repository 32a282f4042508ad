"""Counts bad records: a few are parked, too many halt the line."""

from collections import deque
from collections.abc import Callable
from copy import copy

from projector.dead_letter import DeadLetter
from projector.errors import Coordinates, LineStopped

WINDOW = 1000
LAST = "; the last: "
"""Between how many records are bad, and the last one of them."""


class BadRecordGuard:
    """Halts the line after `row` consecutive bad records, or if more than `share` of the last 1000 records are bad.

    Bad records that an operator has accepted are not counted at all.
    """

    def __init__(self, share: float, row: int) -> None:
        self._max_bad = share * WINDOW
        self._max_consecutive = row
        self._seen = 0
        self._bad: deque[tuple[int, Coordinates]] = deque()
        """The bad records among the last 1000, each with its number, counted from the start."""
        self._consecutive: list[Coordinates] = []

    def fork(self) -> "BadRecordGuard":
        """Returns a copy that counts one batch. The copy replaces this guard when the batch is covered.

        A batch that is not covered is read again, and its records must count only once.
        """
        fork = copy(self)
        fork._bad = self._bad.copy()  # noqa: SLF001 - of the same class
        fork._consecutive = self._consecutive.copy()  # noqa: SLF001
        return fork

    def passed(self, count: int) -> None:
        """Count this many good records."""
        self._seen += count
        if count:
            self._consecutive.clear()

    def note(self, bad: DeadLetter) -> None:
        """Count a bad record, unless it is accepted. Raises LineStopped if there are too many."""
        if bad.accepted:
            return
        at = bad.topic, bad.partition, bad.offset
        self._seen += 1
        self._consecutive.append(at)
        self._bad.append((self._seen, at))
        while self._bad[0][0] <= self._seen - WINDOW:
            self._bad.popleft()
        last = f"{LAST}{bad.field}: {bad.reason}"
        if len(self._consecutive) >= self._max_consecutive:
            limit = f"LEADVIEW_DEAD_LETTER_ROW is {self._max_consecutive}"
            raise LineStopped(f"{len(self._consecutive)} consecutive bad records ({limit}){last}", self._consecutive)
        if len(self._bad) > self._max_bad:
            counted = [at for _, at in self._bad]
            limit = f"LEADVIEW_DEAD_LETTER_SHARE is {self._max_bad / WINDOW:g}"
            raise LineStopped(f"{len(counted)} of the last {WINDOW} records are bad ({limit}){last}", counted)

    def forgive(self, acceptance: Callable[[Coordinates], object]) -> None:
        """No longer count the bad records for which `acceptance` returns something true."""
        self._bad = deque((number, at) for number, at in self._bad if not acceptance(at))
        self._consecutive = [at for at in self._consecutive if not acceptance(at)]
