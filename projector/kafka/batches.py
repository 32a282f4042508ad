"""From the bytes that a broker returns for a partition to records, so that nothing in them can stop a projector or
exhaust its memory. Batches are split, checked and decompressed, and their records are read (the format of KIP-98,
magic 2).

https://kafka.apache.org/documentation/#recordbatch

A record that cannot be read, or that exceeds a limit, is returned with `Record.problem`. If a whole batch cannot be
read, one such record is returned for all of its offsets.

aiokafka reads records much faster than this module, but it trusts them: it reads beyond the end of a batch whose fields
are cut off, and builds every header, however many there are. So it gets only small records, followed by bytes that end
each field. All other records are read here, and those on which it fails.
"""

import logging
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

import cramjam
from aiokafka.errors import CorruptRecordException
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.util import calc_crc32c

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

# Base offset, length, leader epoch, magic, checksum (of everything after it), attributes, last offset, first and last
# time, producer, its epoch and sequence, number of records.
_HEADER = Struct(">qiibIhiqqqhii")
_START, _LENGTH_AT, _MAGIC_AT, _CHECKED_FROM, _ATTRIBUTES_AT, _COUNT_AT = 12, 8, 16, 21, 21, 57
_LENGTH, _ATTRIBUTES = Struct(">i"), Struct(">h")
_MAGIC = 2
_CODEC_BITS, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0b111, 0b1000, 0b1_0000, 0b10_0000
_LONGEST_VARINT = 10
WRONG_LENGTH = Fault("unreadable_batch", found="the length of a record is wrong")
"""The problem of a record after which no other can be read."""
_NOT_ENCODED = Fault("unreadable_record", expected="encoded as Kafka describes it")

# aiokafka reads at most this number of small records at once, or of their bytes. A batch may have millions of records.
_SMALL, _RECORDS_AT_ONCE, _BYTES_AT_ONCE = 8192, 500, 65_536
_BEHIND = memoryview(b"\xff" * 128)
_KEPT_HEADERS = HEADERS | TRACE_HEADERS | MISSPELT.keys()
"""A misspelt header is kept because it is why the record is bad."""
_MAX_TRACE_BYTES = 256

Headers = tuple[tuple[str, bytes | None], ...]


def too_many_headers(count: int) -> Fault:
    """Returns the problem of a record with this number of headers."""
    return Fault("headers", "headers", count=count, most=MAX_HEADERS)


class ReadHere(NamedTuple):
    """A record that was read here, with the names that aiokafka uses. With a problem, the rest may be absent."""

    offset: int
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    problem: Fault | None = None


