"""A line projects the topics of one consumer group in a loop: poll, map, write, checkpoint.

The position of each partition is stored in Redis with the documents. A line resumes from these positions when it
starts, and returns to them after every failure: a lost connection, a rebalance, a Redis that lost writes. Reading
records twice is always safe, since versions guard every write.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import assert_never

from projector import defect
from projector.dead_letter import DeadLetter
from projector.errors import LineStopped, Refused, SessionEnded, Superseded, Unavailable
from projector.kafka.accepted import AcceptedRecords
from projector.kafka.reader import Source
from projector.ledger.control import Checkpointed, ControlChanged, Covered, WentBack, partition_named
from projector.ledger.ledger import Ledger
from projector.line.batch import BadRecordGuard, Batch
from projector.line.metrics import DEFECTS, PARKED, REWINDS, UNAVAILABLE, LineMetrics, UnknownFields
from projector.line.pace import Pacer
from projector.line.placement import Placement
from projector.line.policy import Clock, Policy
from projector.line.positions import Positions
from projector.liveness import LineHealth
from projector.record import Partition, Record, count_by_topic
from projector.redis.store import Store
from projector.stop import Stop
from runtime.background import BackgroundCall
from schemas import names
from schemas.heartbeat import FailingLine

_LOG_HALT_SECONDS = 30.0
_LOGGED_BAD_RECORDS = 10
"""Maximum number of bad records that are logged one by one for each checkpoint."""

logger = logging.getLogger(__name__)


class Line:
    """Projects the topics of `kinds`. Call `run` once; `health` may be read from any thread.

    A live line ends by itself only with Refused, for example if a topic has too many partitions. If there are too many
    bad records, it halts until an operator intervenes. After an unexpected error, it tries the step again until it
    succeeds. With `ends`, `run` raises LineStopped or the unexpected error instead.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        accepted: AcceptedRecords,
        store: Store,
        ledger: Ledger,
        policy: Policy,
        pacer: Pacer | None = None,
        clock: Clock = time,
        *,
        ends: bool = False,
    ) -> None:
        """`accepted` are the bad records that an operator has accepted: they become dead letters as well, and never
        halt the line.
        """
        self._name = name
        self._source = source
        self._accepted = accepted
        self._store = store
        self._policy = policy
        self._pacer = pacer or Pacer()
        self._clock = clock
        self._ends = ends
        self._positions = Positions(name, source, ledger, clock)
        self._check = BackgroundCall(self._positions.check)
        self._exchange = BackgroundCall(self._positions.exchange)
        self._guard = BadRecordGuard(policy.bad_share, policy.bad_row)
        self._fanning_out: Batch | None = None
        """The written batch whose fan-outs are under way. It is covered as soon as they have ended."""
        self._filling: Batch | None = None
        """The batch of the records written after that one. Its fan-outs begin when those of `_fanning_out` have ended,
        so that changes of one contact share a fan-out."""
        self._round = 0
        """The value of `Positions.round` when both batches were written."""
        self._checked_at = 0.0
        self._covering = asyncio.Lock()
        self._metrics = LineMetrics(name)
        self.health = LineHealth(name)
        self.topics = source.topics
        self._unknown_fields = UnknownFields(self.topics)
        self._placement = Placement()

    def misplaced(self) -> list[str]:
        """Returns the topics with records in other partitions than murmur2 gives."""
        return self._placement.misplaced(self._clock.monotonic())

    @property
    def member_id(self) -> str:
        """The name of this line in the consumer group; empty if it is no member."""
        return self._source.member_id

    def assigned(self) -> set[Partition]:
        """Returns the partitions that Kafka has assigned to this line now."""
        return self._source.assigned()

    async def run(self, stop: Stop) -> None:
        """Project until `stop` is set; then finish the current batch and leave the group."""
        await self._start(stop)
        pause = self._policy.first_pause
        try:
            while not stop.is_set():
                try:
                    await self._step()
                    if not self.health.fails:
                        pause = self._policy.first_pause
                except LineStopped as error:
                    await self._halt(error, stop)
                except Superseded as error:
                    await self._wait_while_superseded(error, stop)
                except SessionEnded:
                    self._positions.reset()  # the next session logs what has changed
                except Refused:
                    raise
                except Exception as error:  # noqa: BLE001 - the other line must not end because this one fails
                    self._on_failure(error)
                    await stop.sleep(pause)
                    is_outage = isinstance(error, Unavailable)
                    longest = self._policy.longest_pause if is_outage else self._policy.longest_pause_after_defect
                    pause = min(2 * pause, longest)
            await self._exchange.ended()
            await self._positions.commit()
        finally:
            await self._check.cancel()
            await self._exchange.cancel()
            self._positions.end()
            await self._source.stop()

    async def _start(self, stop: Stop) -> None:
        """Join the group, as soon as Kafka is available."""
        while not stop.is_set():
            try:
                await self._source.start(self._on_revoked)
            except Unavailable as error:
                self._on_failure(error)
                await stop.sleep(1.0)
            else:
                return

    async def _step(self) -> None:
        """Project one batch, if there are records. Raises Unavailable, LineStopped, Superseded or Refused."""
        self._accepted.forget(self._source.unpositioned())  # operators may have accepted other records meanwhile
        if difference := await self._positions.ensure_positioned():
            if difference.emptied:
                self._metrics.count(REWINDS)
            level = logging.WARNING if difference.emptied else logging.INFO
            state = self._positions.session.record.state
            logger.log(
                level,
                "%s: the line reads again from the stored positions",
                difference.text,
                extra=self._fields() | {"live": state.live, "written": state.written, "dropping": state.dropping},
            )
        self._forget_former_batches()
        wait = 0.0 if self._fanning_out or self._filling else self._policy.poll
        polled = await self._source.poll(self._policy.batch_records, wait)
        if await self._start_over_if_history_was_lost(polled, self._uncovered_ends()):
            return
        # A revocation waits until this block ends: until the batch is covered, or some steps of its fan-outs are made.
        async with self._covering:
            if self._forget_former_batches():
                return  # Kafka has revoked partitions meanwhile, and these records are read again
            if polled:
                await self._project(polled)
            await self._cover_what_is_complete(0.0 if polled else self._policy.fan_out)
        self.health.alive()
        await self._check_every_second()

    async def _project(self, polled: dict[Partition, list[Record]]) -> None:
        """Maps and writes these records, and those that further polls return within 20 ms. While fan-outs are under
        way, the records are added to `_filling`. If anything fails before a checkpoint, they are read again.
        """
        guard = self._fanning_out.guard if self._fanning_out else self._guard
        batch = self._filling or Batch(guard.fork(), self._policy, self._accepted.find, self._clock)
        while polled:
            counted = len(batch.counted)
            await self._write(polled, batch)
            # The line learned which records are accepted when it began to read each partition. If an operator has since
            # accepted bad records of this batch, the batch is read again, and they do not count.
            if await self._accepted.include_any(batch.counted[counted:]):
                self._positions.reset()
                return
            if self._fanning_out or not batch.takes_more:
                break
            polled = await self._source.more(batch.left, batch.wait)
            if await self._start_over_if_history_was_lost(polled, batch.ends()):
                return
        self._filling = batch

    async def _cover_what_is_complete(self, fan_out_seconds: float) -> None:
        """Makes steps of the fan-outs of the batch that was written first: for some time, but at least one. When all of
        them have ended, stores the positions after this batch.

        Other records are written between two calls, so they do not wait for a contact with many leads. They are
        visible at once, and covered later.
        """
        self._forget_former_batches()  # `_project` may have returned to the stored positions
        if self._fanning_out is None:
            self._fanning_out, self._filling = self._filling, None
        batch = self._fanning_out
        if batch is None:
            return
        if batch.fan_outs and await batch.fan_out(self._positions.session, self._store, fan_out_seconds):
            self.health.advanced()
        if not batch.fan_outs:
            self._fanning_out = None
            await self._cover(batch)

    def _forget_former_batches(self) -> bool:
        """Forget what was written before the line returned to the stored positions: it is read again. Returns whether
        the line has returned to them since the last call.
        """
        if self._round == self._positions.round:
            return False
        self._round = self._positions.round
        self._fanning_out = self._filling = None
        return True

    def _uncovered_ends(self) -> dict[Partition, int]:
        """Returns, for each partition, the offset behind the last record that was written and is not covered."""
        batches = (self._fanning_out, self._filling)
        return {partition: end for batch in batches if batch for partition, end in batch.ends().items()}

    async def _cover(self, batch: Batch) -> None:
        """Store the positions after a batch."""
        dead_letters = await without_deleted(self._store, batch.dead_letters)
        if self._act_on(await self._positions.cover(batch.advances(self._positions.offsets), dead_letters)):
            self._guard = batch.guard
            self.health.advanced()
            self._metrics.batch(batch.applied, len(batch.dead_letters), batch.seconds, batch.freshness)
            _report(dead_letters)
            now, state = self._clock.monotonic(), self._positions.session.record.state
            self._unknown_fields.look(batch.last, now)
            self._placement.look(batch.last, state.partitions, now)
            await erase_late(self._store, dead_letters)

    async def _write(self, polled: dict[Partition, list[Record]], batch: Batch) -> None:
        """Map these records and write them. They are visible then, and no position covers them yet."""
        await self._accepted.learn(polled)  # asks Kafka only about partitions that are new to this line
        await batch.write(polled, self._positions.session, self._store, self._pacer)

    async def _start_over_if_history_was_lost(
        self, polled: dict[Partition, list[Record]], ends: dict[Partition, int]
    ) -> bool:
        """Starts over if these records do not follow those that were applied, or written up to `ends`. They may come
        from another cluster, from before the position, or from a new leader that lacks records of the former one; or
        records between may have been deleted. `Positions.ensure_positioned` finds out which. Returns whether the line
        starts over.
        """
        if await self._source.is_elsewhere(self._positions.session.record.state.cluster):
            self._positions.reset()
        elif before := self._positions.ahead_of(polled, ends):
            await self._positions.start_over(before)
        elif self._source.has_jumped or await self._source.was_cut_off():
            self._positions.reset()
        else:
            return False
        return True

    async def _check_every_second(self) -> None:
        """Compare the positions with Redis, with the readable ends and with the topics, and copy them to Kafka. The
        reads for that run in the background, while the next batches are written.
        """
        self._act_on(self._check.take_answer())
        if (answer := self._exchange.take_answer()) is not None:
            readable_ends, topic_ids = answer
            if self._positions.are_of_former_topics(topic_ids):
                self._positions.reset()
                return
            if not self._fanning_out and not self._filling:
                self._act_on(await self._positions.pass_markers(readable_ends))
            if self._positions.are_at(readable_ends):
                self.health.advanced()
        now = self._clock.monotonic()
        if now - self._checked_at < self._policy.check:
            return
        self._checked_at = now
        self._positions.keep_assigned()
        self._check.begin()
        self._exchange.begin()

    def _act_on(self, outcome: Checkpointed | None) -> bool:
        """Lets the line read again from the stored positions if Redis has lost writes, or if the control record has
        changed. Returns whether positions were stored.
        """
        match outcome:
            case None:
                return False
            case Covered():
                return True
            case WentBack(fields):
                self._metrics.count(REWINDS)
                logger.warning(
                    "Redis has lost writes of this projector: the line reads again from the stored positions",
                    extra=self._fields() | {"partitions": count_by_topic(map(partition_named, fields))},
                )
            case ControlChanged():
                pass  # the next session logs what has changed
            case unknown:
                assert_never(unknown)
        self._positions.reset()
        return False

    async def _on_revoked(self) -> None:
        """Lets the current batch finish before Kafka revokes partitions, then forgets the positions."""
        async with self._covering:
            await self._positions.release()

    def _on_failure(self, error: Exception) -> None:
        """Returns to the stored positions, after a defect too: its cause may pass, and a restart would do no more."""
        if isinstance(error, Unavailable):
            self._metrics.count(UNAVAILABLE)
            self.health.failed(error)
            logger.warning(
                "Redis or Kafka is not available: the line tries again", extra=self._fields() | {"error": str(error)}
            )
        else:
            if self._ends:
                raise error
            self._metrics.count(DEFECTS)
            defect.report(f"the line {self._name}", error)
            self.health.stops(FailingLine(self._name, type(error).__name__))
        self._positions.reset()

    async def _halt(self, error: LineStopped, stop: Stop) -> None:
        """Do nothing until `stop`, or until an operator has accepted bad records; then read the batch again."""
        if not await self._accepted.include_any(error.bad):
            if self._ends:
                raise error
            self.health.stops(error.halt)
            self._positions.end()
            await self._wait_until_accepted(error, stop)
            self.health.resumes()
        self._guard.forgive(self._accepted.find)
        self._positions.reset()

    async def _wait_until_accepted(self, error: LineStopped, stop: Stop) -> None:
        """Waits as a member of the group, so that no other projector gets the same bad records."""
        logged_at = -_LOG_HALT_SECONDS
        while not (stop.is_set() or await self._accepted.include_any(error.bad)):
            if self._clock.monotonic() - logged_at >= _LOG_HALT_SECONDS:
                logged_at = self._clock.monotonic()
                logger.error(
                    "the line is halted and skips nothing. Fix the producer or the projector, or raise the limit, then "
                    "restart the projector: it resumes where it stopped. %s",
                    error,
                    extra=self._fields(),
                )
            with suppress(Unavailable):
                await self._source.stay()
            await stop.sleep(self._policy.halted)
        if not stop.is_set():
            logger.info("bad records were accepted: the line resumes", extra=self._fields())

    async def _wait_while_superseded(self, error: Superseded, stop: Stop) -> None:
        """Leaves the partitions to newer programs. Takes part again when this program may write, because the newer
        generation was dropped.
        """
        logger.warning(
            "the line is standing by: %s. Deploy the newer program here as well.", error, extra=self._fields()
        )
        self.health.stops(error.reason)
        self._positions.reset()
        self._source.leave()
        while not stop.is_set() and await self._is_superseded():
            await stop.sleep(self._policy.superseded)
        self._source.join()
        self.health.resumes()

    async def _is_superseded(self) -> bool:
        try:
            await self._positions.ensure_positioned()
        except (Superseded, Unavailable):
            return True
        return False

    def _fields(self) -> dict[str, object]:
        """Returns the extra fields of every log line."""
        return {"line": self._name}


