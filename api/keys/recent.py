"""Remembers what was used recently, up to a number."""

from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Holds at most `most` values: once half of them are newer than the others, those others are forgotten.

    `functools.lru_cache` would keep the arguments of its function, which may be secrets.
    """

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._newer: dict[bytes, T] = {}
        self._older: dict[bytes, T] = {}

    def get(self, name: bytes) -> T | None:
        """Returns the value, which is now one of the newer ones; None if there is none."""
        found = self._newer.get(name)
        if found is None:
            found = self._older.pop(name, None)
            if found is not None:
                self.put(name, found)
        return found

    def put(self, name: bytes, value: T) -> None:
        if len(self._newer) >= self._half and name not in self._newer:
            self._older, self._newer = self._newer, {}
        self._newer[name] = value

    def remove(self, name: bytes) -> None:
        self._newer.pop(name, None)
        self._older.pop(name, None)
