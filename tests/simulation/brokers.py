"""A model of Kafka, as far as the programs use it: brokers that share one state and speak the protocol with aiokafka.

Partitions have leaders with epochs, a high watermark and a last stable offset; records are in batches. Compaction
leaves the newest record of each key. Consumer groups rebalance as those of Kafka do. What is left out: replication
between brokers (what is acknowledged is never lost), retention, added partitions, topics that are created again.
"""

import asyncio
import struct
from asyncio import Future
from base64 import urlsafe_b64encode
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka.protocol import admin, commit, coordination, fetch, group, metadata, offset
from aiokafka.protocol.api import RequestHeader_v1, RequestHeader_v2
from msgspec import Struct, field

from projector.kafka import topics as of_projector
from projector.record import Partition
from tests.harness import raw_batches
from tests.harness.crm import Message, at_ms
from tests.simulation.loop import Loop, Process

PORT = 9092
_OK, _OUT_OF_RANGE, _UNKNOWN_TOPIC, _NO_LEADER, _NOT_LEADER = 0, 1, 3, 5, 6
_NOT_COORDINATOR, _ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _REBALANCING = 16, 22, 25, 27
_FIRST_JOIN_SECONDS, _TICK_SECONDS = 0.3, 0.25
_EARLIEST = -2
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_VERSIONS = {1: 11, 2: 3, 8: 3, 9: 3, 10: 1, 11: 2, 12: 1, 13: 1, 14: 1, 15: 2, 18: 0, 23: 3, 32: 0}
"""The version of each request that brokers know. Of metadata they know 5, as the client asks for it, and 10."""
_METADATA, _WITH_IDS = (3, 5, 10), 10
_REQUESTS: dict[tuple[int, int], Any] = {
    (request.API_KEY, request.API_VERSION): request
    for asked in (
        fetch.FetchRequest,
        offset.OffsetRequest,
        metadata.MetadataRequest,
        of_projector.TopicsRequest,
        of_projector._EpochsRequest,
        commit.OffsetCommitRequest,
        commit.OffsetFetchRequest,
        coordination.FindCoordinatorRequest,
        group.JoinGroupRequest,
        group.SyncGroupRequest,
        group.HeartbeatRequest,
        group.LeaveGroupRequest,
        admin.DescribeGroupsRequest,
        admin.DescribeConfigsRequest,
        admin.ApiVersionRequest,
    )
    for request in asked._CLASSES
}