async def without_deleted(store: Store, dead_letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Returns these dead letters without those of deleted organizations, whose good records are dropped as well. If an
    organization is recreated, its records are read again, and the bad ones are parked then.

    A bad record of the organization itself is always parked: it may have been meant to recreate the organization.
    Raises Unavailable.
    """
    deleted = await _deleted_organizations(store, dead_letters)
    return [
        dead_letter
        for dead_letter in dead_letters
        if dead_letter.is_of_organization or dead_letter.organization_id not in deleted
    ]


def _report(parked: Sequence[DeadLetter]) -> None:
    """Counts dead letters that were stored, and logs the first ten."""
    for letter in parked:
        PARKED.labels(letter.topic, letter.fault.label if letter.fault else "other").inc()
    for letter in parked[:_LOGGED_BAD_RECORDS]:
        trace = {"trace_id": letter.fault.trace_id} if letter.fault and letter.fault.trace_id else {}
        logger.warning(
            "a bad record became a dead letter",
            extra={"record": letter.field, "reason": letter.reason, "accepted": letter.accepted} | trace,
        )
    if len(parked) > _LOGGED_BAD_RECORDS:
        logger.warning(
            "more bad records became dead letters: `dead-letters list` shows them",
            extra={"dead_letters": len(parked) - _LOGGED_BAD_RECORDS},
        )


async def erase_late(store: Store, parked: Sequence[DeadLetter]) -> None:
    """Add a job that erases these dead letters if their organization was deleted while they were being stored.

    The erasure of the organization may have ended before they were stored. Raises Unavailable.
    """
    deleted = await _deleted_organizations(store, parked)
    if deleted:
        await store.add_jobs(f"erase {organization_id}" for organization_id in sorted(deleted))


async def _deleted_organizations(store: Store, dead_letters: Sequence[DeadLetter]) -> set[str]:
    ids = sorted({found for dead_letter in dead_letters if (found := dead_letter.organization_id)})
    if not ids:
        return set()
    states = await store.ask([(b"GETRANGE", names.organization(found), 0, 0) for found in ids])
    return {found for found, state in zip(ids, states, strict=True) if state not in (b"", b"L")}
