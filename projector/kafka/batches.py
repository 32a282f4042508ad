"""From the bytes that a broker returns for a partition to records, so that nothing in them can stop a projector or
exhaust its memory. `record_batch.py` has the format, and `codecs.py` decompresses.

A record that cannot be read, or that exceeds a limit, is returned with `Record.problem`. If a whole batch cannot be
read, one such record is returned for all of its offsets.
"""

import logging
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from aiokafka.errors import CorruptRecordException
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord

from projector.kafka.record_batch import WRONG_LENGTH, Headers, ReadHere, RecordBatch, too_many_headers, whole_batches
from projector.record import Partition, Record
from schemas.envelopes import HEADERS, MISSPELT, TRACE_HEADERS
from schemas.faults import Fault
from schemas.limits import MAX_BATCH_BYTES, MAX_HEADER_BYTES, MAX_HEADERS, MAX_KEY_BYTES, MAX_POLL_BYTES
from schemas.resources import Kind

logger = logging.getLogger(__name__)

_MAX_WHY = 500
"""Maximum number of characters of what a codec says about a batch."""
_ATTEMPTS = 3
"""A wrong checksum may be an error of the network, so the batch is fetched again before it counts as corrupt."""
LONGEST_SECONDS = 0.02
"""The time for which a poll may unpack. The event loop does nothing else meanwhile."""
_RECORD_BYTES, _HEADER_BYTES = 400, 150
"""Memory of the objects of a record, and of each of its headers, in addition to their bytes."""
_MAX_TIME = 2**48 - 1
"""The latest time of a record, in milliseconds, that fits into the head of a document (`schemas.layouts`)."""

_KEPT_HEADERS = HEADERS | TRACE_HEADERS | MISSPELT.keys()
"""A misspelt header is kept because it is why the record is bad."""
_MAX_TRACE_BYTES = 256


class Unpacker:
    """Limits what a poll unpacks, and remembers the state of each partition from one poll to the next."""

    def __init__(self, kinds: Mapping[str, Kind], max_record_bytes: int) -> None:
        self.kinds = kinds
        self.max_record_bytes = max_record_bytes
        self._wrong_checksums: dict[tuple[str, int, int], int] = {}
        self.histories: Mapping[str, int] = {}
        """Which history of each topic is read now; 0 for those that are absent (`Record.history`)."""
        self.leader_epochs: dict[tuple[str, int], int] = {}
        """The leader epoch of the last record batch that was unpacked of each partition."""
        self.begin()

    def begin(self) -> None:
        """Note that a poll begins."""
        self.unpacked = 0
        """Bytes that this poll has unpacked, with what the objects of each record take."""
        self._until: float | None = None
        self.new_leaders: dict[tuple[str, int], tuple[int, int]] = {}
        """The partitions in which this poll has met a new leader: the offset at which the batches of the former leader
        end, and the epoch of the former leader."""

    def note_leader(self, partition: tuple[str, int], offset: int, epoch: int) -> bool:
        """Note which leader has written the batch at this offset.

        Returns False if the batch is for the next poll, because this one has already met a new leader of the partition:
        at each change, Kafka has to be asked whether the new leader has what the former one had.
        """
        known = self.leader_epochs.get(partition, epoch)
        if known != epoch:
            if partition in self.new_leaders:
                return False
            self.new_leaders[partition] = (offset, known)
        self.leader_epochs[partition] = epoch
        return True

    @property
    def is_full(self) -> bool:
        """True if this poll has unpacked `MAX_POLL_BYTES`, or for `LONGEST_SECONDS` since the first call."""
        now = time.monotonic()
        self._until = self._until or now + LONGEST_SECONDS
        return self.unpacked >= MAX_POLL_BYTES or now > self._until

    def has_right_checksum(self, partition: tuple[str, int], batch: RecordBatch) -> bool | None:
        """Returns whether the checksum of a batch is right; None if it is wrong and may be right the next time."""
        place = (*partition, batch.first)
        attempts = self._wrong_checksums.pop(place, 0) + 1
        if batch.is_intact:
            return True
        if attempts == _ATTEMPTS:
            return False
        self._wrong_checksums[place] = attempts
        return None


