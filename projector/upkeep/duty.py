"""Does what one projector does for all of them: it measures Data-As-Of, counts partitions, and looks for evicted keys.

That projector holds a lock, and the others wait until it is free, so the work costs the same however many projectors
there are. The holder also looks most often for what any projector may do, such as jobs. If it dies, the lock expires
within three seconds. If it loses Kafka, or its clock is wrong, for ten seconds, it leaves the lock to the others for
ten seconds. Two that hold it for a moment do no harm.
"""

import asyncio
import logging
import time
from math import inf

from projector.ledger import writers
from projector.ledger.writers import Writing
from projector.stop import Stop, repeat
from projector.upkeep import jobs
from projector.upkeep.as_of import DataAsOf
from projector.upkeep.evictions import Evictions
from projector.upkeep.partitions import Partitions
from schemas import names
from schemas.settings import ProjectorSettings

_SELDOM = 5
_LOCK_SECONDS, _PAUSE_SECONDS = 3, 2.0
_LOOK_SECONDS, _FORGET_SECONDS = 2.0, 60.0
_UNABLE_SECONDS = 10.0
"""The time for which the holder may be unable to take samples. The Data-As-Of that it has stored lasts longer."""
_STANDS_BACK_SECONDS = 10.0
"""The time for which the lock is then left to others, which look more often than this."""

logger = logging.getLogger(__name__)


class Duty:
    """Takes part in a projector, and does the work while it holds the lock."""

    def __init__(self, settings: ProjectorSettings, writing: Writing) -> None:
        self._settings = settings
        self._writing = writing
        self._is_of_another = False
        self._stands_back_until = -inf

    def often(self, seconds: float) -> float:
        """Returns the time between two looks at what any projector may do: these seconds, or `_SELDOM` times as long
        while another projector has the duty.
        """
        return _SELDOM * seconds if self._is_of_another else seconds

    async def run(self, stop: Stop) -> None:
        """Take part until `stop` is set. Retries while Redis or Kafka is unavailable."""

        async def turn() -> None:
            if time.monotonic() < self._stands_back_until:
                return
            # To ask first costs one command, and not those of the script.
            if 0 < await self._writing.store.ask_one(b"PTTL", names.DUTY_LOCK) <= 1000 * _LOCK_SECONDS:
                self._is_of_another = True
                return
            async with jobs.locked(self._writing.store, names.DUTY_LOCK, _LOCK_SECONDS) as lock:
                self._is_of_another = lock is None
                if lock and not await self._work(lock.lost, stop):
                    self._is_of_another = True
                    self._stands_back_until = time.monotonic() + _STANDS_BACK_SECONDS
                    logger.warning(
                        "this projector leaves to others what one does for all: it cannot measure Data-As-Of"
                    )

        await repeat("the duty of one projector", turn, stop, lambda: _PAUSE_SECONDS)

    async def _work(self, lost: Stop, stop: Stop) -> bool:
        """Work until the lock is lost, or until `stop` is set. Returns False if no sample could be taken for
        `_UNABLE_SECONDS`, so that another projector may do better.
        """
        as_of = DataAsOf(self._settings, self._writing)
        partitions = Partitions(self._settings, self._writing, lambda: as_of.seen)
        store, evictions = self._writing.store, Evictions(self._writing.store)

        async def look() -> None:
            await evictions.look(await self._writing.sessions.look(_LOOK_SECONDS))

        async def forget() -> None:
            await writers.forget_silent(store)

        async def unable() -> None:
            while (left := as_of.able_at + _UNABLE_SECONDS - time.monotonic()) > 0:  # noqa: ASYNC110 - it moves
                await asyncio.sleep(left)

        async with asyncio.TaskGroup() as group:
            work = [
                as_of.run(stop),
                partitions.run(stop),
                repeat("the look for evicted keys", look, stop, lambda: _LOOK_SECONDS),
                repeat("the look for silent programs", forget, stop, lambda: _FORGET_SECONDS),
            ]
            waiting = [asyncio.create_task(event.wait()) for event in (lost, stop)]
            tasks = [*map(group.create_task, work), *waiting, is_unable := asyncio.create_task(unable())]
            try:
                await asyncio.wait((*waiting, is_unable), return_when=asyncio.FIRST_COMPLETED)
                return not is_unable.done()
            finally:
                for task in tasks:
                    task.cancel()  # a broker may take long to answer: the lock is not held for that
