"""Fetches, splits and unpacks record batches, so that nothing in them can stop a consumer or exhaust the memory.

The format is that of KIP-98 (magic 2): https://kafka.apache.org/documentation/#recordbatch

aiokafka itself decompresses a batch whatever its size becomes, and raises out of `getmany` if a batch cannot be
decompressed or if the name of a header is not UTF-8: at the same position each time, and without the offset. It asks
each broker for as many bytes as all of them may return. So its classes for this are replaced.

It reads records much faster than this module, but it trusts them: it reads beyond the end of a batch whose fields are
cut off, and builds every header, however many there are. So it gets only small records, with bytes behind them in which
no field can continue. All other records are read here, and those on which it fails.

A record that cannot be read, or that exceeds a limit, is returned with `Record.problem`. If a whole batch cannot be
read, one such record is returned for all of its offsets.
"""

import logging
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from struct import Struct
from typing import Any, NamedTuple

import cramjam
from aiokafka.consumer import consumer, fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.util import calc_crc32c

from projector.record import Record
from schemas.envelopes import HEADERS
from schemas.limits import MAX_BATCH_BYTES, MAX_HEADER_BYTES, MAX_HEADERS, MAX_KEY_BYTES, MAX_POLL_BYTES
from schemas.resources import Kind

# Base offset, length, leader epoch, magic, checksum (of everything after it), attributes, last offset, first and last
# time, producer, its epoch and sequence, number of records.
_HEADER = Struct(">qiibIhiqqqhii")
_START, _LENGTH_AT, _MAGIC_AT, _CHECKED_FROM, _ATTRIBUTES_AT, _COUNT_AT = 12, 8, 16, 21, 21, 57
_LENGTH, _ATTRIBUTES = Struct(">i"), Struct(">h")
_MAGIC = 2
_CODEC_BITS, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0b111, 0b1000, 0b1_0000, 0b10_0000
_LONGEST_VARINT = 10
WRONG_LENGTH = "the length of a record is wrong"
"""The problem of a record after which no other can be read."""

# Of small records, aiokafka reads so many at once, or so many bytes. A batch may have millions.
_SMALL, _RECORDS_AT_ONCE, _BYTES_AT_ONCE = 8192, 500, 65_536
_BEHIND = memoryview(b"\xff" * 128)

Headers = tuple[tuple[str, bytes | None], ...]


class Unread(NamedTuple):
    """A record that aiokafka has not read, with the names that it uses. With a problem, the rest may be absent."""

    offset: int
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    problem: str = ""


class Batch:
    """A batch as it was sent. It covers the offsets from `first` to `last`, but compaction may have removed some."""

    def __init__(self, data: memoryview) -> None:
        """Raises struct.error if the batch is shorter than its header."""
        if len(data) > _MAGIC_AT and data[_MAGIC_AT] < _MAGIC:  # such a batch is one record, and may be shorter
            data = memoryview(bytes(data[: _MAGIC_AT + 1]) + bytes(_HEADER.size))
        self.first, _, epoch, self._magic, self._checksum, self._attributes, last, *rest = _HEADER.unpack_from(data)
        # Before magic 2 there was something else in its place.
        self.leader_epoch: int = epoch if self._magic == _MAGIC else -1
        self._first_time, self._last_time, self.producer, *_ = rest
        self.last: int = self.first + max(0, last)
        self.data = data

    @property
    def is_control(self) -> bool:
        """Is it a marker that ends a transaction?"""
        return bool(self._attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self._attributes & _TRANSACTIONAL)

    @property
    def is_intact(self) -> bool:
        """Is the checksum right?"""
        return self._magic != _MAGIC or bool(calc_crc32c(self.data[_CHECKED_FROM:]) == self._checksum)

    def records(self) -> Iterator[tuple[Sequence[Any], Sequence[int]]]:
        """Returns an iterator over the records, a few at a time, like `Unread`, and their sizes in bytes.

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

    def _one_by_one(self, piece: memoryview, sizes: list[int], offset: int) -> Iterator[Unread]:
        """`offset` is used for a record whose own offset cannot be read."""
        at = 0
        for size in sizes:
            record = self._one(piece[at : at + size], offset)
            yield record
            offset = record.offset + 1
            at += size

    def _one(self, data: memoryview, offset: int) -> Unread:
        """Read a record with its length."""
        try:
            length, at = _varint(data, 0)
            if at + length != len(data):
                return Unread(offset, problem=WRONG_LENGTH)
            time, at = _varint(data, at + 1)
            delta, at = _varint(data, at)
            offset = self.first + delta
            key, at = _field(data, at)
            value, at = _field(data, at)
            count, at = _varint(data, at)
            if count > MAX_HEADERS:
                return Unread(offset, key=key, problem=f"the record has {count:,} headers, more than {MAX_HEADERS}")
            headers = []
            for _ in range(count):
                name, at = _field(data, at)
                content, at = _field(data, at)
                headers.append(((name or b"").decode(errors="backslashreplace"), content))
        except (IndexError, ValueError):
            return Unread(offset, problem="the record is not encoded as Kafka describes it")
        timestamp = self._last_time if self._attributes & _LOG_APPEND_TIME else self._first_time + time
        return Unread(offset, timestamp, key, value, tuple(headers))


class Batches:
    """Splits what a broker has returned for a partition. The last batch may be incomplete, and is left out."""

    def __init__(self, data: bytes | None) -> None:
        self._data = memoryview(data or b"")
        self._at = 0

    def size_in_bytes(self) -> int:
        return len(self._data)

    def has_next(self) -> bool:
        return self._at + _START <= len(self._data) and self._end() <= len(self._data)

    def next_batch(self) -> Batch:
        """Raises struct.error if the batch is shorter than its header."""
        start, self._at = self._at, self._end()
        return Batch(self._data[start : self._at])

    def _end(self) -> int:
        length: int = _LENGTH.unpack_from(self._data, self._at + _LENGTH_AT)[0]
        return self._at + _START + max(0, length)


def _pieces(content: memoryview) -> Iterator[tuple[memoryview, list[int]]]:
    """Yields records with their lengths: a few small ones at a time, or a larger one; and the size of each. If a length
    is wrong, the last of them is the rest of the content.
    """
    start = at = 0
    sizes: list[int] = []
    while at < len(content):
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
_MOST_BLOCKS = MAX_BATCH_BYTES // 1024
"""Clients write blocks of 1 KiB or more. Each one takes a while, even an empty one."""
_TOO_LARGE = f"it has more than {MAX_BATCH_BYTES:,} bytes"


def decompressed(codec: int, data: memoryview) -> bytes | bytearray:
    """Raises whatever the library of the codec raises; ValueError for an unknown codec or too many bytes."""
    if codec == _GZIP:
        decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        found = decompressor.decompress(data, MAX_BATCH_BYTES)
        if decompressor.unconsumed_tail or not decompressor.eof:
            raise ValueError(_TOO_LARGE if decompressor.unconsumed_tail else "it is cut off")
        return found
    if codec == _SNAPPY:
        return _snappy(data)
    if codec in _CODECS:
        return _within_limit(_CODECS[codec], data)
    raise ValueError(f"codec {codec} is unknown")


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
    """Decompress what Java clients write (blocks behind a header), or a single block."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _snappy_block(data, MAX_BATCH_BYTES)
    found, at = bytearray(), _XERIAL_HEADER
    for _ in range(_MOST_BLOCKS):
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


