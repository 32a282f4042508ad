"""Takes a picture every second, for all pages together: what Redis and Kafka are asked does not depend on them.

The console is asking Redis at most a twentieth of the time: after a reading that took long, it waits for longer.
"""

import asyncio
import time
from contextlib import suppress

from projector import defect
from projector.console.actions import Actions
from projector.console.api_figures import ApiMetrics, Recent
from projector.console.feed import Feed
from projector.console.picture import Totals, picture, totals
from projector.console.replay import ReplayReader
from projector.errors import Unavailable
from projector.operate.observe import Observation, Observer
from projector.redis.store import Store
from schemas.settings import ProjectorSettings

EVERY_SECONDS = 1.0
SHARE = 0.05
"""Of the time, at most during so much of it a command of the sampler is under way in Redis."""
_LONGEST_PAUSE_SECONDS = 60.0


class Sampler:
    """Publishes a picture again and again, until it is cancelled."""

    def __init__(
        self, store: Store, settings: ProjectorSettings, api: ApiMetrics, actions: Actions | None, feed: Feed
    ) -> None:
        self._observer = Observer(store, settings)
        self._api = api
        self._actions = actions
        self._feed = feed
        self._replay = ReplayReader(store)
        self._totals: Recent[Totals] = Recent()

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
        found, api = await asyncio.gather(self._observer.observe(), self._api.take())
        began = time.monotonic()
        replay = None
        with suppress(Unavailable):
            replay = await self._replay.take(found)
        asked = found.redis_seconds + time.monotonic() - began
        action = self._actions.newest if self._actions else None
        self._feed.publish(picture(found, self._totals.oldest, api, replay, action))
        self._remember(found)
        # A Redis that did not answer was not kept busy, and that it answers again is to be seen at once.
        return asked if found.redis else 0.0

    def _remember(self, found: Observation) -> None:
        sums = totals(found)
        if sums is None:
            self._totals.clear()
        else:
            self._totals.add(found.at / 1000, sums)


def pause(asked: float, took: float) -> float:
    """Returns how many seconds to wait after a reading that took so long, during which Redis was asked for `asked`."""
    return min(max(EVERY_SECONDS - took, asked * (1 / SHARE - 1), 0.1), _LONGEST_PAUSE_SECONDS)
