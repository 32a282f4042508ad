"""Counts events with unknown fields, in a sample: producers should know of mistyped names.

Names of fields are the producers', so none becomes a label or a log line. `validate --strict --topic` names them.
"""

from collections.abc import Iterable, Mapping, Sequence

from projector.line.metrics import SAMPLED
from projector.record import Partition, Record
from projector.unknown_fields import has_unknown_fields

_SECONDS = 1.0
_MAX_BYTES = 8192
"""Of a value. To look for fields in a larger one may take milliseconds."""
KNOWN, UNKNOWN = "known", "unknown"


class UnknownFields:
    """Looks at no more than one record of each topic in a second, so its cost does not depend on the rate."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._next = dict.fromkeys(topics, 0.0)
        for topic in self._next:
            for fields in (KNOWN, UNKNOWN):
                SAMPLED.labels(topic, fields)

    def look(self, polled: Mapping[Partition, Sequence[Record]], now: float) -> None:
        """Look at the last record of a batch. `now` is in seconds, from any beginning."""
        for partition, records in polled.items():
            if now < self._next[partition.topic] or not records[-1].value or len(records[-1].value) > _MAX_BYTES:
                continue
            self._next[partition.topic] = now + _SECONDS
            SAMPLED.labels(partition.topic, UNKNOWN if has_unknown_fields(records[-1]) else KNOWN).inc()
