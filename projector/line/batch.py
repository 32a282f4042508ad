"""A batch: the records that one checkpoint covers. What a poll has returned is decoded and written slice by slice, and
so is what further polls return within a few milliseconds.

A few bad records are parked, too many halt the line.

While a topic is read again, the line reads the heads of the documents that a poll changes, to leave out the records
that would change nothing. All of them are asked for at once, and compared as they arrive.

A record that is already applied need not even be decoded. This doubles the rate at which a topic is read again, after a
rewind or by a resumed rebuild (the benchmark `projector` prints it). A record counts as applied only if its own
coordinates and its version are in the head of the document, in every generation: a topic that was deleted and recreated
uses its offsets again, for other events.

Any other record is decoded, because it may be bad. If it is stale, and comes before the record that the document shows,
it need not be sent: to read a head costs Redis less than half of what a stale record costs. One that comes behind it
was published again, or late: the scripts find out which.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import Literal

import msgspec

from projector.change import version_of
from projector.dead_letter import DeadLetter
from projector.errors import BadRecord, Coordinates, LineStopped
from projector.interpret import in_parts, interpret
from projector.kafka.accepted import Acceptance
from projector.ledger.control import Advance, Position
from projector.ledger.ledger import Session
from projector.line.apply import Applied, FanOuts, apply
from projector.line.pace import Pacer
from projector.mapping import DeleteDocument, Intent, PutDocument, PutLead
from projector.offsets import OffsetRange, by_partition, spans
from projector.record import Partition, Record, is_entity_key
from projector.redis import calls
from projector.redis.calls import Generations, groups
from projector.redis.store import Store
from runtime.redis.scripts import Command
from schemas.faults import Fault
from schemas.fields import UUID_AS_0
from schemas.heartbeat import Halted
from schemas.layouts import HISTORY_BIT, RECORD_TIME, STATE_TOMBSTONE, VERSION, HeadNumbers, heads_numbers
from schemas.resources import RESOURCES, Resource

_BATCH_SECONDS = 0.02
"""How long a batch takes in further polls, and waits for them: each record is written at once, and visible from then
on, but a checkpoint for every few of them would take as long as to write them."""
_FAN_OUT_SECONDS = 0.005
"""How long the line makes steps of fan-outs before it polls again."""
WINDOW = 1000
_SLICE_BYTES, _SLICE_SECONDS = 262_144, 0.01
"""What is decoded at once, and for how long: the event loop does nothing else meanwhile. A larger value is read in
parts, and `projector.change` bounds what each of them may cost."""
_LONG_SECONDS, _REST = 0.01, 0.25


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
        return LineStopped(Halted(limit, len(counted), WINDOW, most, last, fault), counted)

    def forgive(self, acceptance: Callable[[Coordinates], object]) -> None:
        """No longer count the bad records for which `acceptance` returns something true."""
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
        acceptance: Callable[[Coordinates], Acceptance | None] = lambda _: None,
        most: int = 5000,
    ) -> None:
        """`guard` counts the bad records of this batch. `acceptance` finds out whether an operator has accepted one.
        The batch takes in no more polls after `most` records.
        """
        self.guard = guard
        self._acceptance = acceptance
        self.left = most
        """How many more records it may take in; below 0 if the last poll had more."""
        self._began = time.monotonic()
        self._lacks_head = False
        """Whether the last slice ended because the head of the next record's document has not arrived yet."""
        self._event_times: dict[Partition, int] = {}
        self._oldest: int | None = None
        """Of this poll: the earliest time of an event."""
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
        return time.monotonic() - self._began

    @property
    def wait(self) -> float:
        """How many seconds it may wait for more records."""
        return _BATCH_SECONDS - self.seconds

    @property
    def takes_more(self) -> bool:
        """Whether another poll may be added; not behind a bad record, which would have to wait for it."""
        return not self.dead_letters and self.left > 0 and self.wait > 0

    def slices(
        self, polled: Mapping[Partition, list[Record]], size: int, heads: "StoredHeads | None" = None
    ) -> Iterator[list[Intent]]:
        """Yields the intents of up to `size` records at a time, fewer if they are large. `heads` are those of the
        records' documents: what would not change one is left out.

        A slice may be empty, so that the caller can do something else between many bad or large records.
        """
        intents: list[Intent] = []
        left, until = _SLICE_BYTES, time.perf_counter() + _SLICE_SECONDS
        try:
            for partition, records in polled.items():
                for found in self._intents(partition, records, heads.found[partition] if heads else None):
                    if found:
                        record, intent = found
                        left -= len(record.value or b"")
                        if intent:
                            intents.append(intent)
                    if not found or len(intents) == size or left <= 0 or time.perf_counter() > until:
                        yield intents
                        intents, left, until = [], _SLICE_BYTES, time.perf_counter() + _SLICE_SECONDS
        except LineStopped as error:
            # No checkpoint will cover this batch, so nobody needs the rest of the last slice.
            yield from self._stop(error, polled, until)
        else:
            yield intents

    async def write(
        self,
        polled: Mapping[Partition, list[Record]],
        session: Session,
        store: Store,
        pacer: Pacer,
        heads: "StoredHeads | None" = None,
    ) -> int:
        """Write the records of a poll into Redis, in the generations of the session, while the rest of them is decoded:
        a few slices at once, since versions guard every write. Returns how many of them were stale, without those
        that repeat an event.

        Raises Unavailable, or LineStopped if there are too many bad records.
        """
        size = sum(map(len, polled.values()))
        stale_before = self.applied.stale - self.applied.repeated
        pace = await pacer.pace(size)
        in_flight: deque[asyncio.Task[Applied]] = deque()
        try:
            if heads:
                await heads.ask()
            started = time.perf_counter()
            for intents in self.slices(polled, pace.slice_records, heads):
                if heads and self._lacks_head:
                    await heads.arrive()
                    self._lacks_head = False
                seconds = time.perf_counter() - started
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
                # Lets the slice be sent, and Kafka's heartbeat run. A change of access needs many turns of the event
                # loop, so after a slice that took long the other line has some time for itself.
                await asyncio.sleep(seconds * _REST if seconds > _LONG_SECONDS else 0)
                started = time.perf_counter()
            while in_flight:
                self.applied.add(await in_flight.popleft())
        finally:
            await asyncio.gather(*in_flight, return_exceptions=True)  # empty unless something failed
            if heads:
                await heads.arrive_all()
        if self.stopped:
            raise self.stopped
        self.left -= size
        self.last |= {partition: records[-1] for partition, records in polled.items()}
        oldest, self._oldest = self._oldest, None
        if oldest is not None:
            self.freshness = max(self.freshness or 0.0, time.time() - oldest / 1000)
        return self.applied.stale - self.applied.repeated - stale_before

    async def fan_out(self, session: Session, store: Store) -> bool:
        """Make some steps of the fan-outs, for a few milliseconds. Returns whether any lead was written. Raises
        Unavailable.
        """
        before, until = self.applied.respliced, time.monotonic() + _FAN_OUT_SECONDS
        while self.fan_outs:
            self.applied.respliced += await self.fan_outs.step(store, session.generations, session)
            if time.monotonic() > until:
                break
        return self.applied.respliced > before

    def _stop(
        self, stopped: LineStopped, polled: Mapping[Partition, list[Record]], until: float
    ) -> Iterator[list[Intent]]:
        """Look for all bad records that an operator would have to accept. Yields empty slices meanwhile."""
        topic, number, offset = stopped.bad[-1]
        behind: list[Coordinates] = []
        for bad in self._bad_behind(offset, polled[Partition(topic, number)]):
            if bad:
                behind.append(bad)
            if time.perf_counter() > until:
                yield []
                until = time.perf_counter() + _SLICE_SECONDS
        found = [*stopped.bad, *behind]
        halt = msgspec.structs.replace(stopped.halt, bad=len(found), ranges=_ranges(found))
        self.stopped = LineStopped(halt, stopped.bad)

    def ends(self) -> dict[Partition, int]:
        """Returns the offset behind the last record of each partition."""
        return {partition: record.next_offset for partition, record in self.last.items()}

    def advances(self, positions: Mapping[Partition, int]) -> dict[Partition, Advance]:
        """Returns by how much each partition advances, from its present position."""
        now = int(time.time() * 1000)
        return {
            partition: Advance(positions[partition], Position(end, self._event_times.get(partition, 0), now))
            for partition, end in self.ends().items()
            if partition in positions  # it may have been revoked meanwhile
        }

    @property
    def counted(self) -> list[Coordinates]:
        """The bad records that nobody has accepted."""
        return [(letter.topic, letter.partition, letter.offset) for letter in self.dead_letters if not letter.accepted]

    def _intents(
        self, partition: Partition, records: list[Record], heads: "_Heads | None"
    ) -> Iterator[tuple[Record, Intent | None] | None]:
        """Reads the records of a partition. Yields one of three kinds:

            record, intent    it has to be written
            record, None      it is bad, already applied or stale, so nothing is written
            None              between two parts of a large record, or until the head of its document has arrived

        Raises LineStopped if too many are bad.
        """
        good, last, oldest = 0, None, self._oldest
        for index, record in enumerate(records):
            intent, moment, head = None, None, None
            if heads:
                while (head := heads[index]) is None:
                    self._lacks_head = True
                    yield None
                moment = event_time(record, head)
            if moment is None:
                try:
                    intent, moment = interpret(record) if _is_small(record) else (yield from in_parts(record))
                except BadRecord as error:
                    self.guard.passed(good)
                    good = 0
                    self._park(record, error)
                    yield record, None
                    continue
                if head and is_stale(intent, head):
                    intent = None
            good, last = good + 1, moment
            if oldest is None or moment < oldest:
                oldest = moment
            if intent is None:
                self.applied.stale += 1
            yield record, intent
        self.guard.passed(good)
        self._oldest = oldest
        if last is not None:
            self._event_times[partition] = last

    def _park(self, record: Record, error: BadRecord) -> None:
        """Make a bad record a dead letter, unless an operator has dropped that for good, and count it."""
        dead_letter = DeadLetter.of(record, error.fault, error.version)
        if acceptance := self._acceptance(_coordinates(record)):
            if acceptance.dropped:
                return
            dead_letter = dead_letter.accept(acceptance.note, acceptance.time)
        self.dead_letters.append(dead_letter)
        self.guard.note(dead_letter, error.fault)

    def _bad_behind(self, offset: int, records: Sequence[Record]) -> Iterator[Coordinates | None]:
        """Yields the bad records behind this offset, which is that of the last one that counted, that nobody has
        accepted; None for any other record, and between its parts.
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


# Reading a head takes Redis much less time than writing a document, so a call may hold more of them.
_MAX_HEADS = 100
_CALLS = 10
_ORGANIZATION_ID = slice(0, len(UUID_AS_0))
"""In a message key."""

_AT = slice(VERSION.stop, RECORD_TIME.start)
"""In a head: offset, partition and history."""
_NO_HEAD = (0, 0, 0, 0)
_Heads = list[HeadNumbers | None]
_Query = tuple[bytes, _Heads, int]
"""The message key of a document whose head is read, and where the head goes: a list of heads, and the index there."""
_Call = tuple[Command, list[_Query]]


class StoredHeads:
    """The heads of the documents that the records of a poll change. They arrive while the records are decoded.

    Versions only grow: what a head shows to be applied stays so, however long ago it was read. Otherwise the script
    compares the versions once more when it writes.
    """

    def __init__(self, store: Store, polled: Mapping[Partition, Sequence[Record]], generations: Generations) -> None:
        self._store = store
        self._polled = polled
        self._generations = generations
        self._arriving: deque[asyncio.Task[None]] = deque()
        self.found: dict[Partition, _Heads] = {at: [None] * len(records) for at, records in polled.items()}
        """The head of each record's document; None until it has arrived. Zeros if there is none, if the generations
        differ, if the leads of a contact contain an old summary, or if the record is not one of a document.
        """

    async def ask(self) -> None:
        """Ask for all of them. Raises Unavailable."""
        wanted = self._calls(clustered=await self._store.clustered())
        while some := list(islice(wanted, _CALLS)):
            self._arriving.append(asyncio.create_task(self._read(some)))
            await asyncio.sleep(0)  # sends them: Redis reads these heads while the next calls are built

    async def arrive(self) -> None:
        """Wait until those arrive that were asked for first of those that are missing. Raises Unavailable."""
        if self._arriving:
            await self._arriving.popleft()

    async def arrive_all(self) -> None:
        """Wait until all have arrived, as far as Redis is available."""
        await asyncio.gather(*self._arriving, return_exceptions=True)

    async def _read(self, some: list[_Call]) -> None:
        replies = await self._store.run([command for command, _ in some])
        for (_, queries), reply in zip(some, replies, strict=True):
            for (_, heads, index), head in zip(queries, heads_numbers(reply), strict=True):
                heads[index] = head

    def _calls(self, *, clustered: bool) -> Iterator[_Call]:
        by_resource: dict[Resource, list[_Query]] = {resource: [] for resource in RESOURCES}
        for partition, records in self._polled.items():
            heads = self.found[partition]
            if isinstance(resource := records[0].kind, Resource):
                by_resource[resource] += _queries(records, heads)
            else:
                heads[:] = [_NO_HEAD] * len(heads)
        for resource, all_queries in by_resource.items():
            for queries in groups(
                all_queries, lambda query: query[0][_ORGANIZATION_ID], clustered=clustered, max_items=_MAX_HEADS
            ):
                yield calls.heads(resource, [key for key, _, _ in queries], self._generations), queries


def event_time(record: Record, head: HeadNumbers) -> int | None:
    """Returns the time of the record's event if a document with this head shows it; otherwise None."""
    number, at, time, time_above = head
    if record.problem or at != record.offset | (record.partition | record.history << HISTORY_BIT) << 48:
        return None
    state, version = number & 0xFF, number >> 8
    time |= time_above << 32
    if state == STATE_TOMBSTONE:  # its head keeps the version of the event before it
        return time if record.value is None else None
    # Zeros have no state, and would also be the coordinates of the very first record.
    return time if state and version_of(record) == version else None


def is_stale(intent: Intent, head: HeadNumbers) -> bool:
    """Returns whether the intent is certainly not newer than the document with this head, as the scripts compare them,
    and comes before its record, if both are in one partition: otherwise the scripts have to judge it.

    It never will be newer: the version of a document only grows, and if an organization is recreated, all of its
    records are applied again.
    """
    match intent:
        case PutLead(head=new):
            pass
        case PutDocument(value=new) | DeleteDocument(value=new):
            pass
        case _:
            return False
    if head[0] & 0xFF not in b"LD" or new[:1] == b"T":
        return False  # nothing is stored; with tombstones, the offsets and times decide
    at = int.from_bytes(new[_AT], "little")
    if at >> 48 == head[1] >> 48 and at > head[1]:
        return False
    return int.from_bytes(new[VERSION], "little") <= head[0] >> 8


def _queries(records: Sequence[Record], heads: _Heads) -> Iterator[_Query]:
    for index, record in enumerate(records):
        if is_entity_key(key := record.key):
            yield key, heads, index
        else:
            heads[index] = _NO_HEAD  # the batch parks the record
