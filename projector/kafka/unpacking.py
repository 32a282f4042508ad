"""Unpacks the record batches that Kafka returns, so that nothing in them can stop a consumer or exhaust the memory.

aiokafka itself decompresses a batch whatever its size becomes, and raises out of `getmany` if a batch cannot be
decompressed or if the name of a header is not UTF-8: at the same position each time, and without the offset. So its
classes for this are replaced.

A record that cannot be read, or that exceeds a limit, is returned with `Record.problem`. If a whole batch cannot be
read, one such record is returned for all of its offsets.
"""

import logging
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException

from projector.kafka.batches import WRONG_LENGTH, Batch, Batches, Headers, Unread, too_many_headers
from projector.record import Record
from schemas import words
from schemas.envelopes import HEADERS
from schemas.faults import Fault
from schemas.limits import MAX_BATCH_BYTES, MAX_HEADER_BYTES, MAX_HEADERS, MAX_KEY_BYTES, MAX_POLL_BYTES
from schemas.resources import Kind

logger = logging.getLogger(__name__)

MAX_WHY = 500
"""In characters, of what a codec says about a batch."""
_ATTEMPTS = 3
"""A wrong checksum may be an error of the network, so the batch is fetched again before it counts as corrupt."""
_LONGEST_SECONDS = 0.02
"""How long a poll may unpack. The event loop does nothing else meanwhile."""
_RECORD_BYTES, _HEADER_BYTES = 400, 150
"""What the objects of a record, and of each of its headers, take in addition to their bytes."""
_MAX_TIME = 2**48 - 1
"""Of a record, in milliseconds: more does not fit into the head of a document (`schemas.layouts`)."""


class Unpacker:
    """What one consumer returns: records of these topics. Pass it to the consumer as `value_deserializer`."""

    def __init__(self, kinds: Mapping[str, Kind], max_record_bytes: int) -> None:
        self.kinds = kinds
        self.max_record_bytes = max_record_bytes
        self._wrong_checksums: dict[tuple[str, int, int], int] = {}
        self.histories: Mapping[str, int] = {}
        """Which history of each topic is read now; 0 for those that are absent (`Record.history`)."""
        self.epochs: dict[tuple[str, int], int] = {}
        """The leader epoch of the last batch that was unpacked of each partition."""
        self.begin()

    def begin(self) -> None:
        """Note that a poll begins."""
        self.unpacked = 0
        """Bytes that this poll has unpacked, with what the objects of each record take."""
        self._until: float | None = None
        self.new_leaders: dict[tuple[str, int], tuple[int, int]] = {}
        """Where this poll has met a batch of another leader: the offset up to which there were batches of the leader
        before, and the epoch of that one."""

    def note_leader(self, partition: tuple[str, int], offset: int, epoch: int) -> bool:
        """Note which leader has written the batch at this offset.

        Returns False if the batch is for the next poll, because this one has met another leader of the partition
        already: after each of them, it has to be asked whether the next one has what it had.
        """
        known = self.epochs.get(partition, epoch)
        if known != epoch:
            if partition in self.new_leaders:
                return False
            self.new_leaders[partition] = (offset, known)
        self.epochs[partition] = epoch
        return True

    @property
    def is_full(self) -> bool:
        """Has this poll unpacked as many bytes, or for as long, as it may?"""
        now = time.monotonic()
        self._until = self._until or now + _LONGEST_SECONDS
        return self.unpacked >= MAX_POLL_BYTES or now > self._until

    def is_intact(self, partition: tuple[str, int], batch: Batch) -> bool | None:
        """Returns whether the checksum of a batch is right; None if it is wrong and may be right the next time."""
        place = (*partition, batch.first)
        attempts = self._wrong_checksums.pop(place, 0) + 1
        if batch.is_intact:
            return True
        if attempts == _ATTEMPTS:
            return False
        self._wrong_checksums[place] = attempts
        return None


