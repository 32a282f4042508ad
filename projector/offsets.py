"""Sets of offsets as ranges, in compact text: `120-420,500`; and a range in a partition, as operators write it."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from projector.record import Partition

Pair = tuple[int, int]
"""The first and the last offset of a range."""
_PAIR = re.compile("([0-9]+)(?:-([0-9]+))?")


class Ranges(msgspec.Struct, frozen=True):
    """A set of offsets. `pairs` are ascending, and there is a gap between each of them and the next one."""

    pairs: tuple[Pair, ...] = ()

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> "Ranges":
        """Returns the set of all offsets in these ranges, which may overlap and come in any order."""
        merged: list[Pair] = []
        for first, last in sorted(pairs):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    @classmethod
    def parse(cls, text: str) -> "Ranges":
        """Parse `120-420,500`, or an empty text. Raises ValueError."""
        return cls.of(_pair(part) for part in text.split(",")) if text else cls()

    def __str__(self) -> str:
        return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in self.pairs)

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self.pairs, offset, key=lambda pair: pair[0]) - 1
        return index >= 0 and offset <= self.pairs[index][1]

    def __or__(self, other: "Ranges") -> "Ranges":
        return Ranges.of((*self.pairs, *other.pairs))

    def __sub__(self, other: "Ranges") -> "Ranges":
        return Ranges(tuple(part for pair in self.pairs for part in _outside(pair, other.pairs)))

    def __and__(self, other: "Ranges") -> "Ranges":
        return self - (self - other)

    @property
    def span(self) -> Pair:
        """The first and the last offset of all. Raises IndexError if the set is empty."""
        return self.pairs[0][0], self.pairs[-1][1]


def _pair(text: str) -> Pair:
    match = _PAIR.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not an offset or a range of offsets")
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise ValueError(f"the range {text!r} ends before it begins")
    return first, last


def _outside(pair: Pair, others: Iterable[Pair]) -> Iterator[Pair]:
    """Yields the parts of a range that are in none of the others, which are ascending."""
    first, last = pair
    for begin, end in others:
        if begin > last:
            break
        if begin > first:
            yield first, begin - 1
        first = max(first, end + 1)
    if first <= last:
        yield first, last


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
