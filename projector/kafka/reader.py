"""Reads the records of some topics: as a member of a consumer group, or ranges of offsets outside any group.

They are not fetched by aiokafka's consumer, which decompresses a batch without a limit on its size, and raises out of
`getmany` if a batch cannot be decompressed or if the name of a header is not UTF-8: at the same position each time, and
without the offset. It also asks each broker for as many bytes as all of them may return, and for more while some
partitions still have records.

A broker answers the requests of a connection one after the other, and a request for records waits up to `LINGER_MS`
for them. So these requests have connections of their own: a line that seeks its positions does not wait for them.

Each request goes to the leader of a partition, and says in which rack this projector is. If the leader knows a replica
in that rack, it names it in place of records (KIP-392), and the next requests go there.
"""

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import ConsumerRebalanceListener, TopicPartition
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

from projector.errors import Refused, Unavailable
from projector.kafka import ends, topics
from projector.kafka.batches import FetchedRecords, PendingRecords, Unpacker
from projector.kafka.client import client_of, consumer, errors, start, topic
from projector.kafka.ends import READ_COMMITTED, USUAL_SECONDS, OldestTransaction
from projector.kafka.groups import Groups, Member
from projector.kafka.record_batch import whole_batches
from projector.kafka.topics import UNKNOWN_EPOCH, Fork, Topic
from projector.problem import OtherCluster, TopicMissing
from projector.reason import TopicReason
from projector.record import Partition, Record
from schemas.layouts import MAX_PARTITIONS
from schemas.resources import Kind
from schemas.settings import ProjectorSettings

_FETCH_BYTES = 8 * 1_048_576
"""Bytes that the brokers may return at once, compressed. Only a single batch may exceed it."""
LINGER_MS, _RETRY_SECONDS = 200, 0.1
"""The time for which a broker may wait for records, and the pause after an error until it is asked again."""
REPLICA_SECONDS = 10.0
"""The time for which a replica that a leader has named is asked. Then the leader is asked again. A replica that has
lost the leader falls behind, and is no longer named when it is out of sync.
"""
_OF_FETCHES = max(ConnectionGroup) + 1
"""The group of connections that only requests for records use."""
_WITH_REPLICA = 11
"""Since this version of the answer, the preferred replica comes between the aborted transactions and the records."""
_COMMIT_SECONDS = 5.0
_POLL_SECONDS = 0.2
_HELD_PAUSE_SECONDS = 0.2

logger = logging.getLogger(__name__)