class BoundedRecords(fetcher.PartitionRecords):  # type: ignore[misc]  # aiokafka has no types
    """What a broker has returned for a partition. To iterate over it yields `Record`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.next_fetch_offset: int
        # The iterator owns these records. If they owned it as well, those of which only a part was read, and the batch
        # that it has decompressed, would stay in memory until the garbage collector finds them.
        self._records_iterator = None

    @property
    def size(self) -> int:
        """Returns the number of bytes that were fetched."""
        return int(self._records.size_in_bytes())

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self.pieces())

    @property
    def unpacker(self) -> Unpacker:
        if not isinstance(self._value_deserializer, Unpacker):
            raise TypeError("this consumer has no Unpacker")
        return self._value_deserializer

    def pieces(self) -> Iterator[list[Record]]:
        """Yields the records, a few at a time, so that the work for each is little."""
        while self._records.has_next():
            try:
                batch = self._records.next_batch()
            except struct.error:
                raise CorruptRecordException("a record batch is shorter than its header") from None
            is_intact = self.unpacker.is_intact(self._tp, batch)
            if is_intact is None:
                return  # the consumer fetches it again
            epoch = batch.leader_epoch if is_intact else -1
            if epoch >= 0 and not self.unpacker.note_leader(self._tp, self.next_fetch_offset, epoch):
                return  # likewise
            for records in self._read(batch) if is_intact else self._unreadable(batch, "its checksum is wrong"):
                self.next_fetch_offset = records[-1].next_offset
                yield records
            # The last offset stays that of the batch when compaction removes records.
            self.next_fetch_offset = max(self.next_fetch_offset, batch.last + 1)

    def _read(self, batch: Batch) -> Iterator[list[Record]]:
        """Yields the records of a batch from `next_fetch_offset` on, a few at a time."""
        if self._isolation_level == fetcher.READ_COMMITTED and batch.producer >= 0:
            self._consume_aborted_up_to(batch.first)
            if batch.is_control and _is_end_of_aborted(batch):
                self._aborted_producers.discard(batch.producer)
            if batch.is_transactional and batch.producer in self._aborted_producers:
                return
        if batch.is_control:
            return
        try:
            records = batch.records()
        except Exception as error:  # noqa: BLE001 - the library of each codec has errors of its own
            # Decompressing it may have taken as long as if it had so many bytes.
            self.unpacker.unpacked += MAX_BATCH_BYTES
            yield from self._unreadable(batch, f"it cannot be decompressed ({error})")
            return
        before = batch.first - 1
        for piece, sizes in records:
            found, why = self._bounded(piece, sizes, before, batch.last)
            if found:
                yield found
            if why:
                yield from self._unreadable(batch, why)
                return
            before = piece[-1].offset

    def _bounded(
        self, piece: Sequence[Any], sizes: Sequence[int], before: int, last: int
    ) -> tuple[list[Record], str | None]:
        """Returns the records from `next_fetch_offset` on; and why the rest of the batch cannot be read, if so."""
        topic, partition = self._tp
        unpacker, wanted = self.unpacker, self.next_fetch_offset
        kind, harmless = unpacker.kinds[topic], min(MAX_HEADER_BYTES, unpacker.max_record_bytes)
        history = unpacker.histories.get(topic, 0)
        found: list[Record] = []
        for record, size in zip(piece, sizes, strict=True):
            offset = record.offset
            if not before < offset <= last:
                return found, "the offsets of its records are not in order"
            before = offset
            if type(record) is Unread and record.problem == WRONG_LENGTH:
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
                and type(record) is not Unread
            ):
                # Nearly all records: nothing in them can exceed a limit.
                found.append(Record(topic, partition, offset, time, key, record.value, (), kind, None, 1, history))
                unpacker.unpacked += size + _RECORD_BYTES
            else:
                found.append(bounded(self._tp, record, size, unpacker))
                unpacker.unpacked += size + _RECORD_BYTES + _HEADER_BYTES * len(found[-1].headers)
        return found, None

    def _unreadable(self, batch: Batch, why: str) -> Iterator[list[Record]]:
        """Yields one record for all records of a batch that were not returned yet."""
        first = max(batch.first, self.next_fetch_offset)
        problem = Fault("unreadable_batch", found=why[:MAX_WHY], count=first, most=batch.last)
        if first <= batch.last:
            topic, partition = self._tp
            kind = self.unpacker.kinds[topic]
            yield [Record(topic, partition, first, 0, None, None, (), kind, problem, batch.last + 1 - first)]
        else:
            logger.error("a record was left out", extra={"partition": list(self._tp), "problem": words.fault(problem)})


class BoundedResult(fetcher.FetchResult):  # type: ignore[misc]
    """What is left of a fetched partition. A poll that is full leaves the rest for the next one.

    `size` is the number of bytes that were fetched.
    """

    _partition_records: BoundedRecords | None

    def __init__(self, *arguments: Any, partition_records: BoundedRecords, **options: Any) -> None:
        super().__init__(*arguments, partition_records=partition_records, **options)
        self._pieces = partition_records.pieces()
        self._rest: list[Record] = []
        self.size = partition_records.size

    def getall(self, max_records: int | None = None) -> list[Record]:
        records = self._partition_records
        if records is None or not self.check_assignment(self._topic_partition):
            return []
        found: list[Record] = []
        while len(found) != max_records and not records.unpacker.is_full:
            piece = self._rest or next(self._pieces, [])
            if not piece:
                self._update_position()
                self._partition_records = None
                return found
            wanted = len(piece) if max_records is None else max_records - len(found)
            found += piece[:wanted]
            self._rest = piece[wanted:]
            records.next_fetch_offset = found[-1].next_offset
        self._update_position()
        return found


def install() -> None:
    """Let all consumers of this process unpack with this module."""
    fetcher.MemoryRecords, fetcher.PartitionRecords, fetcher.FetchResult = Batches, BoundedRecords, BoundedResult


def _is_end_of_aborted(marker: Batch) -> bool:
    """Returns whether this marker ends an aborted transaction.

    Of a marker that cannot be read, it does not matter: the next marker of a producer with an aborted transaction ends
    that one.
    """
    try:
        [record, *_], _ = next(marker.records())
        return bool(fetcher.ControlRecord.parse(record.key) == fetcher.ABORT_MARKER)
    except Exception as error:  # noqa: BLE001 - whatever it contains
        logger.warning("a marker of a transaction cannot be read", extra={"error": str(error)})
        return True


def bounded(at: tuple[str, int], record: Any, size: int, unpacker: Unpacker) -> Record:
    """Returns a record within the limits: with a problem, and without its value, if it exceeds one."""
    topic, partition = at
    key, value, headers, time = record.key, record.value, record.headers, record.timestamp
    problem = record.problem if type(record) is Unread else None
    problem = problem or _problem(key, value, headers, size, unpacker.max_record_bytes)
    if problem:
        key, value, headers = None if key is None else key[:MAX_KEY_BYTES], None, ()
    elif headers:
        # Of a name that comes several times, the last one counts.
        headers = {name: content for name, content in headers if name in HEADERS}.items()
    if not 0 <= time <= _MAX_TIME:
        time = 0 if time < 0 else _MAX_TIME
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
