"""Hands the newest picture to every page that is open. A page that is slow misses pictures, and delays nobody."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from projector.console.picture import Picture, Point, point

HISTORY_SECONDS = 900
MOST_PAGES = 32
"""How many pages may be open at the same time."""


class Full(Exception):
    """Too many pages are open."""


class Feed:
    """The newest picture, and the points of the last 15 minutes."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque()
        self._newest = b""
        self._changed = asyncio.Event()
        self._open = 0
        self.ended = False

    def publish(self, shown: Picture) -> None:
        """Take a picture, and wake every page."""
        self._points.append(point(shown))
        while self._points[0].at < shown.at - HISTORY_SECONDS * 1000:
            self._points.popleft()
        self._newest = _event("picture", msgspec.json.encode(shown))
        self._wake()

    def end(self) -> None:
        """Let all pages go."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def open(self, hello: bytes) -> AsyncIterator[bytes]:
        """Returns the events for one page, which begin with `hello`, JSON. Raises Full."""
        if self._open >= MOST_PAGES:
            raise Full
        self._open += 1
        return self._events(hello)

    async def _events(self, hello: bytes) -> AsyncIterator[bytes]:
        try:
            yield _event("hello", hello)
            yield _event("history", msgspec.json.encode(list(self._points)))
            if self._newest:
                yield self._newest
            while not self.ended:
                await self._changed.wait()
                if not self.ended:
                    yield self._newest
        finally:
            self._open -= 1


def _event(name: str, json: bytes) -> bytes:
    """Returns a server-sent event. JSON has no line breaks here."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json)
