"""Unpacks the record batches that Kafka returns, so that nothing in them can stop a consumer or exhaust the memory.

aiokafka itself decompresses a batch whatever its size becomes, and raises out of `getmany` if a batch cannot be
decompressed or if the name of a header is not UTF-8: at the same position each time, and without the offset. So its
classes for this are replaced.

A record that cannot be read, or that exceeds a limit, is returned with `Record.problem`. If a whole batch cannot be
read, one such record is returned for all of its offsets.
"""

import logging
import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException, KafkaError

from projector.kafka.batches import MALFORMED, Batches, Headers, Lenient, batch, is_legacy, one_by_one, uncompressed
from projector.record import Record
from schemas.limits import MAX_HEADER_BYTES, MAX_KEY_BYTES, MAX_POLL_BYTES
from schemas.resources import Kind

logger = logging.getLogger(__name__)

_CRC_ATTEMPTS = 3
"""A wrong checksum may be an error of the network, so the batch is fetched again before it counts as corrupt."""
_AT_ONCE = 500
"""Records that are read from a batch at once. A batch of the smallest records would have millions."""


class Unpacker:
    """What one consumer returns: records of these topics. Pass it to the consumer as `value_deserializer`."""

    def __init__(self, kinds: Mapping[str, Kind], max_record_bytes: int) -> None:
        self.kinds = kinds
        self.max_record_bytes = max_record_bytes
        self.wrong_checksums: dict[tuple[str, int, int], int] = {}
        self._bytes = 0
        self._records = 0
        self._mean = 0.0

    def begin(self, most: int) -> int:
        """Note that a poll begins. Returns how many records to ask for: at most `most`, and fewer if those of the
        last poll were so large that `most` of them would exceed MAX_POLL_BYTES.
        """
        if self._records:
            self._mean = self._bytes / self._records
        self._bytes = self._records = 0
        return max(1, min(most, int(MAX_POLL_BYTES / self._mean))) if self._mean else most

    @property
    def is_full(self) -> bool:
        """Has this poll returned MAX_POLL_BYTES?"""
        return self._bytes >= MAX_POLL_BYTES

    def add(self, size: int) -> None:
        """Note that a record with this size is returned."""
        self._bytes += size
        self._records += 1


