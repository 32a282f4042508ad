"""A batch: the records that one checkpoint covers. They are those of one poll, and of further polls within 20 ms. They
are decoded and written slice by slice.

A few bad records are parked, too many halt the line.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from copy import copy
from typing import Literal

import msgspec

from projector.dead_letter import DeadLetter
from projector.errors import BadRecord, Coordinates, LineStopped
from projector.interpret import in_parts, interpret
from projector.kafka.accepted import Acceptance
from projector.ledger.control import Advance, Position
from projector.ledger.ledger import Session
from projector.line.apply import Applied, FanOuts, apply
from projector.line.pace import Pacer
from projector.line.policy import Clock, Policy
from projector.mapping import Intent
from projector.offsets import OffsetRange, by_partition, spans
from projector.record import Partition, Record
from projector.redis.store import Store
from schemas.faults import Fault
from schemas.heartbeat import HaltedLine

WINDOW = 1000
_SLICE_BYTES = 262_144
"""The bytes that are decoded at once. A larger value is read in parts, whose cost `projector.change` bounds."""
_REST = 0.25
"""After a slice that took longer than planned, the other line has the event loop for this share of that time."""


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
        """Returns a copy that counts one batch, and that replaces this guard when the batch is covered. A batch that is
        not covered is read again, and its records must count only once.
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

    def note(self, bad: DeadLetter, fault: Fault) -> None:
        """Count a bad record, unless it is accepted. Raises LineStopped if there are too many."""
        if bad.accepted:
            return
        at = bad.topic, bad.partition, bad.offset
        self._seen += 1
        self._consecutive.append(at)
        self._bad.append((self._seen, at))
        while self._bad[0][0] <= self._seen - WINDOW:
            self._bad.popleft()
        if len(self._consecutive) >= self._max_consecutive:
            raise self._stopped("row", self._max_consecutive, self._consecutive, bad.field, fault)
        if len(self._bad) > self._max_bad:
            raise self._stopped("share", self._max_bad / WINDOW, [at for _, at in self._bad], bad.field, fault)

    @staticmethod
    def _stopped(
        limit: Literal["row", "share"], most: float, counted: Sequence[Coordinates], last: str, fault: Fault
    ) -> LineStopped:
        return LineStopped(HaltedLine(limit, len(counted), WINDOW, most, last, fault), counted)

    def forgive(self, acceptance: Callable[[Coordinates], object]) -> None:
        """Stops counting the bad records for which `acceptance` returns something true."""
        self._bad = deque((number, at) for number, at in self._bad if not acceptance(at))
        self._consecutive = [at for at in self._consecutive if not acceptance(at)]