class Fetcher:
    """Fetches partitions from the offsets that were sought.

    It asks all brokers together for up to `most_bytes`, and for nothing while it holds `most_bytes` that are not
    unpacked yet: so it holds less than twice `most_bytes`. Only the first batch that a broker returns may be larger.
    `client` is an AIOKafkaClient, and `earliest` returns the first offset of a partition. `rack` is where this
    projector is; empty if it is not known.
    """

    def __init__(
        self,
        client: Any,
        unpacker: Unpacker,
        most_bytes: int,
        earliest: Callable[[Partition], Awaitable[int]],
        rack: str,
    ) -> None:
        self._client = client
        self._unpacker = unpacker
        self._most_bytes = most_bytes
        self._earliest = earliest
        self._rack = rack
        self._replicas: dict[Partition, tuple[int, float]] = {}
        """The broker that a leader has named, and until when it is asked."""
        self._offsets: dict[Partition, int] = {}
        self._held: dict[Partition, PendingRecords] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._error: Exception | None = None
        self.jumped: set[Partition] = set()
        """Partitions whose records were deleted before they were read."""
        self.was_interrupted = False
        """True if a broker was not available since this was set to False: another cluster may answer by now."""

    @property
    def offsets(self) -> Mapping[Partition, int]:
        """The next offset to be read of each partition that was sought, after any transaction markers."""
        return self._offsets

    def seek(self, partition: Partition, offset: int) -> None:
        """Return the records of this partition from this offset on."""
        self._held.pop(partition, None)
        self.jumped.discard(partition)
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
        return found

    def _ask(self) -> None:
        """Ask each broker, unless it is being asked, for its partitions of which no records are held."""
        if sum(rest.size for rest in self._held.values()) >= self._most_bytes:
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
            self.was_interrupted = True
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
        by_topic: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for at, offset in wanted:
            by_topic[at.topic].append((at.partition, offset, self._most_bytes // 2))
        # While records are held, the broker answers at once. If it waited for others, the records behind those that
        # are held could not be asked for until it had answered.
        wait = 0 if self._held else LINGER_MS
        most = self._most_bytes // max(1, len(self._client.cluster.brokers()))
        request = FetchRequest(wait, 1, most, READ_COMMITTED, list(by_topic.items()), self._rack)
        answer = await self._client.send(broker, request, group=_OF_FETCHES)
        asked = dict(wanted)
        for name, partitions in answer.topics:
            for number, code, _, *about, data in partitions:
                at = Partition(name, number)
                if self._offsets.get(at) == asked[at] and at not in self._held:  # otherwise it was sought meanwhile
                    if answer.API_VERSION >= _WITH_REPLICA:
                        *_, aborted, replica = about
                        if replica >= 0:
                            self._replicas[at] = (replica, time.monotonic() + REPLICA_SECONDS)
                    else:
                        aborted = about[-1]
                    await self._receive(at, for_code(code), data or b"", aborted or ())

    async def _receive(self, at: Partition, error: type[KafkaError], data: bytes, aborted: Iterable[Any]) -> None:
        """Hold what a broker has returned for a partition, or act on its error. Raises KafkaError."""
        if error is not NoError and at in self._replicas:
            raise error(f"{at.topic}:{at.partition}")  # only the leader knows: a replica may not have this offset yet
        if error is NoError:
            if data and not next(whole_batches(data), None):  # brokers before Kafka 0.10.1 cut off the first batch, too
                raise CorruptRecordException(f"no whole batch at {at.topic}:{at.partition}")
            if data:
                self._held[at] = PendingRecords(FetchedRecords(at, data, aborted, self._offsets[at], self._unpacker))
        elif error is OffsetOutOfRangeError:
            asked, first = self._offsets[at], await self._earliest(at)
            if self._offsets.get(at) == asked:
                self._offsets[at] = first
                if first > asked:
                    self.jumped.add(at)
        elif error is TopicAuthorizationFailedError:
            self._error = error(at.topic)
        else:
            raise error(f"{at.topic}:{at.partition}")


class _Fetching:
    """The topics of some kinds, a consumer that knows their brokers, and a Fetcher of their records."""

    def __init__(
        self,
        settings: ProjectorSettings,
        kinds: Sequence[Kind],
        fetch_bytes: int = _FETCH_BYTES,
        *,
        group_id: str | None = None,
    ) -> None:
        """`fetch_bytes` is what the brokers may return at once."""
        self._settings = settings
        self._kinds = {topic(settings, kind): kind for kind in kinds}
        self._unpacker = Unpacker(self._kinds, settings.max_record_bytes)
        self._consumer = consumer(settings, group_id)
        self._client = client_of(self._consumer)
        self.cluster = ""
        """The id of the cluster, as the brokers have said it last; empty if it is not known."""
        rack = settings.kafka_client_rack or ""
        self._fetcher = Fetcher(self._client, self._unpacker, fetch_bytes, self._earliest, rack)

    async def stop(self) -> None:
        """Close all connections."""
        await self._fetcher.close()
        # aiokafka cancels its tasks and waits for them. One that has not begun yet would raise CancelledError.
        await asyncio.sleep(0)
        await self._consumer.stop()

    def read_as(self, histories: Mapping[str, int], cluster: str) -> None:
        """Give records the history of their topic (`Record.history`), which is part of what is written to Redis. Raises
        Unavailable if the brokers do not belong to the cluster with the id `cluster`, as far as both ids are known.
        """
        if cluster and self.cluster and cluster != self.cluster:
            raise Unavailable(OtherCluster(cluster, self.cluster, accepted=False, access=False))
        self._unpacker.histories = histories

    async def present(self) -> list[Topic]:
        """Returns what any broker says about the topics, without their retention. Raises Unavailable."""
        found = await topics.present(self._client, self._kinds)
        self.cluster = found[0].cluster or self.cluster
        self._fetcher.was_interrupted = False
        return found

    async def described(self) -> list[Topic]:
        """Returns what any broker says about the topics, with their retention. Raises Unavailable."""
        return await topics.described(self._client, list(self._kinds))

    async def topic_ids(self) -> dict[str, str]:
        """Returns the id of each topic, as far as the brokers say it. Raises Unavailable."""
        return {topic.name: topic.id for topic in await self.present() if topic.id and topic.partitions}

    async def range(self, partitions: Collection[Partition]) -> dict[Partition, tuple[int, int]]:
        """Returns the first offset and the readable end of each partition: what can be read. Raises Unavailable."""
        first = await self._first_offsets(partitions)
        last = await self.readable_ends(partitions)
        return {partition: (first[partition], last[partition]) for partition in partitions}

    async def whole_range(self, partitions: Collection[Partition]) -> dict[Partition, tuple[int, int]]:
        """Returns the first offset and the end offset of each partition: what Kafka has acknowledged. This includes
        what is behind an open transaction and cannot be read. Raises Unavailable.
        """
        first = await self._first_offsets(partitions)
        last = await self.end_offsets(partitions)
        return {partition: (first[partition], last[partition]) for partition in partitions}

    async def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the end offset of each partition. Raises Unavailable."""
        async with errors():
            return await ends.end_offsets(self._client, partitions)

    async def readable_ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the readable end of each partition. Raises Unavailable."""
        async with errors():
            return await ends.readable_ends(self._client, partitions)

    async def open_transaction(self, partition: Partition, first: int, end: int) -> OldestTransaction:
        """Returns the transaction that is open between the readable end of a partition, `first`, and its end offset.
        Raises Unavailable.
        """
        async with errors():
            return await ends.open_transaction(self._client, partition, first, end)

    async def _first_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        async with errors():
            return await ends.first_offsets(self._client, partitions)

    async def _earliest(self, partition: Partition) -> int:
        [offset] = (await ends.first_offsets(self._client, [partition])).values()
        return offset


class Source(_Fetching, ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """A member of a consumer group, which shares the partitions of some topics with the other members.

    The caller decides from which offset each assigned partition is read: `poll` returns no records of a partition
    before `seek` has been called for it.
    """

    def __init__(
        self,
        settings: ProjectorSettings,
        kinds: Sequence[Kind],
        group_id: str,
    ) -> None:
        super().__init__(settings, kinds, group_id=group_id)
        self._on_revoked: Callable[[], Awaitable[None]] | None = None
        self._look_ups = 0
        self.topics = frozenset(self._kinds)

    async def start(self, on_revoked: Callable[[], Awaitable[None]] | None = None) -> None:
        """Connect and join the group. `on_revoked` is awaited before partitions are revoked. Raises Unavailable."""
        self._on_revoked = on_revoked
        await start(self._consumer, self._settings)
        self.join()

    def join(self) -> None:
        """Ask the group for partitions."""
        self._consumer.subscribe(list(self._kinds), listener=self)

    def leave(self) -> None:
        """Leave all partitions to the other members, until `join`."""
        self.reset(self._fetcher.offsets)
        self._consumer.unsubscribe()

    @property
    def member_id(self) -> str:
        """The id that the group has given this member; empty if it is none."""
        coordinator = self._consumer._coordinator  # noqa: SLF001 - the consumer does not offer it
        return str(coordinator.member_id) if coordinator else ""

    def assigned(self) -> set[Partition]:
        """Returns the partitions that are assigned to this member now."""
        return {Partition(*partition) for partition in self._consumer.assignment()}

    def unpositioned(self) -> list[Partition]:
        """Returns the assigned partitions that wait for `seek`."""
        return sorted(self.assigned() - self._fetcher.offsets.keys())

    def reset(self, partitions: Iterable[Partition]) -> None:
        """Return no records of these partitions until the next `seek`."""
        self._fetcher.forget(partitions)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Called by aiokafka."""
        if revoked and self._on_revoked:
            await self._on_revoked()
        self.reset([Partition(*partition) for partition in revoked])

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:  # noqa: ARG002 - of aiokafka
        """Called by aiokafka."""
        self._consumer.pause(*self._consumer.assignment())  # so that aiokafka's consumer fetches nothing
        # Partitions that another member has now are reset, too. They counted as assigned until now, so `seek` may have
        # been called for them again.
        self.reset(self._fetcher.offsets)

    async def seek(
        self, offsets: Mapping[Partition, int | None], leader_epochs: Mapping[Partition, int] | None = None
    ) -> dict[Partition, int]:
        """Seek each partition (None: earliest). Returns the offsets used. Raises Unavailable.

        An offset that the partition does not contain is logged, and the earliest one is used instead. `leader_epochs`
        are those of the record batches before these offsets, as far as they are known.
        """
        if wide := [topic for topic, number in offsets if number >= MAX_PARTITIONS]:
            raise Refused(TopicReason("too_many_partitions", (wide[0],), MAX_PARTITIONS))
        available = await self.whole_range(offsets.keys())
        if lost := offsets.keys() - self.assigned():  # a rebalance may have come meanwhile
            raise Unavailable(TopicReason("revoked_early", number=len(lost)))
        used = {}
        for partition, offset in offsets.items():
            used[partition] = _existing(partition, offset, *available[partition])
            self._fetcher.seek(partition, used[partition])
            self._unpacker.leader_epochs.pop(partition, None)
            if leader_epochs and partition in leader_epochs:
                self._unpacker.leader_epochs[partition] = leader_epochs[partition]
        return used

    def leader_epoch(self, partition: Partition) -> int:
        """Returns the epoch of the leader that has written the last record batch that was polled; `UNKNOWN_EPOCH` if it
        is not known.
        """
        return self._unpacker.leader_epochs.get(partition, UNKNOWN_EPOCH)

    async def forks(self, leader_epochs: Mapping[Partition, int]) -> dict[Partition, Fork]:
        """Returns, for each partition, the offset up to which its log is still that of the leader of this epoch.
        Partitions of which that is not known are left out. Raises Unavailable.
        """
        return await topics.forks(self._client, leader_epochs) if leader_epochs else {}

    async def first_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Returns the first offset of each partition. Raises Unavailable."""
        async with errors():
            found = await self._consumer.beginning_offsets([TopicPartition(*at) for at in partitions])
        return {Partition(*at): offset for at, offset in found.items()}

    @property
    def has_jumped(self) -> bool:
        """True if records of a partition were deleted before they were read: reading continues at its first offset."""
        return not self._fetcher.jumped.isdisjoint(self._fetcher.offsets)

    async def is_elsewhere(self, cluster: str) -> bool:
        """Returns whether the brokers belong to another cluster by now. They are asked only if one of them was not
        available meanwhile. Raises Unavailable.
        """
        if not (self._fetcher.was_interrupted and cluster):
            return False
        await self.present()
        return self.cluster not in ("", cluster)

    async def was_cut_off(self) -> bool:
        """Returns whether the last poll met a new leader that lacks records of the former leader, so that the polled
        records do not continue those that were read before. Raises Unavailable.
        """
        if not (new_leaders := self._unpacker.new_leaders):
            return False
        found = await self.forks({Partition(*at): epoch for at, (_, epoch) in new_leaders.items()})
        return any(fork.offset < new_leaders[at][0] for at, fork in found.items())

    async def poll(self, most: int, wait: float) -> dict[Partition, list[Record]]:
        """Returns up to `most` records, in order for each partition; fewer if they are large or take long to unpack.

        Waits up to `wait` seconds. Raises Unavailable.
        """
        await self.stay()
        return await self.more(most, wait)

    async def stay(self) -> None:
        """Remain a member of the group, as `poll` does, and read nothing: a member that does neither for some minutes
        is removed. Raises Unavailable.
        """
        async with errors():
            await self._consumer.getmany(timeout_ms=0)  # of its own consumer, in which everything is paused

    async def more(self, most: int, wait: float) -> dict[Partition, list[Record]]:
        """Returns the records behind the last poll. It does not wait for the end of a rebalance as `poll` may, because
        this member may have to finish its batch before its partitions are revoked. Raises Unavailable.
        """
        if (look_ups := client_of(self._consumer).look_ups) != self._look_ups:
            self._look_ups = look_ups
            self.reset(self._fetcher.offsets)  # these offsets may be of another history now, or of another cluster
        async with errors():
            return await self._fetcher.poll(most, wait)

    def position(self, partition: Partition) -> int | None:
        """Returns the next offset to be read, after any transaction markers; None if the partition waits for `seek`.

        Until `seek`, no offset is certain: records that were read before a rebalance may not have been applied, and
        Redis may have lost records that the group has committed.
        """
        return self._fetcher.offsets.get(partition)

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets to the group, for lag tools only: nothing resumes from them. Raises Unavailable."""
        owned = self.assigned()
        wanted = {TopicPartition(*p): offset for p, offset in offsets.items() if p in owned}
        if wanted:
            # Without a limit, aiokafka waits until the group has a coordinator again, and no record is read meanwhile.
            async with errors(), asyncio.timeout(_COMMIT_SECONDS):
                await self._consumer.commit(wanted)


class Reader(_Fetching):
    """Reads ranges of offsets without a consumer group: for redrive, reapply, verify and status. A rebuild asks it for
    offsets only, because its replay is a `Line`.
    """

    def __init__(self, settings: ProjectorSettings, kinds: Sequence[Kind], fetch_bytes: int = _FETCH_BYTES) -> None:
        super().__init__(settings, kinds, fetch_bytes)
        self._groups = Groups(settings.group_id)

    async def start(self) -> None:
        """Connect. Raises Unavailable."""
        try:
            await start(self._consumer, self._settings)
        except BaseException:
            await self._consumer.stop()
            raise

    @property
    def histories(self) -> Mapping[str, int]:
        """Which history of each topic is read; 0 for those that are absent."""
        return self._unpacker.histories

    async def members(self) -> list[Member] | None:
        """Returns the members of the groups of the settings; None if they are not known, for example if the right to
        ask for them is missing.
        """
        try:
            return await self._groups.members(client_of(self._consumer))
        except Unavailable:
            return None

    async def partitions(self) -> list[Partition]:
        """Returns all partitions of the topics; a topic that does not exist has none. Raises Unavailable."""
        return [partition for topic in await self.present() for partition in topic.partitions]

    async def existing_partitions(self) -> list[Partition]:
        """Returns all partitions of the topics. Raises Refused if one of the topics does not exist, and Unavailable."""
        found = await self.present()
        if missing := [topic.name for topic in found if not topic.partitions]:
            raise Refused(TopicMissing(tuple(missing)))
        return [partition for topic in found for partition in topic.partitions]

    async def first_times(self, ranges: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """Returns Kafka's timestamp, in ms since 1970, of the first record in each of these ranges [first, last).

        A range without records, because compaction has removed them, is left out. Raises Unavailable.
        """
        found: dict[Partition, int] = {}
        async for partition, records in self._read(ranges, 1):
            found[partition] = records[0].timestamp
            self._fetcher.forget([partition])
        return found

    async def read(self, ranges: Mapping[Partition, tuple[int, int]], most: int = 5000) -> AsyncIterator[list[Record]]:
        """Yields all records of these ranges [first, last), in order for each partition. Raises Unavailable."""
        async for _, records in self._read(ranges, most):
            yield records

    async def _read(
        self, ranges: Mapping[Partition, tuple[int, int]], most: int
    ) -> AsyncIterator[tuple[Partition, list[Record]]]:
        """Yields the records of each partition until it is read to its end, or forgotten."""
        self._fetcher.forget(self._fetcher.offsets)  # of a reading that was not finished
        for partition, (first, last) in ranges.items():
            if first < last:
                self._fetcher.seek(partition, first)
        while self._fetcher.offsets:
            async with errors():
                polled = await self._fetcher.poll(most, _POLL_SECONDS)
            # The position decides, not the last record: compaction may have removed the last records of a range.
            self._fetcher.forget([at for at, offset in self._fetcher.offsets.items() if offset >= ranges[at][1]])
            for partition, records in polled.items():
                if wanted := [record for record in records if record.offset < ranges[partition][1]]:
                    yield partition, wanted


@asynccontextmanager
async def open_reader(
    settings: ProjectorSettings, kinds: Sequence[Kind], fetch_bytes: int = _FETCH_BYTES
) -> AsyncIterator[Reader]:
    """Yields a connected reader of these topics, and closes it at the end. Raises Unavailable."""
    reader = Reader(settings, kinds, fetch_bytes)
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop()


async def held_back(
    settings: ProjectorSettings, kinds: Sequence[Kind], seconds: float = USUAL_SECONDS
) -> dict[Partition, OldestTransaction]:
    """Wait for at most `seconds` until everything can be read that Kafka has acknowledged by now. Returns the
    transactions that hold back the rest. Raises Unavailable.
    """
    until = time.monotonic() + seconds
    async with open_reader(settings, kinds) as reader:
        held = await reader.end_offsets(await reader.partitions())
        while True:
            readable = await reader.readable_ends(held)
            held = {partition: end for partition, end in held.items() if readable[partition] < end}
            if not held or time.monotonic() > until:
                break
            await asyncio.sleep(_HELD_PAUSE_SECONDS)
        return {at: await reader.open_transaction(at, readable[at], end) for at, end in held.items()}


def _existing(partition: Partition, offset: int | None, begin: int, end: int) -> int:
    """Returns the offset if the partition contains it, otherwise the earliest one."""
    if offset is None or begin <= offset <= end:
        return begin if offset is None else offset
    reason = "the records after it were deleted" if offset < begin else "the partition ends before it"
    logger.warning(
        "a partition does not contain the stored position (%s): it is read from its first record",
        reason,
        extra={"partition": list(partition), "position": offset, "begin": begin, "end": end},
    )
    return begin
