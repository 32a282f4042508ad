"""Fetches records of partitions, so that nothing in them can stop a consumer or exhaust the memory.

The consumer of aiokafka is not used for that. It decompresses a batch whatever its size becomes, and raises out of
`getmany` if a batch cannot be decompressed or if the name of a header is not UTF-8: at the same position each time, and
without the offset. It also asks each broker for as many bytes as all of them may return, and for more while some
partitions still have records.

A broker answers the requests of a connection one after the other, and a request for records waits up to `LINGER_MS`
for them. So these requests have connections of their own: a line that seeks its positions does not wait for them.

Each request goes to the leader of a partition, and says in which rack this projector is. If the leader knows a replica
in that rack, it names it in place of records (KIP-392), and the next requests go there.

A record that cannot be read, or that exceeds a limit, is returned with `Record.problem`. If a whole batch cannot be
read, one such record is returned for all of its offsets.
"""

import asyncio
import logging
import random
import struct
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.client import ConnectionGroup
from aiokafka.errors import (
    CorruptRecordException,
    KafkaError,
    NoError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord

from projector.kafka.batches import WRONG_LENGTH, Headers, RecordBatch, Unread, too_many_headers, whole_batches
from projector.record import Partition, Record
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
LONGEST_SECONDS = 0.02
"""How long a poll may unpack. The event loop does nothing else meanwhile."""
_RECORD_BYTES, _HEADER_BYTES = 400, 150
"""What the objects of a record, and of each of its headers, take in addition to their bytes."""
LINGER_MS, _RETRY_SECONDS = 200, 0.1
"""How long a broker may wait for records, and how long until it is asked again after an error."""
REPLICA_SECONDS = 10.0
"""How long a replica that a leader has named is asked, until the leader is asked again. A replica that has lost the
leader falls behind, and is named no more when it is out of sync.
"""
_OF_FETCHES = max(ConnectionGroup) + 1
"""The group of connections that only requests for records use."""
_READ_COMMITTED = 1
_WITH_REPLICA = 11
"""Since this version of the answer, the preferred replica comes between the aborted transactions and the records."""
_MAX_TIME = 2**48 - 1
"""Of a record, in milliseconds: more does not fit into the head of a document (`schemas.layouts`)."""


class Unpacker:
    """What a poll may still unpack, and what is remembered of each partition from one poll to the next."""

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
        """Has this poll unpacked as many bytes, or for as long, as it may? The time runs from the first call."""
        now = time.monotonic()
        self._until = self._until or now + LONGEST_SECONDS
        return self.unpacked >= MAX_POLL_BYTES or now > self._until

    def is_intact(self, partition: tuple[str, int], batch: RecordBatch) -> bool | None:
        """Returns whether the checksum of a batch is right; None if it is wrong and may be right the next time."""
        place = (*partition, batch.first)
        attempts = self._wrong_checksums.pop(place, 0) + 1
        if batch.is_intact:
            return True
        if attempts == _ATTEMPTS:
            return False
        self._wrong_checksums[place] = attempts
        return None


class Aborted(NamedTuple):
    """A transaction that was aborted. `first` is its first offset."""

    producer: int
    first: int


class FetchedRecords:
    """What a broker has returned for a partition, from the offset `next_offset` on."""

    def __init__(
        self, at: Partition, data: bytes, aborted: Iterable[tuple[int, int]], next_offset: int, unpacker: Unpacker
    ) -> None:
        self.next_offset = next_offset
        self.size = len(data)
        self._at = at
        self._batches = whole_batches(data)
        self._aborted = deque(sorted((Aborted(*each) for each in aborted), key=lambda each: each.first))
        self._aborted_producers: set[int] = set()
        self._unpacker = unpacker

    def pieces(self) -> Iterator[list[Record]]:
        """Yields the records, a few at a time, so that the work for each is little."""
        for data in self._batches:
            try:
                batch = RecordBatch(data)
            except struct.error:
                raise CorruptRecordException("a record batch is shorter than its header") from None
            is_intact = self._unpacker.is_intact(self._at, batch)
            if is_intact is None:
                return  # it is fetched again
            epoch = batch.leader_epoch if is_intact else -1
            if epoch >= 0 and not self._unpacker.note_leader(self._at, self.next_offset, epoch):
                return  # likewise
            for records in self._read(batch) if is_intact else self._unreadable(batch, "its checksum is wrong"):
                self.next_offset = records[-1].next_offset
                yield records
            # The last offset stays that of the batch when compaction removes records.
            self.next_offset = max(self.next_offset, batch.last + 1)

    def _read(self, batch: RecordBatch) -> Iterator[list[Record]]:
        """Yields the records of a batch from `next_offset` on, a few at a time."""
        if batch.producer >= 0:
            while self._aborted and self._aborted[0].first <= batch.first:
                self._aborted_producers.add(self._aborted.popleft().producer)
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
            self._unpacker.unpacked += MAX_BATCH_BYTES
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
        """Returns the records from `next_offset` on; and why the rest of the batch cannot be read, if so."""
        topic, partition = self._at
        unpacker, wanted = self._unpacker, self.next_offset
        kind, harmless = unpacker.kinds[topic], min(MAX_HEADER_BYTES, unpacker.max_record_bytes)
        history = unpacker.histories.get(topic, 0)
        is_read_here = type(piece[0]) is Unread
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
        """Yields one record for all records of a batch that were not returned yet."""
        first = max(batch.first, self.next_offset)
        problem = Fault("unreadable_batch", found=why[:MAX_WHY], count=first, most=batch.last)
        if first <= batch.last:
            topic, partition = self._at
            kind = self._unpacker.kinds[topic]
            yield [Record(topic, partition, first, 0, None, None, (), kind, problem, batch.last + 1 - first)]
        else:
            logger.error("a record was left out", extra={"partition": list(self._at), "problem": words.fault(problem)})


class Rest:
    """What is left of fetched records. A poll that is full leaves the rest for the next one."""

    def __init__(self, records: FetchedRecords, unpacker: Unpacker) -> None:
        # The iterator owns the records. If they owned it as well, those of which only a part was read, and the batch
        # that it has decompressed, would stay in memory until the garbage collector finds them.
        self._pieces = records.pieces()
        self._records = records
        self._unpacker = unpacker
        self._piece: list[Record] = []
        self.size = records.size
        self.next_offset = records.next_offset
        self.is_empty = False

    def take(self, most: int) -> list[Record]:
        """Returns up to `most` records. Raises CorruptRecordException."""
        found: list[Record] = []
        while len(found) < most and not self._unpacker.is_full:
            piece = self._piece or next(self._pieces, [])
            if not piece:
                self.is_empty = True
                self.next_offset = self._records.next_offset
                break
            wanted = most - len(found)
            found += piece[:wanted]
            self._piece = piece[wanted:]
            self.next_offset = found[-1].next_offset
        return found


class Fetcher:
    """Fetches partitions from the offsets that were sought.

    It asks for up to `most` bytes from all brokers together, and for nothing while it holds so many that are not
    unpacked yet: so it holds less than twice as many. Only a batch, the first that a broker returns, is returned
    whatever its size. `client` is an AIOKafkaClient, and `earliest` returns the first offset of a partition. `rack` is
    where this projector is; empty if it is not known.
    """

    def __init__(
        self,
        client: Any,
        unpacker: Unpacker,
        most: int,
        earliest: Callable[[Partition], Awaitable[int]],
        rack: str = "",
    ) -> None:
        self._client = client
        self._unpacker = unpacker
        self._most = most
        self._earliest = earliest
        self._rack = rack
        self._replicas: dict[Partition, tuple[int, float]] = {}
        """The broker that a leader has named, and until when it is asked."""
        self._offsets: dict[Partition, int] = {}
        self._held: dict[Partition, Rest] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._error: Exception | None = None

    @property
    def offsets(self) -> Mapping[Partition, int]:
        """The next offset to be read of each partition that was sought, after any transaction markers."""
        return self._offsets

    def seek(self, partition: Partition, offset: int) -> None:
        """Return the records of this partition from this offset on."""
        self._held.pop(partition, None)
        self._offsets[partition] = offset
        self._client.add_topic(partition.topic)

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Return no records of these partitions until the next `seek`."""
        for partition in list(partitions):
            self._held.pop(partition, None)
            self._offsets.pop(partition, None)

    async def poll(self, most: int, wait: float) -> dict[Partition, list[Record]]:
        """Returns up to `most` records, in order for each partition; fewer if they are large or take long to unpack.

        Waits up to `wait` seconds for the first one. Raises KafkaError.
        """
        self._unpacker.begin()
        until = time.monotonic() + wait
        while True:
            found = self._take(most)
            self._ask()  # also for what comes behind these records, while they are applied
            if error := self._error:
                self._error = None
                raise error
            left = until - time.monotonic()
            if found or left <= 0:
                return found
            if self._asking:
                await asyncio.wait(self._asking.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(min(left, _RETRY_SECONDS))

    async def close(self) -> None:
        """Ask for nothing more."""
        self._offsets.clear()
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _take(self, most: int) -> dict[Partition, list[Record]]:
        found: dict[Partition, list[Record]] = {}
        for partition, rest in list(self._held.items()):
            try:
                records = rest.take(most)
            except KafkaError:
                del self._held[partition]
                raise
            self._offsets[partition] = rest.next_offset
            if rest.is_empty:
                del self._held[partition]
            if records:
                found[partition] = records
                most -= len(records)
            if most <= 0 or self._unpacker.is_full:
                break
        return found

    def _ask(self) -> None:
        """Ask each broker that is not being asked for what is wanted of it and not held."""
        if sum(rest.size for rest in self._held.values()) >= self._most:
            return
        by_broker: dict[int | None, list[tuple[Partition, int]]] = defaultdict(list)
        for partition, offset in self._offsets.items():
            if partition not in self._held:
                by_broker[self._broker(partition)].append((partition, offset))
        for broker, wanted in by_broker.items():
            if broker is None or broker < 0:
                self._client.force_metadata_update()
            elif broker not in self._asking:
                self._asking[broker] = asyncio.create_task(self._fetch(broker, wanted))

    def _broker(self, partition: Partition) -> int | None:
        """Returns whom to ask: the replica that the leader has named, or the leader; None or -1 if it is not known."""
        if named := self._replicas.get(partition):
            replica, until = named
            if time.monotonic() < until:
                return replica
            del self._replicas[partition]
        leader: int | None = self._client.cluster.leader_for_partition(TopicPartition(*partition))
        return leader

    async def _fetch(self, broker: int, wanted: list[tuple[Partition, int]]) -> None:
        try:
            await self._ask_broker(broker, wanted)
        except (KafkaError, OSError) as error:
            logger.warning("a broker did not return records", extra={"broker": broker, "error": str(error)})
            self._client.force_metadata_update()
            for partition, _ in wanted:
                self._replicas.pop(partition, None)
            await asyncio.sleep(_RETRY_SECONDS)
        except Exception as error:  # noqa: BLE001 - the next poll raises it
            self._error = error
        finally:
            del self._asking[broker]

    async def _ask_broker(self, broker: int, wanted: list[tuple[Partition, int]]) -> None:
        random.shuffle(wanted)  # a broker fills its answer in this order
        topics: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for (topic, number), offset in wanted:
            topics[topic].append((number, offset, self._most // 2))
        # While something is held, the broker does not wait for records: otherwise those behind what is held would
        # have to wait for its answer.
        wait = 0 if self._held else LINGER_MS
        most = self._most // max(1, len(self._client.cluster.brokers()))
        request = FetchRequest(wait, 1, most, _READ_COMMITTED, list(topics.items()), self._rack)
        answer = await self._client.send(broker, request, group=_OF_FETCHES)
        asked = dict(wanted)
        for topic, partitions in answer.topics:
            for number, code, _, *about, data in partitions:
                at = Partition(topic, number)
                if self._offsets.get(at) == asked[at] and at not in self._held:  # otherwise it was sought meanwhile
                    if answer.API_VERSION >= _WITH_REPLICA:
                        *_, aborted, replica = about
                        if replica >= 0:
                            self._replicas[at] = (replica, time.monotonic() + REPLICA_SECONDS)
                    else:
                        aborted = about[-1]
                    await self._note(at, for_code(code), data or b"", aborted or ())

    async def _note(self, at: Partition, error: type[KafkaError], data: bytes, aborted: Iterable[Any]) -> None:
        if error is not NoError and at in self._replicas:
            raise error(f"{at.topic}:{at.partition}")  # only the leader knows: a replica may not have this offset yet
        if error is NoError:
            if data and not next(whole_batches(data), None):  # brokers before Kafka 0.10.1 cut off the first batch, too
                raise CorruptRecordException(f"no whole batch at {at.topic}:{at.partition}")
            if data:
                self._held[at] = Rest(
                    FetchedRecords(at, data, aborted, self._offsets[at], self._unpacker), self._unpacker
                )
        elif error is OffsetOutOfRangeError:
            asked, first = self._offsets[at], await self._earliest(at)
            if self._offsets.get(at) == asked:
                self._offsets[at] = first
        elif error is TopicAuthorizationFailedError:
            self._error = error(at.topic)
        else:
            raise error(f"{at.topic}:{at.partition}")


def _is_end_of_aborted(marker: RecordBatch) -> bool:
    """Returns whether this marker ends an aborted transaction.

    Of a marker that cannot be read, it does not matter: the next marker of a producer with an aborted transaction ends
    that one.
    """
    try:
        [record, *_], _ = next(marker.records())
        return bool(ControlRecord.parse(record.key) == ABORT_MARKER)
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