class FetchedRecords:
    """The records that a broker has returned for a partition, from the offset `next_offset` on."""

    def __init__(
        self, at: Partition, data: bytes, aborted: Iterable[tuple[int, int]], next_offset: int, unpacker: Unpacker
    ) -> None:
        """`aborted` has the producer and the first offset of each transaction that was aborted."""
        self.next_offset = next_offset
        self.size = len(data)
        self._at = at
        self._batches = whole_batches(data)
        self._aborted = deque(sorted(aborted, key=lambda each: each[1]))
        self._aborted_producers: set[int] = set()
        self.unpacker = unpacker

    def pieces(self) -> Iterator[list[Record]]:
        """Yields the records, a few at a time, so that each step is short."""
        for data in self._batches:
            try:
                batch = RecordBatch(data)
            except struct.error:
                raise CorruptRecordException("a record batch is shorter than its header") from None
            is_intact = self.unpacker.has_right_checksum(self._at, batch)
            if is_intact is None:
                return  # it is fetched again
            epoch = batch.leader_epoch if is_intact else -1
            if epoch >= 0 and not self.unpacker.note_leader(self._at, self.next_offset, epoch):
                return  # likewise
            for records in self._read(batch) if is_intact else self._unreadable(batch, "its checksum is wrong"):
                self.next_offset = records[-1].next_offset
                yield records
            # The last offset stays that of the batch when compaction removes records.
            self.next_offset = max(self.next_offset, batch.last + 1)

    def _read(self, batch: RecordBatch) -> Iterator[list[Record]]:
        """Yields the records of a batch from `next_offset` on, a few at a time."""
        if self._is_aborted(batch) or batch.is_control:
            return
        try:
            records = batch.records()
        except Exception as error:  # noqa: BLE001 - the library of each codec has errors of its own
            # Decompressing it may have taken as long as for the largest batch.
            self.unpacker.unpacked += MAX_BATCH_BYTES
            yield from self._unreadable(batch, f"it cannot be decompressed ({error})")
            return
        before, count, why = batch.first - 1, 0, None
        # The last piece is kept back: a fault behind it may have to share its last offset.
        held: list[Record] = []
        for piece, sizes in records:
            if held:
                yield held
            held, why = self._bounded(piece, sizes, before, batch.last)
            if why:
                break
            before, count = piece[-1].offset, count + len(sizes)
        why = why or batch.not_as_promised(count)
        if why and held and held[-1].offset == batch.last:
            # No offset is left for what cannot be read: its dead letter has that of the last record.
            held += self._fault(batch, batch.last, why)
        if held:
            yield held
        if why:
            yield from self._unreadable(batch, why)

    def _is_aborted(self, batch: RecordBatch) -> bool:
        """Returns whether a batch is of an aborted transaction. It has to be called for each batch, in order."""
        if batch.producer < 0:
            return False
        while self._aborted and self._aborted[0][1] <= batch.first:
            self._aborted_producers.add(self._aborted.popleft()[0])
        if batch.is_control and _is_end_of_aborted(batch):
            self._aborted_producers.discard(batch.producer)
        return batch.is_transactional and batch.producer in self._aborted_producers

    def _bounded(
        self, piece: Sequence[Any], sizes: Sequence[int], before: int, last: int
    ) -> tuple[list[Record], str | None]:
        """Returns the records from `next_offset` on; and why the rest of the batch cannot be read, None if it can."""
        topic, partition = self._at
        unpacker, wanted = self.unpacker, self.next_offset
        kind, harmless = unpacker.kinds[topic], min(MAX_HEADER_BYTES, unpacker.max_record_bytes)
        history = unpacker.histories.get(topic, 0)
        is_read_here = type(piece[0]) is ReadHere
        unpacker.unpacked += sum(sizes) + _RECORD_BYTES * len(sizes)
        found: list[Record] = []
        for record, size in zip(piece, sizes, strict=True):
            offset = record.offset
            if not before < offset <= last:
                return found, "the offsets of its records are not in order"
            before = offset
            if is_read_here and record.problem == WRONG_LENGTH:
                return found, WRONG_LENGTH.found
            if offset < wanted:  # batches are returned as a whole
                continue
            key, time = record.key, record.timestamp
            if (
                size <= harmless
                and key is not None
                and len(key) <= MAX_KEY_BYTES
                and 0 <= time <= _MAX_TIME
                and not record.headers
                and not is_read_here
            ):
                # Nearly all records: nothing in them can exceed a limit.
                found.append(Record(topic, partition, offset, time, key, record.value, (), kind, None, 1, history))
            else:
                found.append(bounded(self._at, record, size, unpacker))
                unpacker.unpacked += _HEADER_BYTES * len(found[-1].headers)
        return found, None

    def _unreadable(self, batch: RecordBatch, why: str) -> Iterator[list[Record]]:
        """Yields one record for all records of a batch that were not returned yet, if there are any."""
        if (first := max(batch.first, self.next_offset)) <= batch.last:
            yield self._fault(batch, first, why)

    def _fault(self, batch: RecordBatch, first: int, why: str) -> list[Record]:
        """Returns the record that stands for all records of a batch from this offset on."""
        # For this kind of fault, the numbers are the first and the last offset.
        problem = Fault("unreadable_batch", found=why[:_MAX_WHY], count=first, most=batch.last)
        topic, partition = self._at
        kind = self.unpacker.kinds[topic]
        return [Record(topic, partition, first, 0, None, None, (), kind, problem, batch.last + 1 - first)]