class RecordBatch:
    """A batch as it was sent. It covers the offsets from `first` to `last`, but compaction may have removed some."""

    def __init__(self, data: memoryview) -> None:
        """Raises struct.error if the batch is shorter than its header."""
        if len(data) > _MAGIC_AT and data[_MAGIC_AT] < _MAGIC:  # such a batch is one record, and may be shorter
            data = memoryview(bytes(data[: _MAGIC_AT + 1]) + bytes(_HEADER.size))
        self.first, _, epoch, self._magic, self._checksum, self._attributes, last, *rest = _HEADER.unpack_from(data)
        # Before magic 2 there was something else in its place.
        self.leader_epoch: int = epoch if self._magic == _MAGIC else -1
        self._first_time, self._last_time, self.producer, *_, self._promised = rest
        self.last: int = self.first + max(0, last)
        self.data = data

    def not_as_promised(self, count: int) -> str | None:
        """Returns why a batch in which `count` records were read is not whole; None if its header promises `count`."""
        if count == self._promised:
            return None
        return f"its header promises {self._promised:,} records, and it has {count:,}"

    @property
    def is_control(self) -> bool:
        """True if it is a marker that ends a transaction."""
        return bool(self._attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self._attributes & _TRANSACTIONAL)

    @property
    def first_time(self) -> int:
        """The time of the first record, in ms since 1970."""
        return int(self._last_time if self._attributes & _LOG_APPEND_TIME else self._first_time)

    @property
    def is_intact(self) -> bool:
        """True if the checksum is right."""
        return self._magic != _MAGIC or bool(calc_crc32c(self.data[_CHECKED_FROM:]) == self._checksum)

    def records(self) -> Iterator[tuple[Sequence[Any], Sequence[int]]]:
        """Returns an iterator over the records, a few at a time, like `ReadHere`, and their sizes in bytes.

        A record that cannot be read has a problem. If that is WRONG_LENGTH, it is the last one.

        Raises ValueError, or what the library of the codec raises, if the batch cannot be decompressed.
        """
        if self._magic != _MAGIC:
            raise ValueError("its format is from before Kafka 0.11, or unknown")
        codec, content = self._attributes & _CODEC_BITS, self.data[_HEADER.size :]
        return self._read(memoryview(decompressed(codec, content)) if codec else content)

    def _read(self, content: memoryview) -> Iterator[tuple[Sequence[Any], Sequence[int]]]:
        offset = self.first
        for piece, sizes in _pieces(content):
            records = self._read_piece(piece, sizes, offset)
            yield records, sizes
            offset = records[-1].offset + 1

    def _read_piece(self, piece: memoryview, sizes: list[int], offset: int) -> Sequence[Any]:
        if len(sizes) > 1 or len(piece) <= _SMALL:
            try:
                records = self._by_aiokafka(piece, len(sizes))
                if len(records) == len(sizes):
                    return records
            except Exception:  # noqa: BLE001, S110 - whatever it is, the record is found below
                pass
        return list(self._one_by_one(piece, sizes, offset))

    def _by_aiokafka(self, piece: memoryview, count: int) -> list[Any]:
        header = bytearray(self.data[: _HEADER.size])
        _ATTRIBUTES.pack_into(header, _ATTRIBUTES_AT, self._attributes & ~_CODEC_BITS)
        _LENGTH.pack_into(header, _COUNT_AT, count)
        data = b"".join((header, piece, _BEHIND))
        return list(DefaultRecordBatch(memoryview(data)[: -len(_BEHIND)]))

    def _one_by_one(self, piece: memoryview, sizes: list[int], offset: int) -> Iterator[ReadHere]:
        """`offset` is used for a record whose own offset cannot be read."""
        at = 0
        for size in sizes:
            record = self._one(piece[at : at + size], offset)
            yield record
            offset = record.offset + 1
            at += size

    def _one(self, data: memoryview, offset: int) -> ReadHere:
        """Read a record with its length."""
        try:
            length, at = _varint(data, 0)
            if at + length != len(data):
                return ReadHere(offset, problem=WRONG_LENGTH)
            time, at = _varint(data, at + 1)
            delta, at = _varint(data, at)
            offset = self.first + delta
            key, at = _field(data, at)
            value, at = _field(data, at)
            count, at = _varint(data, at)
            if count > MAX_HEADERS:
                return ReadHere(offset, key=key, problem=too_many_headers(count))
            headers = []
            for _ in range(count):
                name, at = _field(data, at)
                content, at = _field(data, at)
                headers.append(((name or b"").decode(errors="backslashreplace"), content))
        except (IndexError, ValueError):
            return ReadHere(offset, problem=_NOT_ENCODED)
        timestamp = self._last_time if self._attributes & _LOG_APPEND_TIME else self._first_time + time
        return ReadHere(offset, timestamp, key, value, tuple(headers))


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


def whole_batches(data: bytes) -> Iterator[memoryview]:
    """Yields the batches that a broker has returned for a partition. The last is left out if incomplete."""
    rest = memoryview(data)
    while len(rest) >= _START:
        end = _START + max(0, _LENGTH.unpack_from(rest, _LENGTH_AT)[0])
        if end > len(rest):
            return
        yield rest[:end]
        rest = rest[end:]


def _pieces(content: memoryview) -> Iterator[tuple[memoryview, list[int]]]:
    """Yields records with their lengths: a few small ones at a time, or a larger one; and the size of each. If a length
    is wrong, the last of them is the rest of the content.
    """
    start = at = 0
    sizes: list[int] = []
    end = len(content)
    while at < end:
        low = content[at]
        # Nearly all lengths have two bytes. To call a function for each would take a fifth of the time of unpacking.
        if low >= 0x80 and not low & 1 and at + 1 < end and (high := content[at + 1]) < 0x80:
            size = 2 + ((low & 0x7F | high << 7) >> 1)
            if size > end - at:
                size = end - at
        else:
            size = _size_of_record(content, at)
        if sizes and (size > _SMALL or len(sizes) == _RECORDS_AT_ONCE or at - start > _BYTES_AT_ONCE):
            yield content[start:at], sizes
            start, sizes = at, []
        sizes.append(size)
        at += size
        if size > _SMALL:
            yield content[start:at], sizes
            start, sizes = at, []
    if sizes:
        yield content[start:at], sizes


def _size_of_record(content: memoryview, at: int) -> int:
    try:
        length, start = _varint(content, at)
    except (IndexError, ValueError):
        return len(content) - at
    return start + length - at if 0 <= length <= len(content) - start else len(content) - at


