"""A line: poll, map, write, checkpoint, for the topics of one consumer group.

The position of each partition stands in Redis with the data; Kafka only hears of it. A line starts there, and returns
there after every trouble: a lost connection, a rebalance, a Redis that went back in time. Going over records once more
is always safe.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import assert_never

from projector.errors import LineStopped, Superseded, Unavailable
from projector.kafka.source import Source
from projector.ledger import generations
from projector.ledger.checkpoint import NONE, GenerationsChanged, Position, Step, Stored, WentBack
from projector.ledger.ledger import FIRST, Ledger
from projector.line.already_applied import shown_times
from projector.line.batch import Batch
from projector.line.guard import BadRecordGuard
from projector.line.health import LineHealth
from projector.line.metrics import DEAD_LETTERS, LineMetrics
from projector.line.pace import WIDE, Burst
from projector.record import Kind, Partition, Record
from projector.redis.applier import Applied, Applier
from projector.redis.store import Store
from projector.stop import Stop
from schemas import names
from schemas.settings import ProjectorSettings

_WAIT_SECONDS = 0.5
_LOOK_SECONDS = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

logger = logging.getLogger(__name__)


class Line:
    """Projects the topics of `kinds`. Start it with `run`, once; `health` may be asked from any thread."""

    def __init__(
        self,
        name: str,
        settings: ProjectorSettings,
        kinds: Sequence[Kind],
        group_id: str,
        store: Store,
        ledger: Ledger,
    ) -> None:
        self._name = name
        self._most = settings.batch_records
        self._store = store
        self._applier = Applier(store)
        self._source = Source(settings, kinds, group_id, self._let_go)
        self._guard = BadRecordGuard(settings.dead_letter_share, settings.dead_letter_row)
        self._ledger = ledger
        self._writing = FIRST
        self._positions: dict[Partition, int] = {}
        self._uncommitted: dict[Partition, int] = {}
        # Most of the last batch was there already: then it pays to ask before records are decoded.
        self._reading_again = False
        self._looked_at = 0.0
        self._covering = asyncio.Lock()
        self._metrics = LineMetrics(name)
        self.health = LineHealth(name)

    async def run(self, stop: Stop) -> None:
        """Project until `stop` is set; then finish the batch in hand, and leave the group."""
        await self._start(stop)
        pause = _FIRST_PAUSE
        try:
            while not stop.is_set():
                try:
                    await self._step()
                    pause = _FIRST_PAUSE
                except Unavailable as error:
                    self._trouble(error)
                    await stop.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                except LineStopped as error:
                    await self._stand_still(error, stop)
                except Superseded as error:
                    await self._stand_by(error, stop)
            await self._commit()
        finally:
            await self._source.stop()

    async def _start(self, stop: Stop) -> None:
        while not stop.is_set():
            try:
                await self._source.start()
            except Unavailable as error:
                self._trouble(error)
                await stop.sleep(1.0)
            else:
                return

    async def _step(self) -> None:
        """One turn. Raises Unavailable or LineStopped, and then has moved no position."""
        await self._place()
        polled = await self._source.poll(self._most, _WAIT_SECONDS)
        if await self._were_made_again(polled):
            return
        async with self._covering:  # a revoke waits for the batch to be covered
            if polled:
                await self._project(polled)
        self.health.alive()
        await self._look_around()

    async def _project(self, polled: dict[Partition, list[Record]]) -> None:
        started = time.monotonic()
        guard = self._guard.trial()
        shown = await shown_times(self._store, polled, self._writing) if self._reading_again else None
        batch = Batch(polled, guard, shown)
        applied = await self._write(batch)
        self._reading_again = 2 * applied.stale > batch.size
        covered = await self._cover(batch.steps(self._positions), batch)
        if covered:
            self._guard = guard
            self.health.advanced()
            seconds = time.monotonic() - started
            self._metrics.batch(applied, len(batch.dead_letters), seconds, batch.freshness())

    async def _write(self, batch: Batch) -> Applied:
        """Write slices while the next ones are decoded: a few at once, in any order: versions guard each write."""
        applied = Applied()
        burst = await self._burst()
        writing: set[asyncio.Task[Applied]] = set()
        try:
            for intents in batch.slices(burst.slice):
                await self._pace()
                if len(writing) == burst.slices:
                    _add(applied, writing, await _first_of(writing))
                applying = self._applier.apply(intents, self._writing, together=burst.documents)
                writing.add(asyncio.create_task(applying))
                await asyncio.sleep(0)  # lets the slice out, and a heartbeat in
            while writing:
                _add(applied, writing, await _first_of(writing))
        finally:
            await asyncio.gather(*writing, return_exceptions=True)  # none where all went well
        if batch.stopped:
            raise batch.stopped
        applied.stale += batch.left_out
        return applied

    async def _cover(self, steps: dict[Partition, Step], batch: Batch | None = None) -> bool:
        """Store the new positions, with the batch's dead letters. False where the batch is to be written again."""
        letters = batch.dead_letters if batch else []
        match await self._ledger.cover(self._writing, steps, letters):
            case Stored(dead_letters):
                DEAD_LETTERS.set(dead_letters)
                moved = {partition: step.position.offset for partition, step in steps.items()}
                self._positions |= moved
                self._uncommitted |= moved
                return True
            case WentBack(fields):
                self._went_back(fields)
            case GenerationsChanged():
                self._generations_changed()
            case unknown:
                assert_never(unknown)
        return False

    async def _place(self) -> None:
        """Start newly assigned partitions where Redis says, in the generations that are being written."""
        unplaced = self._source.unplaced()
        if not unplaced:
            return
        self._writing = await self._ledger.writing()
        await generations.check_mapping(self._store, self._writing)
        stored = await self._ledger.positions(unplaced)
        placed = await self._source.place(stored)
        known = {partition: NONE if offset is None else offset for partition, offset in stored.items()}
        self._positions |= known | await self._forget(
            {p: known[p] for p, offset in placed.items() if offset < known[p]}
        )
        offsets = {names.position(*partition): offset for partition, offset in placed.items()}
        logger.info("reading on", extra=self._who() | {"offsets": offsets})

    async def _were_made_again(self, polled: dict[Partition, list[Record]]) -> bool:
        """Records before our position come from a topic that was deleted and made again under us: start it over."""
        at = {partition: self._positions.get(partition, NONE) for partition in polled}
        lower = {partition: at[partition] for partition, records in polled.items() if records[0].offset < at[partition]}
        if lower:
            await self._forget(lower)
            self._start_over()
        return bool(lower)

    async def _forget(self, offsets: dict[Partition, int]) -> dict[Partition, int]:
        """Give up positions that mean nothing any more: they never go back by themselves, and what is read again from
        the beginning would count as read until it reached them. Where these partitions stand now."""
        if offsets:
            logger.warning(
                "topics were made again: reading them from the beginning",
                extra=self._who() | {"positions": {names.position(*p): offset for p, offset in offsets.items()}},
            )
            await self._ledger.forget(offsets)
        return dict.fromkeys(offsets, NONE)

    async def _look_around(self) -> None:
        """Every second: how far Redis is, and the head of each partition; tell Kafka how far we are."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        await self._check_generations()
        await self._check_positions()
        await self._measure_lag()
        await self._commit()

    async def _check_generations(self) -> None:
        """A quiet line hears of a rebuild, or of a drop, before its next record: it would show in one generation only
        until the checkpoint refuses it."""
        if self._positions and await self._ledger.writing() != self._writing:
            self._generations_changed()

    async def _check_positions(self) -> None:
        """A quiet line notices as well that Redis was emptied or went back in time."""
        known = dict(self._positions)
        stored = await self._ledger.positions(list(known))
        fields = [
            names.position(*partition)
            for partition, offset in stored.items()
            if (NONE if offset is None else offset) < known[partition]
        ]
        if fields:
            self._went_back(fields)

    async def _measure_lag(self) -> None:
        ends = await self._source.ends(self._positions)
        await self._pass_markers(ends)
        lags = {partition: end - max(self._positions.get(partition, 0), 0) for partition, end in ends.items()}
        self.health.lag(sum(lags.values()))
        self._metrics.lag(lags)

    async def _pass_markers(self, ends: dict[Partition, int]) -> None:
        """Transaction markers and compacted records end a partition without a record: move past them."""
        steps = {}
        for partition, end in ends.items():
            reached = await self._source.reached(partition)
            at = self._positions.get(partition)  # none where it was taken away meanwhile
            if at is not None and at < end == reached:
                steps[partition] = Step(at, Position(end, 0, int(time.time() * 1000)))
        if steps:
            await self._cover(steps)

    async def _commit(self) -> None:
        wanted, self._uncommitted = self._uncommitted, {}
        try:
            await self._source.commit(wanted)
        except Unavailable as error:
            # Only lag tools read it; the next commit says it again.
            logger.warning("offsets not committed to Kafka", extra=self._who() | {"error": str(error)})

    async def _let_go(self) -> None:
        """Partitions are being taken away: cover the batch in hand, tell Kafka, forget them."""
        async with self._covering:
            await self._commit()
            self._positions.clear()
            self._uncommitted.clear()

    async def _burst(self) -> Burst:
        """Called before each batch: a line that must yield to others writes less at once."""
        return WIDE

    async def _pace(self) -> None:
        """Called before each slice: a line that must yield to others does it here."""

    def _generations_changed(self) -> None:
        logger.info("the generations have changed: writing the batch again", extra=self._who())
        self._start_over()

    def _went_back(self, fields: list[str]) -> None:
        self._metrics.rewound()
        logger.warning(
            "Redis is behind what this projector wrote: reading again from where it stands",
            extra=self._who() | {"positions": fields},
        )
        self._start_over()

    def _start_over(self) -> None:
        self._positions.clear()
        self._source.displace(self._source.assigned())

    def _trouble(self, error: Unavailable) -> None:
        self._metrics.unavailable()
        self.health.trouble(str(error))
        logger.warning("not available, trying again", extra=self._who() | {"error": str(error)})
        self._start_over()

    async def _stand_still(self, error: LineStopped, stop: Stop) -> None:
        """Stay a member of the group, so that no other projector walks into the same records; say so, loudly."""
        self._metrics.stopped()
        self.health.stopped(str(error))
        self._source.pause()
        while not stop.is_set():
            logger.error(
                "line stopped: %s. Nothing was skipped. Mend the producer or the projector, or raise the limit, then "
                "start it again: it goes on where it stopped",
                error,
                extra=self._who(),
            )
            with suppress(Unavailable):
                await self._source.poll(1, 0)  # paused, so nothing comes; but who never polls is put out of the group
            await stop.sleep(30.0)

    async def _stand_by(self, error: Superseded, stop: Stop) -> None:
        """Leave the partitions to newer programs, until they are ours to write again (after a rollback, say)."""
        logger.warning("standing by: %s; deploy it here too", error, extra=self._who())
        self._positions.clear()
        self._source.leave()
        while not stop.is_set() and await self._is_superseded():
            self.health.alive()
            await stop.sleep(_LOOK_SECONDS)
        self._source.join()

    async def _is_superseded(self) -> bool:
        try:
            await generations.check_mapping(self._store, await self._ledger.writing())
        except (Superseded, Unavailable):
            return True
        return False

    def _who(self) -> dict[str, object]:
        return {"line": self._name}


async def _first_of(writing: set[asyncio.Task[Applied]]) -> set[asyncio.Task[Applied]]:
    """Those that are finished, as soon as one is."""
    done, _ = await asyncio.wait(writing, return_when=asyncio.FIRST_COMPLETED)
    return done


def _add(applied: Applied, writing: set[asyncio.Task[Applied]], done: set[asyncio.Task[Applied]]) -> None:
    """Count what is finished. Raises what a task raised."""
    writing -= done
    for task in done:
        applied.add(task.result())