class PendingRecords:
    """The rest of fetched records: a poll that is full leaves it for the next one."""

    def __init__(self, records: FetchedRecords) -> None:
        # The iterator refers to the records. If they referred to it as well, records of which only a part was read, and
        # their decompressed batch, would stay in memory until the garbage collector finds them.
        self._pieces = records.pieces()
        self._records = records
        self._piece: list[Record] = []
        self.size = records.size
        self.next_offset = records.next_offset
        self.is_empty = False

    def take(self, most: int) -> list[Record]:
        """Returns up to `most` records. Raises CorruptRecordException."""
        found: list[Record] = []
        while len(found) < most and not self._records.unpacker.is_full:
            piece = self._piece or next(self._pieces, [])
            if not piece:
                self.is_empty = True
                self.next_offset = self._records.next_offset
                break
            wanted = most - len(found)
            if wanted < len(piece) and piece[wanted].offset == piece[wanted - 1].offset:
                wanted += 1  # both have the same offset, so no position is between them
            found += piece[:wanted]
            self._piece = piece[wanted:]
            self.next_offset = found[-1].next_offset
        return found


def _is_end_of_aborted(marker: RecordBatch) -> bool:
    """Returns whether this marker ends an aborted transaction.

    True for a marker that cannot be read: if its producer has an aborted transaction, its next marker is the one that
    ends it.
    """
    try:
        [record, *_], _ = next(marker.records())
        return bool(ControlRecord.parse(record.key) == ABORT_MARKER)
    except Exception as error:  # noqa: BLE001 - whatever it contains
        logger.warning("a marker of a transaction cannot be read", extra={"error": str(error)})
        return True


def bounded(at: tuple[str, int], record: Any, size: int, unpacker: Unpacker) -> Record:
    """Returns a record within the limits: if it exceeds one, with a problem, without its value, and with no headers but
    those of its trace.
    """
    topic, partition = at
    key, value, headers, time = record.key, record.value, record.headers, record.timestamp
    problem = record.problem if type(record) is ReadHere else None
    problem = problem or _problem(key, value, headers, size, unpacker.max_record_bytes)
    # Of a name that comes several times, the last one counts.
    headers = {name: content for name, content in headers if name in _KEPT_HEADERS}.items() if headers else ()
    if problem:
        key, value = None if key is None else key[:MAX_KEY_BYTES], None
        headers = (it for it in headers if it[0] in TRACE_HEADERS and len(it[1] or b"") <= _MAX_TRACE_BYTES)
    time = min(max(time, 0), _MAX_TIME)
    kind, history = unpacker.kinds[topic], unpacker.histories.get(topic, 0)
    return Record(topic, partition, record.offset, time, key, value, tuple(headers), kind, problem, 1, history)


def _problem(key: bytes | None, value: bytes | None, headers: Headers, size: int, most: int) -> Fault | None:
    """Returns which limit a record of this size exceeds, or None."""
    if key is not None and len(key) > MAX_KEY_BYTES:
        return Fault("key_bytes", "key", count=len(key), most=MAX_KEY_BYTES)
    if value is not None and len(value) > most:
        return Fault("value_bytes", count=len(value), most=most)
    if headers and len(headers) > MAX_HEADERS:
        return too_many_headers(len(headers))
    if size <= MAX_HEADER_BYTES:
        return None
    if (found := sum(len(name) + len(content or b"") for name, content in headers)) > MAX_HEADER_BYTES:
        return Fault("header_bytes", "headers", count=found, most=MAX_HEADER_BYTES)
    return None