class Entry(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: int


class Batch:
    """A record batch. `producer` is -1 outside of a transaction; `entries` of a marker are none."""

    def __init__(self, base: int, last: int, epoch: int, entries: Sequence[Entry], producer: int = -1) -> None:
        self.base, self.last, self.epoch, self.entries, self.producer = base, last, epoch, entries, producer
        self._bytes = b""

    @property
    def content(self) -> bytes:
        self._bytes = self._bytes or self._encoded()
        return self._bytes

    def _encoded(self) -> bytes:
        first = self.entries[0].timestamp if self.entries else 0
        records = [
            raw_batches.record(
                entry.offset - self.base,
                entry.key,
                entry.value,
                [(name.encode(), value) for name, value in entry.headers],
                entry.timestamp - first,
            )
            for entry in self.entries
        ]
        attributes = 0 if self.producer < 0 else _TRANSACTIONAL
        content = raw_batches.batch(records, attributes=attributes, base=self.base, producer=self.producer)
        return _stamped(content, self, first)


class Marker(Batch):
    """The end of a transaction."""

    def __init__(self, base: int, epoch: int, producer: int, *, commits: bool) -> None:
        super().__init__(base, base, epoch, (), producer)
        self.commits = commits

    def _encoded(self) -> bytes:
        record = raw_batches.record(0, struct.pack(">hh", 0, self.commits), struct.pack(">hi", 0, 0))
        attributes = _TRANSACTIONAL | _CONTROL
        return _stamped(
            raw_batches.batch([record], attributes=attributes, base=self.base, producer=self.producer), self, 0
        )


def _stamped(content: bytes, batch: Batch, first: int) -> bytes:
    """Returns a batch with its epoch, its times and its last offset."""
    last = max((entry.timestamp for entry in batch.entries), default=first)
    body = content[21:23] + struct.pack(">iqq", batch.last - batch.base, first, last) + content[43:]
    return content[:12] + struct.pack(">ibI", batch.epoch, 2, raw_batches.checksum(body)) + body


class Log(Struct):
    """A partition. `epochs` has where each leader epoch begins; `aborted` are (producer, first offset, marker)."""

    leader: int
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    batches: list[Batch] = field(default_factory=list)
    first: int = 0
    end: int = 0
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.end)

    def append(self, entries: Sequence[Message], producer: int = -1) -> list[Entry]:
        epoch = self.epochs[-1][0]
        made = [
            Entry(self.end + number, message.key, message.value, message.headers, at_ms(message.seconds))
            for number, message in enumerate(entries)
        ]
        self.batches.append(Batch(self.end, made[-1].offset, epoch, made, producer))
        if producer >= 0:
            self.open.setdefault(producer, self.end)
        self.end += len(made)
        return made

    def finish(self, producer: int, *, commits: bool) -> None:
        began = self.open.pop(producer)
        if not commits:
            self.aborted.append((producer, began, self.end))
        self.batches.append(Marker(self.end, self.epochs[-1][0], producer, commits=commits))
        self.end += 1

    def lead(self, leader: int) -> None:
        self.leader = leader
        self.epochs.append((self.epochs[-1][0] + 1, self.end))

    def compact(self, *, forgets: Callable[[Entry], bool]) -> None:
        """Leave the newest record of each key, and of those that `forgets` names nothing."""
        newest = {entry.key: entry.offset for entry in self.entries()}
        for batch in self.batches:
            if batch.producer < 0 and batch.last < self.stable:
                kept = [entry for entry in batch.entries if newest[entry.key] == entry.offset and not forgets(entry)]
                if len(kept) < len(batch.entries):
                    batch.entries, batch._bytes = kept, b""
        self.batches = [batch for batch in self.batches if batch.entries or isinstance(batch, Marker)]

    def entries(self) -> Iterator[Entry]:
        """Yields what readers of committed records get by the end of all transactions."""
        spoiled = [(producer, began, until) for producer, began, until in self.aborted]
        for batch in self.batches:
            if any(batch.producer == producer and began <= batch.base < until for producer, began, until in spoiled):
                continue
            yield from batch.entries

    def read(self, offset: int, end: int, most: int) -> bytes:
        """Returns batches from the one on that has this offset."""
        index = max(0, bisect_right(self.batches, offset, key=lambda batch: batch.base) - 1)
        content = b""
        for batch in self.batches[index:]:
            if batch.last < offset:
                continue
            if batch.base >= end or (content and len(content) + len(batch.content) > most):
                break
            content += batch.content
        return content

    def fork(self, epoch: int) -> tuple[int, int]:
        """Returns the last epoch up to this one, and where it ends."""
        known = [number for number, (begun, _) in enumerate(self.epochs) if begun <= epoch]
        if not known:
            return -1, -1
        place = known[-1]
        return self.epochs[place][0], self.epochs[place + 1][1] if place + 1 < len(self.epochs) else self.end


class Member(Struct):
    client_id: str
    host: str
    seconds: float
    rebalance_seconds: float
    protocols: list[tuple[str, bytes]]
    seen_at: float
    joining: "Future[None] | None" = None
    assignment: bytes = b""


