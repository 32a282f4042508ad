"""The format of record batches (KIP-98, magic 2): from the bytes that a broker returns to records, one batch at a time.

https://kafka.apache.org/documentation/#recordbatch

aiokafka reads records much faster than this module, but it trusts them: it reads beyond the end of a batch whose fields
are cut off, and builds every header, however many there are. So it gets only small records, followed by bytes that end
each field. All other records are read here, and those on which it fails.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.util import calc_crc32c

from projector.kafka.codecs import decompressed
from schemas.faults import Fault
from schemas.limits import MAX_HEADERS

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