def _field(data: memoryview, at: int) -> tuple[bytes | None, int]:
    """Returns a field with its length before it, and where the next one begins. Raises IndexError or ValueError."""
    length, at = _varint(data, at)
    if length > len(data) - at:
        raise ValueError
    return (None, at) if length < 0 else (bytes(data[at : at + length]), at + length)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Returns a number in the zigzag encoding, and where the next field begins. Raises IndexError or ValueError."""
    value = data[at]
    if value < 0x80:
        return (value >> 1) ^ -(value & 1), at + 1
    value &= 0x7F
    for place in range(1, _LONGEST_VARINT):
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise ValueError


_GZIP, _SNAPPY, _LZ4, _ZSTD = range(1, 5)
_XERIAL, _XERIAL_HEADER = b"\x82SNAPPY\x00", 16
_MEMBER, _FIRST_BYTES = b"\x1f\x8b", 1024
"""The first bytes of a member of gzip, and the number of bytes of a further member that are read first."""
_MOST_BLOCKS = MAX_BATCH_BYTES // 1024
"""Clients write blocks of 1 KiB or more. Each block takes time, even an empty one."""
_TOO_LARGE = f"it has more than {MAX_BATCH_BYTES:,} bytes"


def decompressed(codec: int, data: memoryview) -> bytes | bytearray:
    """Returns everything that was compressed, also if it was in several pieces, one behind the other.

    Raises whatever the library of the codec raises; ValueError for an unknown codec or too many bytes.
    """
    if codec == _GZIP:
        return _gzip(data)
    if codec == _SNAPPY:
        return _snappy(data)
    if codec in _CODECS:
        return _within_limit(_CODECS[codec], data)
    raise ValueError(f"codec {codec} is unknown")


def _gzip(data: memoryview) -> bytes | bytearray:
    """Decompress all members of gzip. What follows them and is no member is ignored, as by Kafka."""
    content, rest = _gzip_member(data, MAX_BATCH_BYTES, len(data))
    if not rest:
        return content
    contents = bytearray(content)
    for _ in range(_MOST_BLOCKS):
        if bytes(rest[: len(_MEMBER)]) != _MEMBER:
            return contents
        content, rest = _gzip_member(rest, MAX_BATCH_BYTES - len(contents), _FIRST_BYTES)
        contents += content
    raise ValueError(f"it has more than {_MOST_BLOCKS:,} members")


def _gzip_member(data: memoryview, most: int, size: int) -> tuple[bytes, memoryview]:
    """Decompress the first member. Returns its content, and what follows it.

    zlib gets it in pieces. The first has `size` bytes, and each further one twice as many as the one before. Small
    pieces come first, because zlib copies what follows the member in the same piece.
    """
    decompressor, contents, at, left = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), [], 0, most
    while not decompressor.eof:
        if at >= len(data):
            raise ValueError("it is cut off")
        contents.append(decompressor.decompress(data[at : at + size], left + 1))
        left -= len(contents[-1])
        if left < 0 or decompressor.unconsumed_tail:
            raise ValueError(_TOO_LARGE)
        at, size = at + size, 2 * size
    return b"".join(contents), data[min(at, len(data)) - len(decompressor.unused_data) :]


def _within_limit(decompress_into: Callable[[Any, Any], int], data: memoryview) -> bytearray:
    """Decompress into a buffer that grows up to the limit."""
    size = min(MAX_BATCH_BYTES, max(4096, 8 * len(data)))
    while True:
        buffer = bytearray(size)
        try:
            del buffer[decompress_into(data, buffer) :]
        except cramjam.DecompressionError:
            # It does not say whether the buffer was too small.
            if size == MAX_BATCH_BYTES:
                raise ValueError(f"it is corrupt, or {_TOO_LARGE}") from None
            size = min(MAX_BATCH_BYTES, 8 * size)
        else:
            return buffer


def _snappy(data: memoryview) -> bytes | bytearray:
    """Decompress what Java clients write (blocks behind a header, perhaps several times), or a single block."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _snappy_block(data, MAX_BATCH_BYTES)
    found, at = bytearray(), _XERIAL_HEADER
    for _ in range(_MOST_BLOCKS):
        if bytes(data[at : at + len(_XERIAL)]) == _XERIAL:
            at += _XERIAL_HEADER
        if at >= len(data):
            return found
        end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
        if not at < end <= len(data):
            raise ValueError("a block has a wrong length")
        found += _snappy_block(data[at + _LENGTH.size : end], MAX_BATCH_BYTES - len(found))
        at = end
    raise ValueError(f"it has more than {_MOST_BLOCKS:,} blocks")


def _snappy_block(block: memoryview, most: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > most:
        raise ValueError(_TOO_LARGE)
    return bytes(cramjam.snappy.decompress_raw(block))


_CODECS: dict[int, Callable[[Any, Any], int]] = {_LZ4: cramjam.lz4.decompress_into, _ZSTD: cramjam.zstd.decompress_into}