logger = logging.getLogger(__name__)

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
                return found, WRONG_LENGTH
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
                found.append(Record(topic, partition, offset, time, key, record.value, (), kind, "", 1, history))
                unpacker.unpacked += size + _RECORD_BYTES
            else:
                found.append(bounded(self._tp, record, size, unpacker))
                unpacker.unpacked += size + _RECORD_BYTES + _HEADER_BYTES * len(found[-1].headers)
        return found, None

    def _unreadable(self, batch: Batch, why: str) -> Iterator[list[Record]]:
        """Yields one record for all records of a batch that were not returned yet."""
        first = max(batch.first, self.next_fetch_offset)
        problem = f"the batch with the offsets {first} to {batch.last} cannot be read: {why}"
        if first <= batch.last:
            topic, partition = self._tp
            kind = self.unpacker.kinds[topic]
            yield [Record(topic, partition, first, 0, None, None, (), kind, problem, batch.last + 1 - first)]
        else:
            logger.error("a record was left out", extra={"partition": list(self._tp), "problem": problem})


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
    problem = record.problem if type(record) is Unread else ""
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


def _problem(key: bytes | None, value: bytes | None, headers: Headers, size: int, most: int) -> str:
    """Returns which limit a record of this size exceeds, or an empty text."""
    if key is not None and len(key) > MAX_KEY_BYTES:
        return f"the message key has {len(key):,} bytes, more than {MAX_KEY_BYTES}"
    if value is not None and len(value) > most:
        return f"the value has {len(value):,} bytes, more than {most:,} (LEADVIEW_MAX_RECORD_BYTES)"
    if headers and len(headers) > MAX_HEADERS:
        return f"the record has {len(headers):,} headers, more than {MAX_HEADERS}"
    if size <= MAX_HEADER_BYTES:
        return ""
    if (found := sum(len(name) + len(content or b"") for name, content in headers)) > MAX_HEADER_BYTES:
        return f"the headers have {found:,} bytes, more than {MAX_HEADER_BYTES:,}"
    return ""


class BoundedFetcher(fetcher.Fetcher):  # type: ignore[misc]  # aiokafka has no types
    """Fetches nothing while it has `fetch_max_bytes`. All brokers together may return so many bytes at once.

    Only a batch, the first that a broker returns, is returned whatever its size.
    """

    def __init__(self, *arguments: Any, fetch_max_bytes: int, **options: Any) -> None:
        super().__init__(*arguments, fetch_max_bytes=fetch_max_bytes, **options)
        self._most = fetch_max_bytes

    def _get_actions_per_node(self, assignment: Any) -> tuple[Any, ...]:
        self._fetch_max_bytes = self._most // max(1, len(self._client.cluster.brokers()))
        requests, *others = super()._get_actions_per_node(assignment)
        held = sum(result.size for result in self._records.values() if isinstance(result, BoundedResult))
        return [] if held >= self._most else requests, *others


def install() -> None:
    """Let all consumers of this process fetch and unpack with this module."""
    fetcher.MemoryRecords, fetcher.PartitionRecords, fetcher.FetchResult = Batches, BoundedRecords, BoundedResult
    consumer.Fetcher = BoundedFetcher
