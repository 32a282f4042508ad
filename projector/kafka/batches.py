"""Splits and reads record batches: the format of KIP-98 (magic 2).

https://kafka.apache.org/documentation/#recordbatch
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch

from projector.kafka.codecs import decompressed

# Where the fields of a batch begin.
_LENGTH_AT, _BODY_AT, _MAGIC_AT, _ATTRIBUTES_AT, _LAST_OFFSET_AT, _TIMES_AT, _RECORDS_AT = 8, 12, 16, 21, 23, 27, 61
_BASE_OFFSET, _LENGTH, _LAST_OFFSET = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">i")
_ATTRIBUTES, _TIMES = struct.Struct(">h"), struct.Struct(">qq")
_SMALLEST_LEGACY = 26
_MAGIC = 2
_CODEC_BITS, _LOG_APPEND_TIME = 0b111, 0b1000
_LONGEST_VARINT = 10

Headers = tuple[tuple[str, bytes | None], ...]
MALFORMED = (IndexError, ValueError, OverflowError, TypeError)
"""What reading malformed bytes raises, here and in aiokafka."""


class Lenient(NamedTuple):
    """A record that this module has parsed, with the names that aiokafka uses."""

    offset: int
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    problem: str = ""


class Batches:
    """Splits what a broker has returned for a partition. The last batch may be incomplete, and is left out."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def size_in_bytes(self) -> int:
        return len(self._data)

    def has_next(self) -> bool:
        return self._at + _BODY_AT <= len(self._data) and self._end() <= len(self._data)

    def next_slice(self) -> bytes:
        """Returns the bytes of the next batch. Raises CorruptRecordException."""
        start, self._at = self._at, self._end()
        data = bytes(self._data[start : self._at])
        if len(data) < (_RECORDS_AT if data[_MAGIC_AT : _MAGIC_AT + 1] >= b"\x02" else _SMALLEST_LEGACY):
            raise CorruptRecordException(f"a record batch has {len(data)} bytes, fewer than its header")
        return data

    def next_batch(self) -> Any:
        """Returns the next batch as aiokafka's own class, for consumers without an Unpacker."""
        return batch(self.next_slice())

    def _end(self) -> int:
        return self._at + _BODY_AT + max(0, _LENGTH.unpack_from(self._data, self._at + _LENGTH_AT)[0])


def batch(data: bytes) -> Any:
    """Returns aiokafka's own batch, which is written in C. The oldest formats, before Kafka 0.11, have another one."""
    magic = data[_MAGIC_AT]
    return DefaultRecordBatch(data) if magic >= _MAGIC else LegacyRecordBatch(data, magic)


def uncompressed(data: bytes) -> bytes:
    """Returns the same batch without compression.

    Raises whatever the library of the codec raises, and ValueError for an unknown codec or too many bytes.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(data, _ATTRIBUTES_AT)
    codec = attributes & _CODEC_BITS
    if codec == 0 or data[_MAGIC_AT] < _MAGIC:
        return data
    header = bytearray(data[:_RECORDS_AT])
    _ATTRIBUTES.pack_into(header, _ATTRIBUTES_AT, attributes & ~_CODEC_BITS)
    records = decompressed(codec, memoryview(data)[_RECORDS_AT:])
    _LENGTH.pack_into(header, _LENGTH_AT, len(header) + len(records) - _BODY_AT)
    return bytes(header) + records


def is_legacy(data: bytes) -> bool:
    """Returns whether a batch has a format from before Kafka 0.11."""
    return data[_MAGIC_AT] < _MAGIC


def one_by_one(data: bytes) -> Iterator[Lenient]:
    """Yields the records of an uncompressed batch that aiokafka cannot read as a whole.

    A name of a header may have any bytes. A record that cannot be read has a problem. If its length is wrong, the rest
    of the batch cannot be read either.
    """
    base, last = _BASE_OFFSET.unpack_from(data)[0], _LAST_OFFSET.unpack_from(data, _LAST_OFFSET_AT)[0]
    first_time, max_time = _TIMES.unpack_from(data, _TIMES_AT)
    at_broker = _ATTRIBUTES.unpack_from(data, _ATTRIBUTES_AT)[0] & _LOG_APPEND_TIME
    buffer, at, offset = bytearray(data), _RECORDS_AT, base
    while at < len(buffer):
        try:
            content, at = _field(buffer, at)
        except MALFORMED:
            what = f"the records with the offsets {offset} to {base + last} cannot be read: a length is wrong"
            yield Lenient(offset, 0, problem=what)
            return
        try:
            record = _parse(bytearray(content or b""), base, first_time)
        except MALFORMED:
            record = Lenient(offset, 0, problem="the record is not encoded as Kafka describes it")
        yield record._replace(timestamp=max_time) if at_broker else record
        offset = record.offset + 1


def _parse(record: bytearray, base: int, first_time: int) -> Lenient:
    """Raises one of MALFORMED."""
    time, at = _varint(record, 1)
    offset, at = _varint(record, at)
    key, at = _field(record, at)
    value, at = _field(record, at)
    count, at = _varint(record, at)
    headers = []
    for _ in range(count):
        name, at = _field(record, at)
        content, at = _field(record, at)
        headers.append(((name or b"").decode(errors="backslashreplace"), content))
    return Lenient(base + offset, first_time + time, key, value, tuple(headers))


def _field(record: bytearray, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(record, at)
    if at + length > len(record):
        raise ValueError
    return (None, at) if length < 0 else (bytes(record[at : at + length]), at + length)


def _varint(data: bytearray, at: int) -> tuple[int, int]:
    """Returns a number in the zigzag encoding, and where the next field begins. That of aiokafka reads over the end."""
    value = 0
    for place in range(_LONGEST_VARINT):
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise ValueError