class Group:
    """A consumer group and its members."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.members: dict[str, Member] = {}
        self.generation = 0
        self.state = "Empty"
        self.leader = ""
        self.offsets: dict[tuple[str, int], tuple[int, str]] = {}
        self._syncing: Future[None] | None = None
        self._due_at = 0.0

    def rebalance(self) -> None:
        if self.state != "PreparingRebalance":
            longest = max((member.rebalance_seconds for member in self.members.values()), default=0.0)
            self._due_at = self.loop.now + (_FIRST_JOIN_SECONDS if self.state == "Empty" else longest)
            self._is_first = self.state == "Empty"
            self.state = "PreparingRebalance"
            if self._syncing and not self._syncing.done():
                self._syncing.set_result(None)

    def tick(self) -> None:
        """Remove members that are silent, and end the rebalance that is due."""
        now = self.loop.now
        for id_, member in list(self.members.items()):
            if member.joining is None and now - member.seen_at > member.seconds:
                self.remove(id_)
        if self.state == "PreparingRebalance":
            complete = all(member.joining for member in self.members.values())
            if (complete and not self._is_first) or now >= self._due_at:
                self._begin()

    def remove(self, id_: str) -> None:
        member = self.members.pop(id_, None)
        if member:
            if member.joining and not member.joining.done():
                member.joining.set_result(None)
            self.rebalance()

    def _begin(self) -> None:
        for id_ in [id_ for id_, member in self.members.items() if member.joining is None]:
            del self.members[id_]
        self.generation += 1
        self.state = "CompletingRebalance" if self.members else "Empty"
        self._syncing = self.loop.create_future()
        if self.leader not in self.members:
            self.leader = next(iter(self.members), "")
        for member in self.members.values():
            joining, member.joining, member.assignment, member.seen_at = member.joining, None, b"", self.loop.now
            if joining and not joining.done():
                joining.set_result(None)

    async def synced(self, generation: int) -> None:
        """Wait until the leader has assigned the partitions, or the next rebalance begins."""
        if self.state == "CompletingRebalance" and self.generation == generation and self._syncing:
            await asyncio.shield(self._syncing)

    def assign(self, assignments: Iterable[tuple[str, bytes]]) -> None:
        for id_, assignment in assignments:
            if id_ in self.members:
                self.members[id_].assignment = assignment
        self.state = "Stable"
        if self._syncing and not self._syncing.done():
            self._syncing.set_result(None)

    def error(self, id_: str, generation: int) -> int:
        """Returns why this is no member of this generation; 0 if it is one."""
        if id_ not in self.members:
            return _UNKNOWN_MEMBER
        self.members[id_].seen_at = self.loop.now
        return _OK if generation == self.generation else _ILLEGAL_GENERATION


class Cluster:
    """The state that the brokers share. `settings` are those of topics."""

    def __init__(self, loop: Loop, id_: str, hosts: Sequence[str]) -> None:
        self.loop = loop
        self.id = id_
        self.hosts = {number + 1: host for number, host in enumerate(hosts)}
        self.alive: dict[int, Process] = {}
        self.logs: dict[Partition, Log] = {}
        self.ids: dict[str, str] = {}
        self.settings: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self.groups: defaultdict[str, Group] = defaultdict(lambda: Group(loop))
        self.waiting: list[Future[None]] = []
        """Requests for records, which wait for some."""

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, also in place of one with this name."""
        for partition in self.partitions(topic):
            del self.logs[partition]
        self.ids[topic] = urlsafe_b64encode(self.loop.random.randbytes(16)).decode().rstrip("=")
        for number in range(partitions):
            self.logs[Partition(topic, number)] = Log(1 + number % len(self.hosts))
        for members in self.groups.values():
            members.offsets = {at: stored for at, stored in members.offsets.items() if at[0] != topic}

    def append(self, at: Partition, messages: Sequence[Message], producer: int = -1) -> list[Entry]:
        """Append records in one batch, and wake up those who wait for records."""
        entries = self.logs[at].append(messages, producer)
        self.wake()
        return entries

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            _resolve(waiter)

    def partitions(self, topic: str) -> list[Partition]:
        return [at for at in self.logs if at.topic == topic]

    def start(self, number: int, process: Process) -> None:
        self.alive[number] = process
        for partition, log in self.logs.items():
            if log.leader == -1 or 1 + partition.partition % len(self.hosts) == number:
                log.lead(number)

    def stop(self, number: int) -> None:
        """A broker is gone: others lead its partitions."""
        self.alive.pop(number, None)
        for log in self.logs.values():
            if log.leader == number:
                log.lead(min(self.alive, default=-1))

    async def tick(self) -> None:
        while True:
            for members in list(self.groups.values()):
                members.tick()
            await asyncio.sleep(_TICK_SECONDS)

    def coordinator(self, _group: str) -> int:
        return min(self.alive, default=-1)