class BoundedRecords(fetcher.PartitionRecords):  # type: ignore[misc]  # aiokafka has no types
    """An iterator over the records that a broker has returned for a partition: `Record`, if there is an Unpacker.

    It ends early when the poll is full. The consumer then fetches the rest again, from `next_fetch_offset`.
    """

    def _unpack_records(self) -> Iterator[Any]:
        if isinstance(self._value_deserializer, Unpacker):
            return self._unpack(self._value_deserializer)
        unpacked: Iterator[Any] = super()._unpack_records()
        return unpacked

    def _unpack(self, unpacker: Unpacker) -> Iterator[Record]:
        while self._records.has_next():
            for record in self._read(self._records.next_slice(), unpacker):
                if record.offset < self.next_fetch_offset:
                    continue  # batches are returned as a whole
                if unpacker.is_full:
                    return
                unpacker.add(len(record.key or b"") + len(record.value or b""))
                self.next_fetch_offset = record.offset + 1
                yield record

    def _read(self, data: bytes, unpacker: Unpacker) -> Iterator[Record]:
        """Yields the records of one batch. Afterwards, the next fetch begins behind the batch."""
        found = batch(data)
        if not self._is_intact(found, unpacker):
            yield from self._unreadable(found, unpacker, "its checksum is wrong")
        elif not self._is_skipped(found):
            try:
                data = uncompressed(data)
            except Exception as error:  # noqa: BLE001 - the library of each codec has errors of its own
                yield from self._unreadable(found, unpacker, f"it cannot be decompressed ({error})")
            else:
                yield from self._records_of(data, unpacker)
        # The last offset stays that of the batch when compaction removes records.
        self.next_fetch_offset = max(self.next_fetch_offset, found.next_offset)

    def _is_intact(self, batch: Any, unpacker: Unpacker) -> bool:
        """Returns whether the checksum is right. Raises CorruptRecordException if the batch shall be fetched again."""
        if batch.validate_crc():
            return True
        place = (self._tp.topic, self._tp.partition, batch.base_offset)
        attempts = unpacker.wrong_checksums.pop(place, 0) + 1
        if attempts < _CRC_ATTEMPTS:
            unpacker.wrong_checksums[place] = attempts
            raise CorruptRecordException(f"the batch at {place} has a wrong checksum")
        return False

    def _is_skipped(self, batch: Any) -> bool:
        """Returns whether the batch is that of an aborted transaction, or a marker. As in aiokafka's own class."""
        if self._isolation_level == fetcher.READ_COMMITTED and batch.producer_id is not None:
            self._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and self._ends_an_aborted_transaction(batch):
                self._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in self._aborted_producers:
                return True
        return bool(batch.is_control_batch)

    def _ends_an_aborted_transaction(self, marker: Any) -> bool:
        try:
            return bool(self._contains_abort_marker(marker))
        except (*MALFORMED, struct.error, KafkaError):
            # If a transaction of this producer was aborted, its next marker can only be the end of it.
            logger.warning("a control batch cannot be read", extra={"partition": list(self._tp)})
            return True

    def _unreadable(self, batch: Any, unpacker: Unpacker, why: str) -> Iterator[Record]:
        """Yields one record for all records of a batch that have not been returned yet."""
        first, last = max(batch.base_offset, self.next_fetch_offset), batch.next_offset - 1
        if first <= last:
            problem = f"the batch with the offsets {first} to {last} cannot be read: {why}"
            kind = unpacker.kinds[self._tp.topic]
            yield Record(self._tp.topic, self._tp.partition, first, 0, None, None, (), kind, problem)

    def _records_of(self, data: bytes, unpacker: Unpacker) -> Iterator[Record]:
        topic, partition = self._tp
        kind, most = unpacker.kinds[topic], unpacker.max_record_bytes
        records: Iterator[Any] = iter(found := batch(data))
        last = found.next_offset - 1
        while True:
            try:
                some = list(islice(records, _AT_ONCE))
            except (*MALFORMED, KafkaError) as error:
                if is_legacy(data):
                    yield from self._unreadable(batch(data), unpacker, f"it is malformed ({error})")
                    return
                # Begins again with the first record of the batch. Those that were returned already are left out.
                records = one_by_one(data)
                continue
            if not some:
                return
            for record in some:
                if record.offset > last:
                    yield from self._unreadable(batch(data), unpacker, "it has a record beyond its last offset")
                    return
                key, value, headers = record.key, record.value, tuple(record.headers)
                problem = record.problem if type(record) is Lenient else ""
                if problem or _is_too_large(key, value, headers, most):
                    problem = problem or _what_is_too_large(key, value, headers, most)
                    key, value, headers = None if key is None else key[:MAX_KEY_BYTES], None, ()
                yield Record(topic, partition, record.offset, record.timestamp, key, value, headers, kind, problem)


def install() -> None:
    """Let all consumers of this process unpack with this module."""
    fetcher.MemoryRecords, fetcher.PartitionRecords = Batches, BoundedRecords


def _is_too_large(key: bytes | None, value: bytes | None, headers: Headers, most: int) -> bool:
    return (
        (value is not None and len(value) > most)
        or (key is not None and len(key) > MAX_KEY_BYTES)
        or (bool(headers) and _size(headers) > MAX_HEADER_BYTES)
    )


def _what_is_too_large(key: bytes | None, value: bytes | None, headers: Headers, most: int) -> str:
    if key is not None and len(key) > MAX_KEY_BYTES:
        return f"the message key has {len(key):,} bytes, more than {MAX_KEY_BYTES}"
    if value is not None and len(value) > most:
        return f"the value has {len(value):,} bytes, more than {most:,} (LEADVIEW_MAX_RECORD_BYTES)"
    return f"the headers have {_size(headers):,} bytes, more than {MAX_HEADER_BYTES:,}"


def _size(headers: Headers) -> int:
    return sum(len(name) + len(content or b"") for name, content in headers)
