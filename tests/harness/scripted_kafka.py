"""What a line sees of Kafka, by script: records, rebalances, recreated topics and failures come when the test says so.

Redis is real, and so is everything of the line but its source. That the source itself says what Kafka does is shown by
the tests with a real Kafka.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import cast

from aiokafka.structs import OffsetAndMetadata

from projector.errors import Unavailable
from projector.kafka.accepted import Accepted
from projector.kafka.reader import Source
from projector.kafka.topics import UNKNOWN_EPOCH, Fork
from projector.offsets import Ranges
from projector.problem import OtherCluster
from projector.record import Partition, Record
from schemas.resources import RESOURCES, Kind
from tests.harness.crm import Message

_QUIET_SECONDS = 0.002
"""How long a poll waits for records that do not come."""


class ScriptedKafka:
    """The source of a line, and the texts of what operators have accepted. All partitions are assigned to the line,
    once it has joined.
    """

    group_id = "scripted.accepted"

    def __init__(self) -> None:
        self.records: dict[Partition, list[Record]] = {}
        self.ends: dict[Partition, int] = {}
        """Where a partition ends, if markers follow on its last record."""
        self.firsts: dict[Partition, int] = {}
        """Where a partition begins, if its first records were deleted."""
        self.held_back = 0
        """How many records of each partition no poll returns, although they are before its readable end."""
        self.ids: dict[str, str] = {}
        self.leader_epochs: dict[Partition, int] = {}
        self.cluster = ""
        """The id of the cluster; empty if the brokers do not say it."""
        self._forks: dict[Partition, Fork] = {}
        self._was_cut_off = False
        self._jumped: set[Partition] = set()
        self.accepted: dict[Partition, Accepted] = {}
        self.meanwhile: list[Callable[[], None]] = []
        """What happens while accepted records are read, one of them each time."""
        self.errors: list[Exception] = []
        """What the next polls raise."""
        self.refusals: list[Exception] = []
        """What the next commits raise."""
        self.of_others: set[Partition] = set()
        """Partitions that another member has by now."""
        self.calls: list[str] = []
        self._seeks: list[Mapping[Partition, int | None]] = []
        self.committed: dict[Partition, int] = {}
        self.member = False
        self.member_id = "scripted"
        self.polls = self.stays = 0
        """How often the line wanted to read, and how often it only wanted to stay a member."""
        self.offsets: dict[Partition, int] = {}
        self.revoke: Callable[[], Awaitable[None]]
        self.topics: frozenset[str] = frozenset()

    def source(self, kinds: Sequence[Kind] = RESOURCES) -> Source:
        """Returns it as the source of the next line, which reads these kinds."""
        self.topics = frozenset(f"crm.{kind.topic}" for kind in kinds)
        self.offsets.clear()
        for name in self.topics:
            self.records.setdefault(Partition(name, 0), [])
            self.ids.setdefault(name, f"{name}-1")
        return cast(Source, self)

    def publish(self, *messages: Message) -> set[Partition]:
        """Add these messages to partition 0 of their topics. Returns these partitions."""
        partitions: set[Partition] = set()
        for message in messages:
            partition = Partition(f"crm.{message.kind.topic}", 0)
            log = self.records[partition]
            log.append(message.record(log[-1].next_offset if log else 0))
            partitions.add(partition)
        return partitions

    def recreate(self, name: str) -> None:
        """Delete a topic and create it again, without records."""
        self.records[Partition(name, 0)] = []
        self.accepted.pop(Partition(name, 0), None)
        self.ids[name] = f"{name}-2"

    def cut_off(self, partition: Partition, offset: int, epoch: int) -> None:
        """A new leader, in this epoch, has no record from this offset on."""
        self.records[partition] = [record for record in self.records[partition] if record.offset < offset]
        self._forks[partition], self.leader_epochs[partition] = Fork(offset, self.leader_epochs[partition]), epoch
        self._was_cut_off = True

    def sought(self, partition: Partition) -> list[int | None]:
        """Returns where the line wanted to read on, each time; None: from the beginning."""
        return [offsets[partition] for offsets in self._seeks if partition in offsets]

    def accept(self, name: str, *offsets: int) -> None:
        self.accepted[Partition(name, 0)] = Accepted().accept(Ranges.of((offset, offset) for offset in offsets), 0, "x")

    def end(self, partition: Partition) -> int:
        """Returns the offset behind the last record, or behind the markers that follow on it."""
        log = self.records[partition]
        return self.ends.get(partition, log[-1].next_offset if log else 0)

    # What follows is what `OffsetTexts` has.

    async def read(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetAndMetadata]:
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return {at: OffsetAndMetadata(0, self.accepted[at].text) for at in partitions if at in self.accepted}

    # What follows is what `Source` has.

    async def start(self, on_revoked: Callable[[], Awaitable[None]]) -> None:
        self.revoke = on_revoked
        self.join()

    def join(self) -> None:
        self.calls.append("join")
        self.member = True

    def leave(self) -> None:
        self.calls.append("leave")
        self.member = False
        self.member_id = "scripted"
        self.offsets.clear()

    async def stop(self) -> None:
        self.calls.append("stop")

    def read_as(self, _histories: Mapping[str, int], cluster: str) -> None:
        if cluster and self.cluster not in ("", cluster):
            raise Unavailable(OtherCluster(cluster, self.cluster, accepted=False, access=False))

    async def first_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {at: self.firsts.get(at, 0) for at in partitions}

    @property
    def has_jumped(self) -> bool:
        return not self._jumped.isdisjoint(self.offsets)

    async def is_elsewhere(self, cluster: str) -> bool:
        return bool(cluster) and self.cluster not in ("", cluster)

    def assigned(self) -> set[Partition]:
        return self.records.keys() - self.of_others if self.member else set()

    def unpositioned(self) -> list[Partition]:
        return sorted(self.assigned() - self.offsets.keys())

    def reset(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self.offsets.pop(partition, None)
            self._jumped.discard(partition)

    async def seek(
        self, offsets: Mapping[Partition, int | None], _leader_epochs: Mapping[Partition, int] | None = None
    ) -> dict[Partition, int]:
        self._seeks.append(offsets)
        used = {
            at: offset
            if offset is not None and self.firsts.get(at, 0) <= offset <= self.end(at)
            else self.firsts.get(at, 0)
            for at, offset in offsets.items()
        }
        self.offsets |= used
        return used

    def position(self, partition: Partition) -> int | None:
        return self.offsets.get(partition)

    def leader_epoch(self, partition: Partition) -> int:
        return self.leader_epochs.get(partition, UNKNOWN_EPOCH)

    async def topic_ids(self) -> dict[str, str]:
        return dict(self.ids)

    async def forks(self, leader_epochs: Mapping[Partition, int]) -> dict[Partition, Fork]:
        assert UNKNOWN_EPOCH not in leader_epochs.values(), "no broker is asked about an epoch that nobody has named"
        return {at: fork for at, fork in self._forks.items() if at in leader_epochs}

    async def was_cut_off(self) -> bool:
        was, self._was_cut_off = self._was_cut_off, False
        return was

    async def readable_ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {at: self.end(at) + self.held_back for at in partitions}

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.committed |= offsets

    async def stay(self) -> None:
        self.stays += 1

    async def poll(self, most: int, _wait: float) -> dict[Partition, list[Record]]:
        self.polls += 1
        if self.errors:
            raise self.errors.pop(0)
        found: dict[Partition, list[Record]] = {}
        for partition, offset in self.offsets.items():
            if offset < self.firsts.get(partition, 0):
                self._jumped.add(partition)
            if wanted := [record for record in self.records[partition] if record.offset >= offset][:most]:
                found[partition] = wanted
                self.offsets[partition] = wanted[-1].next_offset
            else:
                self.offsets[partition] = max(offset, self.ends.get(partition, 0))
        await asyncio.sleep(0 if found else _QUIET_SECONDS)
        return found

    async def more(self, most: int, wait: float) -> dict[Partition, list[Record]]:
        return await self.poll(most, wait)
