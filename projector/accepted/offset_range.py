"""A range of offsets in a partition, as operators write it."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from projector.accepted.ranges import Pair, Ranges
from projector.record import Partition

FORMS = "<topic>:<partition>:<offset> or <topic>:<partition>:<first>-<last>"


class OffsetRange(NamedTuple):
    """A partition, and the first and the last offset in it."""

    partition: Partition
    offsets: Pair

    @classmethod
    def parse(cls, text: str) -> "OffsetRange":
        """Parse one of `FORMS`. Raises ValueError."""
        where, _, offsets = text.rpartition(":")
        topic, _, partition = where.rpartition(":")
        if not (topic and partition.isdecimal() and offsets and "," not in offsets):
            raise ValueError(f"{text!r} is not {FORMS}")
        [pair] = Ranges.parse(offsets).pairs
        return cls(Partition(topic, int(partition)), pair)

    def __str__(self) -> str:
        return f"{self.partition.topic}:{self.partition.partition}:{Ranges((self.offsets,))}"


def by_partition(ranges: Iterable[OffsetRange]) -> dict[Partition, Ranges]:
    """Returns the offsets in each partition."""
    pairs: dict[Partition, list[Pair]] = {}
    for partition, offsets in ranges:
        pairs.setdefault(partition, []).append(offsets)
    return {partition: Ranges.of(found) for partition, found in pairs.items()}


def spans(offsets: Mapping[Partition, Ranges]) -> list[OffsetRange]:
    """Returns one range for each partition, which contains all of its offsets."""
    return [OffsetRange(partition, found.span) for partition, found in offsets.items() if found]
