"""Writes a batch into Redis while the rest of it is decoded."""

import asyncio
import time
from collections.abc import Iterator

from projector.intent import Intent
from projector.ledger.writers import Session
from projector.line.batch import Batch
from projector.line.pace import Pacer
from projector.redis.applier import Applied, Applier
from projector.redis.store import Store

_LONG_SECONDS, _REST = 0.01, 0.25


class Writer:
    """Writes slices while the next ones are decoded: a few at once, in any order, since versions guard every write."""

    def __init__(self, store: Store, pacer: Pacer) -> None:
        self._applier = Applier(store)
        self._pacer = pacer

    async def write(self, batch: Batch, session: Session) -> Applied:
        """Write all of the batch, in the generations of the session.

        Raises Unavailable, or LineStopped if the batch has too many bad records.
        """
        applied = Applied()
        pace = await self._pacer.pace(batch.size)
        in_flight: set[asyncio.Task[Applied]] = set()
        try:
            for intents, seconds in _timed(batch.slices(pace.slice_records)):
                await self._pacer.wait()
                if len(in_flight) == pace.slices_in_flight:
                    _add(applied, in_flight, await _first_of(in_flight))
                applying = self._applier.apply(
                    intents, session.generations, fence=session, max_documents=pace.max_documents
                )
                in_flight.add(asyncio.create_task(applying))
                # Lets the slice be sent, and Kafka's heartbeat run. A change of access needs many turns of the event
                # loop, so after a slice that took long the other line has some time for itself.
                await asyncio.sleep(seconds * _REST if seconds > _LONG_SECONDS else 0)
            while in_flight:
                _add(applied, in_flight, await _first_of(in_flight))
        finally:
            await asyncio.gather(*in_flight, return_exceptions=True)  # empty unless something failed
        if batch.stopped:
            raise batch.stopped
        applied.stale += batch.left_out
        return applied


def _timed(slices: Iterator[list[Intent]]) -> Iterator[tuple[list[Intent], float]]:
    """Yields each slice with the seconds that it took to decode it."""
    started = time.perf_counter()
    for intents in slices:
        yield intents, time.perf_counter() - started
        started = time.perf_counter()


async def _first_of(in_flight: set[asyncio.Task[Applied]]) -> set[asyncio.Task[Applied]]:
    """Wait until at least one task has finished. Returns all finished tasks."""
    done, _ = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
    return done


def _add(applied: Applied, in_flight: set[asyncio.Task[Applied]], done: set[asyncio.Task[Applied]]) -> None:
    """Move finished tasks out of `in_flight` and count their results. Raises what the first failed task raised."""
    in_flight -= done
    # All of them are asked: asyncio reports the error of a task that nobody has asked.
    errors = [error for task in done if (error := task.exception())]
    if errors:
        raise errors[0]
    for task in done:
        applied.add(task.result())
