"""The readings of the last seconds, from which rates follow."""

from collections import deque
from typing import Generic, TypeVar

SECONDS = 4.0
"""What happened before is not part of a rate: a few seconds after something has stopped, its rate is 0."""

T = TypeVar("T")


class Recent(Generic[T]):
    """Keeps one reading that is at least `SECONDS` old, if there is one, and those after it."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, T]] = deque()

    def add(self, at: float, reading: T) -> None:
        """`at` is in seconds, and grows."""
        self._readings.append((at, reading))
        while len(self._readings) > 2 and self._readings[1][0] <= at - SECONDS:
            self._readings.popleft()

    def clear(self) -> None:
        self._readings.clear()

    @property
    def oldest(self) -> tuple[float, T] | None:
        """When the oldest of them was taken, and what it was; None if there is none."""
        return self._readings[0] if self._readings else None
