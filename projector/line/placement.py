"""Notices producers that choose the partition of a message key otherwise than by murmur2.

If two producers of a topic differ, the records of one entity are in two partitions, without an order between them.
"""

import time
from collections.abc import Mapping

from projector.kafka.partitioner import partition_of
from projector.ledger.control import PartitionCount
from projector.line.metrics import Sample
from projector.record import Partition, Record

_NEW_MS = 60_000
"""An older record may have been published before partitions were added."""
_LASTS_SECONDS = 600.0
"""A topic is named for this time after its last such record."""


class Placement:
    """Looks at a sample of the records."""

    def __init__(self) -> None:
        self._sample = Sample()
        self._found: dict[str, float] = {}

    def look(self, last: Mapping[Partition, Record], counts: Mapping[str, PartitionCount], now: float) -> None:
        """Look at the last record of each partition in a batch. `counts` has the number of partitions of each topic, as
        far as it is known. `now` is in seconds, from any beginning.
        """
        newest = time.time() * 1000
        for (topic, number), record in last.items():
            known = counts.get(topic)
            if known is None or not record.key or newest - record.timestamp > _NEW_MS:
                continue
            if self._sample.takes(topic, now) and partition_of(record.key, known.count) != number:
                self._found[topic] = now

    def misplaced(self, now: float) -> list[str]:
        """Returns the topics in which such a record was seen within the last ten minutes, sorted."""
        return sorted(topic for topic, at in self._found.items() if now - at < _LASTS_SECONDS)
