"""Takes a picture every second, and hands it to every page that is open: what Redis and Kafka are asked does not depend
on the number of pages. A page that is slow misses pictures, and delays nobody.

The console is asking Redis at most a twentieth of the time: after a reading that took long, it waits for longer.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from operate.api_figures import ApiMetrics, RecentFigures
from operate.console.picture import Picture, Point, Totals, picture, point, totals
from operate.console.replay import ReplayReader
from projector import defect
from projector.errors import Unavailable
from projector.health.observe import Observer
from projector.ledger import acts
from projector.redis.store import Store
from schemas.settings import ProjectorSettings

HISTORY_SECONDS = 900
MOST_PAGES = 32
"""How many pages may be open at the same time."""
EVERY_SECONDS = 1.0
SHARE = 0.05
"""The sampler keeps Redis busy for at most this share of the time."""
_LONGEST_PAUSE_SECONDS = 60.0
_ACTS = 10
"""The number of the latest acts that are shown."""


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

    def open(self, hello: bytes) -> AsyncIterator[bytes] | None:
        """Returns the events for one page, which begin with `hello`, JSON; None if too many pages are open."""
        if self._open >= MOST_PAGES:
            return None
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


class Sampler:
    """Publishes a picture again and again, until it is cancelled."""

    def __init__(self, store: Store, settings: ProjectorSettings, api: ApiMetrics, feed: Feed) -> None:
        self._store = store
        self._observer = Observer(store, settings)
        self._api = api
        self._feed = feed
        self._replay = ReplayReader(store)
        self._totals: RecentFigures[Totals] = RecentFigures()

    async def run(self) -> None:
        try:
            while True:
                began = time.monotonic()
                try:
                    asked = await self._take()
                except Exception as error:  # noqa: BLE001 - the page must not stand still because one picture failed
                    defect.report("a picture of the console", error)
                    asked = 0.0
                await asyncio.sleep(pause(asked, time.monotonic() - began))
        finally:
            await self._observer.close()

    async def _take(self) -> float:
        """Publish a picture. Returns for how many seconds Redis was being asked."""
        observed, api = await asyncio.gather(self._observer.observe(), self._api.take())
        found = replace(observed, api=api)
        began = time.monotonic()
        replay, latest = None, list[acts.Act]()
        with suppress(Unavailable):
            replay = await self._replay.take(found)
            latest = await acts.read(self._store, _ACTS)
        asked = found.redis_seconds + time.monotonic() - began
        self._feed.publish(picture(found, self._totals.oldest, replay, latest))
        if (sums := totals(found)) is None:
            self._totals.clear()
        else:
            self._totals.add(found.at / 1000, sums)
        # A Redis that did not answer was not kept busy, and that it answers again is to be seen at once.
        return asked if found.redis else 0.0


def pause(asked: float, took: float) -> float:
    """Returns how many seconds to wait after a reading that took so long, during which Redis was asked for `asked`."""
    return min(max(EVERY_SECONDS - took, asked * (1 / SHARE - 1), 0.1), _LONGEST_PAUSE_SECONDS)