class Batch:
    """The records that one checkpoint covers: those of a poll, and of further polls as long as it `takes_more`.

    Bad records become `dead_letters`. If there are too many of them, `slices` ends early and `stopped` says why: then
    no checkpoint may cover the batch.
    """

    def __init__(
        self,
        guard: BadRecordGuard,
        policy: Policy,
        acceptance: Callable[[Coordinates], Acceptance | None] = lambda _: None,
        clock: Clock = time,
    ) -> None:
        """`guard` counts the bad records of this batch. `acceptance` finds out whether an operator has accepted one."""
        self.guard = guard
        self._policy = policy
        self._acceptance = acceptance
        self._clock = clock
        self.left = policy.batch_records
        """The number of records that it may still take in; below 0 if the last poll had more."""
        self._began = clock.monotonic()
        self._event_times: dict[Partition, int] = {}
        self._oldest: int | None = None
        """The earliest time of an event in this poll."""
        self.last: dict[Partition, Record] = {}
        """The last record of each partition."""
        self.applied = Applied()
        self.fan_outs = FanOuts()
        """Those that have to be made before a checkpoint covers the batch."""
        self.dead_letters: list[DeadLetter] = []
        self.stopped: LineStopped | None = None
        self.freshness: float | None = None
        """The most seconds from an event until it was written; None if there were bad records only."""

    @property
    def seconds(self) -> float:
        """The time since the batch was begun."""
        return self._clock.monotonic() - self._began

    @property
    def wait(self) -> float:
        """The seconds for which it may still wait for more records."""
        return self._policy.batch - self.seconds

    @property
    def takes_more(self) -> bool:
        """True if another poll may be added. False after a bad record, so that its dead letter is stored at once."""
        return not self.dead_letters and self.left > 0 and self.wait > 0

    def slices(self, polled: Mapping[Partition, list[Record]], size: int) -> Iterator[list[Intent]]:
        """Yields the intents of up to `size` records at a time, fewer if they are large.

        A slice may be empty, so that the caller can do something else between many bad or large records.
        """
        intents: list[Intent] = []
        now, seconds = self._clock.monotonic, self._policy.slice
        left, until = _SLICE_BYTES, now() + seconds
        try:
            for partition, records in polled.items():
                for found in self._intents(partition, records):
                    if found:
                        record, intent = found
                        left -= len(record.value or b"")
                        if intent:
                            intents.append(intent)
                    if not found or len(intents) == size or left <= 0 or now() > until:
                        yield intents
                        intents, left, until = [], _SLICE_BYTES, now() + seconds
        except LineStopped as error:
            # No checkpoint will cover this batch, so the rest of the last slice is not needed.
            yield from self._stop(error, polled, until)
        else:
            yield intents

    async def write(
        self, polled: Mapping[Partition, list[Record]], session: Session, store: Store, pacer: Pacer
    ) -> None:
        """Writes the records of a poll into Redis, in the generations of the session. Up to three slices are written
        while the next one is decoded: versions guard every write, so their order does not matter.

        Raises Unavailable, or LineStopped if there are too many bad records.
        """
        size = sum(map(len, polled.values()))
        pace = await pacer.pace(size)
        in_flight: deque[asyncio.Task[Applied]] = deque()
        try:
            started = self._clock.monotonic()
            for intents in self.slices(polled, pace.slice_records):
                seconds = self._clock.monotonic() - started
                await pacer.wait()
                if len(in_flight) == pace.slices_in_flight:
                    self.applied.add(await in_flight.popleft())
                applying = apply(
                    store,
                    intents,
                    session.generations,
                    fence=session,
                    max_documents=pace.max_documents,
                    fan_outs=self.fan_outs,
                )
                in_flight.append(asyncio.create_task(applying))
                # Lets the slice be sent, and Kafka's heartbeat run. The other line needs many turns of the event loop
                # for a change of access, so it gets more time after a slow slice.
                await asyncio.sleep(seconds * _REST if seconds > self._policy.slice else 0)
                started = self._clock.monotonic()
            while in_flight:
                self.applied.add(await in_flight.popleft())
        finally:
            await asyncio.gather(*in_flight, return_exceptions=True)  # empty unless something failed
        if self.stopped:
            raise self.stopped
        self.left -= size
        self.last |= {partition: records[-1] for partition, records in polled.items()}
        oldest, self._oldest = self._oldest, None
        if oldest is not None:
            self.freshness = max(self.freshness or 0.0, self._clock.time() - oldest / 1000)

    async def fan_out(self, session: Session, store: Store, seconds: float) -> bool:
        """Makes steps of the fan-outs for this time, but at least one. Returns whether any lead was written. Raises
        Unavailable.
        """
        before, until = self.applied.respliced, self._clock.monotonic() + seconds
        while self.fan_outs:
            self.applied.respliced += await self.fan_outs.step(store, session.generations, session)
            if self._clock.monotonic() > until:
                break
        return self.applied.respliced > before

    def _stop(
        self, stopped: LineStopped, polled: Mapping[Partition, list[Record]], until: float
    ) -> Iterator[list[Intent]]:
        """Sets `stopped`, with all bad records that an operator would have to accept. Yields empty slices meanwhile."""
        topic, number, offset = stopped.bad[-1]
        behind: list[Coordinates] = []
        for bad in self._bad_behind(offset, polled[Partition(topic, number)]):
            if bad:
                behind.append(bad)
            if self._clock.monotonic() > until:
                yield []
                until = self._clock.monotonic() + self._policy.slice
        found = [*stopped.bad, *behind]
        halt = msgspec.structs.replace(stopped.halt, bad=len(found), ranges=_ranges(found))
        self.stopped = LineStopped(halt, stopped.bad)

    def ends(self) -> dict[Partition, int]:
        """Returns the offset behind the last record of each partition."""
        return {partition: record.next_offset for partition, record in self.last.items()}

    def advances(self, positions: Mapping[Partition, int]) -> dict[Partition, Advance]:
        """Returns by how much each partition advances, from its present position."""
        now = int(self._clock.time() * 1000)
        return {
            partition: Advance(positions[partition], Position(end, self._event_times.get(partition, 0), now))
            for partition, end in self.ends().items()
            if partition in positions  # it may have been revoked meanwhile
        }

    @property
    def counted(self) -> list[Coordinates]:
        """The bad records that no operator has accepted."""
        return [(letter.topic, letter.partition, letter.offset) for letter in self.dead_letters if not letter.accepted]

    def _intents(self, partition: Partition, records: list[Record]) -> Iterator[tuple[Record, Intent | None] | None]:
        """Reads the records of a partition. Yields one of three kinds:

            record, intent    it has to be written
            record, None      it is bad, so nothing is written
            None              between two parts of a large record

        Raises LineStopped if too many are bad.
        """
        good, last, oldest = 0, None, self._oldest
        for record in records:
            try:
                intent, moment = interpret(record) if _is_small(record) else (yield from in_parts(record))
            except BadRecord as error:
                self.guard.passed(good)
                good = 0
                self._park(record, error)
                yield record, None
                continue
            good, last = good + 1, moment
            if oldest is None or moment < oldest:
                oldest = moment
            yield record, intent
        self.guard.passed(good)
        self._oldest = oldest
        if last is not None:
            self._event_times[partition] = last

    def _park(self, record: Record, error: BadRecord) -> None:
        """Makes a bad record a dead letter, and counts it, unless an operator has dropped its dead letter for good."""
        dead_letter = DeadLetter.of(record, error.fault, error.version)
        if acceptance := self._acceptance(_coordinates(record)):
            if acceptance.dropped:
                return
            dead_letter = dead_letter.accept(acceptance.note, acceptance.time)
        self.dead_letters.append(dead_letter)
        self.guard.note(dead_letter, error.fault)

    def _bad_behind(self, offset: int, records: Sequence[Record]) -> Iterator[Coordinates | None]:
        """Yields the bad records behind this offset that no operator has accepted; None for any other record, and
        between its parts. The offset is that of the last bad record that counted.
        """
        for record in records:
            if record.offset > offset:
                at = _coordinates(record)
                is_bad = yield from _is_bad(record)
                yield at if is_bad and not self._acceptance(at) else None


def _ranges(bad: Sequence[Coordinates]) -> tuple[str, ...]:
    """Returns a range for each partition that contains all of these records."""
    ranges = [OffsetRange(Partition(topic, number), (offset, offset)) for topic, number, offset in bad]
    return tuple(str(span) for span in spans(by_partition(ranges)))


def _coordinates(record: Record) -> Coordinates:
    return record.topic, record.partition, record.offset


def _is_small(record: Record) -> bool:
    return record.value is None or len(record.value) <= _SLICE_BYTES


def _is_bad(record: Record) -> Generator[None, None, bool]:
    try:
        _ = interpret(record) if _is_small(record) else (yield from in_parts(record))
    except BadRecord:
        return True
    return False