class Connection(asyncio.Protocol):
    """A connection to a broker, which answers one request after the other."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster, self._number = cluster, number
        self._data = b""
        self._requests: asyncio.Queue[bytes] = asyncio.Queue()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._peer = transport.get_extra_info("peername")[0]
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= (size := 4 + int.from_bytes(self._data[:4], "big")):
            self._requests.put_nowait(self._data[4:size])
            self._data = self._data[size:]

    async def _serve(self) -> None:
        while True:
            request = await self._requests.get()
            kind = _REQUESTS[struct.unpack(">hh", request[:4])]
            stream = BytesIO(request)
            flexible = kind.FLEXIBLE_VERSION
            header = (RequestHeader_v2 if flexible else RequestHeader_v1).SCHEMA.decode(stream)
            asked = kind.decode(stream)
            self._client_id = header[3]
            answer = await getattr(self, f"_{kind.__name__.partition('Request_')[0].lstrip('_').lower()}")(asked)
            body = kind.RESPONSE_TYPE.SCHEMA.encode(answer)
            content = struct.pack(">i", header[2]) + (b"\0" if flexible else b"") + body
            self._transport.write(struct.pack(">i", len(content)) + content)

    async def _apiversion(self, _: Any) -> list[Any]:
        return [_OK, [*((key, version, version) for key, version in _VERSIONS.items()), _METADATA]]

    async def _metadata(self, asked: Any) -> list[Any]:
        cluster, with_ids = self._cluster, asked.API_VERSION == _WITH_IDS
        end: list[Any] = [{}] if with_ids else []
        names = [topic[1] if with_ids else topic for topic in asked.topics or ()]
        if asked.topics is None:
            names = list(cluster.ids)
        # A rack that is None would give the broker another hash in each process, before Python 3.12.
        brokers = [(number, cluster.hosts[number], PORT, "", *end) for number in sorted(cluster.alive)]
        topics = [self._topic(name, with_ids, end) for name in names]
        controller = min(cluster.alive, default=-1)
        return [0, brokers, cluster.id, controller, topics, *([-(2**31), {}] if with_ids else [])]

    def _topic(self, name: str, with_ids: bool, end: list[Any]) -> tuple[Any, ...]:
        cluster = self._cluster
        everyone = sorted(cluster.hosts)
        partitions = []
        for at in cluster.partitions(name):
            log = cluster.logs[at]
            error = _OK if log.leader > 0 else _NO_LEADER
            epoch = [log.epochs[-1][0]] if with_ids else []
            partitions.append((error, at.partition, log.leader, *epoch, everyone, everyone, [], *end))
        error = _OK if name in cluster.ids else _UNKNOWN_TOPIC
        if with_ids:
            return error, name, cluster.ids.get(name, ""), False, partitions, -(2**31), *end
        return error, name, False, partitions

    def _log(self, topic: str, number: int) -> tuple[int, Log]:
        log = self._cluster.logs.get(Partition(topic, number))
        if log is None:
            return _UNKNOWN_TOPIC, Log(-1)
        return (_OK if log.leader == self._number else _NOT_LEADER), log

    async def _fetch(self, asked: Any) -> list[Any]:
        until = self._cluster.loop.now + asked.max_wait_time / 1000
        while True:
            found = [
                (topic, [self._read(topic, asked.isolation_level, *wanted) for wanted in partitions])
                for topic, partitions in asked.topics
            ]
            if any(part[1] or part[-1] for _, parts in found for part in parts) or self._cluster.loop.now >= until:
                break
            waiter = self._cluster.loop.create_future()
            self._cluster.waiting.append(waiter)
            self._cluster.loop.call_at(until, _resolve, waiter)
            await waiter
        return [0, _OK, 0, found]

    def _read(
        self, topic: str, isolation: int, number: int, _epoch: int, offset: int, _first: int, most: int
    ) -> tuple[Any, ...]:
        error, log = self._log(topic, number)
        end = log.stable if isolation else log.end
        content, aborted = b"", []
        if not error and not log.first <= offset <= log.end:
            error = _OUT_OF_RANGE
        if not error and offset < end:
            content = log.read(offset, end, most)
            aborted = [(producer, began) for producer, began, marker in log.aborted if marker >= offset and began < end]
        return number, error, log.end, log.stable, log.first, aborted, -1, content

    async def _offset(self, asked: Any) -> list[Any]:
        rows = []
        for topic, partitions in asked.topics:
            parts = []
            for number, time in partitions:
                error, log = self._log(topic, number)
                latest = log.stable if asked.isolation_level else log.end
                parts.append((number, error, -1, log.first if time == _EARLIEST else latest))
            rows.append((topic, parts))
        return [0, rows]

    async def _epochs(self, asked: Any) -> list[Any]:
        rows = []
        for topic, partitions in asked.topics:
            parts = []
            for number, _, epoch in partitions:
                error, log = self._log(topic, number)
                known, end = log.fork(epoch)
                parts.append((error, number, known, end))
            rows.append((topic, parts))
        return [0, rows]

    async def _describeconfigs(self, asked: Any) -> list[Any]:
        rows = []
        for kind, name, _ in asked.resources:
            usual = {"cleanup.policy": "compact", "retention.ms": "604800000", "retention.bytes": "-1"}
            usual |= {"delete.retention.ms": "86400000"} | self._cluster.settings[name]
            configs = [(key, value, False, False, False) for key, value in usual.items()]
            known = name in self._cluster.ids
            rows.append((_OK if known else _UNKNOWN_TOPIC, None, kind, name, configs if known else []))
        return [0, rows]

    async def _findcoordinator(self, asked: Any) -> list[Any]:
        number = self._cluster.coordinator(asked.coordinator_key)
        return [0, _OK, None, number, self._cluster.hosts.get(number, ""), PORT]

    def _group(self, name: str) -> Group | None:
        """Returns a group; None if another broker is its coordinator."""
        return self._cluster.groups[name] if self._cluster.coordinator(name) == self._number else None

    async def _joingroup(self, asked: Any) -> list[Any]:
        members = self._group(asked.group)
        refused = [-1, "", "", asked.member_id, []]
        if members is None:
            return [0, _NOT_COORDINATOR, *refused]
        id_ = asked.member_id
        if id_ and id_ not in members.members:
            return [0, _UNKNOWN_MEMBER, *refused]
        now, loop = self._cluster.loop.now, self._cluster.loop
        if not id_:
            id_ = f"{self._client_id}-{loop.random.getrandbits(64):016x}"
        seconds, rebalance = asked.session_timeout / 1000, asked.rebalance_timeout / 1000
        member = members.members.get(id_)
        if member is None:
            members.rebalance()
            member = Member(self._client_id, self._peer, seconds, rebalance, asked.group_protocols, now)
            members.members[id_] = member
        else:
            members.rebalance()
            member.protocols, member.seen_at = asked.group_protocols, now
        member.joining = joining = loop.create_future()
        try:
            await joining
        finally:
            if member.joining is joining:  # the connection is gone: from now on its heartbeats count
                member.joining = None
        if id_ not in members.members:
            return [0, _UNKNOWN_MEMBER, *refused]
        name, _ = member.protocols[0]
        others = [(other, each.protocols[0][1]) for other, each in members.members.items()]
        is_leader = members.leader == id_
        return [0, _OK, members.generation, name, members.leader, id_, others if is_leader else []]

    async def _syncgroup(self, asked: Any) -> list[Any]:
        members = self._group(asked.group)
        error = _NOT_COORDINATOR if members is None else members.error(asked.member_id, asked.generation_id)
        if members is not None and not error:
            if members.state == "CompletingRebalance" and asked.member_id == members.leader:
                members.assign(asked.group_assignment)
            await members.synced(asked.generation_id)
            error = members.error(asked.member_id, asked.generation_id)
            if not error and members.state != "Stable":
                error = _REBALANCING
        assigned = members.members[asked.member_id].assignment if members is not None and not error else b""
        return [0, error, assigned]

    async def _heartbeat(self, asked: Any) -> list[Any]:
        members = self._group(asked.group)
        error = _NOT_COORDINATOR if members is None else members.error(asked.member_id, asked.generation_id)
        if members is not None and not error and members.state == "PreparingRebalance":
            error = _REBALANCING
        return [0, error]

    async def _leavegroup(self, asked: Any) -> list[Any]:
        members = self._group(asked.group)
        if members is not None:
            members.remove(asked.member_id)
        return [0, _NOT_COORDINATOR if members is None else _OK]

    async def _offsetcommit(self, asked: Any) -> list[Any]:
        members = self._group(asked.consumer_group)
        id_, generation = asked.consumer_id, asked.consumer_group_generation_id
        if members is None:
            error = _NOT_COORDINATOR
        elif generation < 0 and not members.members:
            error = _OK
        else:
            error = members.error(id_, generation)
            if not error and members.state == "CompletingRebalance":
                error = _REBALANCING
        if members is not None and not error:
            for topic, partitions in asked.topics:
                for number, place, text in partitions:
                    members.offsets[topic, number] = place, text
        rows = [(topic, [(number, error) for number, *_ in partitions]) for topic, partitions in asked.topics]
        return [0, rows]

    async def _offsetfetch(self, asked: Any) -> list[Any]:
        members = self._group(asked.consumer_group)
        stored = members.offsets if members is not None else {}
        error = _NOT_COORDINATOR if members is None else _OK
        rows = [
            (topic, [(number, *stored.get((topic, number), (-1, "")), error) for number in partitions])
            for topic, partitions in asked.topics or ()
        ]
        return [0, rows, error]

    async def _describegroups(self, asked: Any) -> list[Any]:
        rows = []
        for name in asked.groups:
            members = self._group(name)
            everyone = (
                []
                if members is None
                else [
                    (id_, member.client_id, f"/{member.host}", member.protocols[0][1], member.assignment)
                    for id_, member in members.members.items()
                ]
            )
            state = "Dead" if members is None else members.state
            rows.append((_NOT_COORDINATOR if members is None else _OK, name, state, "consumer", "roundrobin", everyone))
        return [0, rows]


def _resolve(waiter: "Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
