"""A sample: what Kafka and Redis said at one moment, and what follows from it. Pure.

A position moves only after Redis has acknowledged every write that it covers. So a partition whose position is its end
offset is wholly visible: this proves the whole way from Kafka to the served documents, also where no event comes.
"""

from collections.abc import Mapping

import msgspec

from projector.kafka.topics import Topic
from projector.ledger import breaks
from projector.ledger.control import Break, ControlRecord
from projector.ledger.writers import Writer
from projector.record import Partition


class KafkaSample(msgspec.Struct, frozen=True):
    """The topics, and the first offset and the end offset of each partition."""

    topics: list[Topic]
    ranges: Mapping[Partition, tuple[int, int]]


class RedisSample(msgspec.Struct, frozen=True):
    """What Redis holds. `record` is None if it is empty; `evicts` says why it may lose documents."""

    record: ControlRecord | None
    dead_letters: int
    memory_ratio: float
    evicts: str | None
    writers: list[Writer]


class Sample(msgspec.Struct, frozen=True):
    """`taken_at` is in milliseconds since 1970, `monotonic_at` in seconds. A part that could not be read is the reason.

    `first_times` has Kafka's timestamp of the first record that is not applied, for the partitions where it is known.
    """

    taken_at: int
    monotonic_at: float
    kafka: KafkaSample | str
    redis: RedisSample | str
    first_times: Mapping[Partition, int] = {}

    @property
    def lags(self) -> dict[Partition, int] | None:
        """The records of each partition that are not applied yet; None if it is not known."""
        waiting = self.waiting
        return None if waiting is None else {partition: end - at for partition, (at, end) in waiting.items()}

    @property
    def waiting(self) -> dict[Partition, tuple[int, int]] | None:
        """The offsets [first, end) of each partition that are not applied yet; None if they are not known."""
        if isinstance(self.kafka, str) or isinstance(self.redis, str):
            return None
        found = {}
        for partition, (first, end) in self.kafka.ranges.items():
            position = self.redis.record.position(partition) if self.redis.record else None
            found[partition] = (min(end, max(first, position.offset if position else 0)), end)
        return found

    @property
    def breaks(self) -> list[Break] | None:
        """The topics that have lost their history, if that concerns what is served; None if it is not known."""
        if isinstance(self.redis, str) or self.redis.record is None:
            return None
        topics = [] if isinstance(self.kafka, str) else self.kafka.topics
        return breaks.served(self.redis.record, {topic.name: topic.id for topic in topics})

    @property
    def complete_until(self) -> int | None:
        """Everything that Kafka had before this time, in milliseconds since 1970, is visible; None if not known."""
        lags = self.lags
        if lags is None or isinstance(self.kafka, str) or not all(topic.partitions for topic in self.kafka.topics):
            return None
        behind = [partition for partition, lag in lags.items() if lag]
        if any(not self.first_times.get(partition) for partition in behind):
            return None
        return min([self.taken_at, *(self.first_times[partition] for partition in behind)])
