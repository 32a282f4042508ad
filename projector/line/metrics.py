"""The metrics of a line. Its lag is measured from outside of it (`projector/health`)."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter

from projector.line.apply import Applied
from projector.mapping import VERSION
from projector.record import Partition, Record
from projector.unknown_fields import has_unknown_fields
from runtime import instruments
from schemas import metrics

REGISTRY: CollectorRegistry = instruments.new_registry("projector", str(VERSION))
"""Everything that this process exports."""

APPLIED = instruments.counter(metrics.RECORDS, REGISTRY)
RESPLICED = instruments.counter(metrics.RESPLICED, REGISTRY)
BATCHES = instruments.histogram(metrics.BATCH_SECONDS, REGISTRY)
FRESHNESS = instruments.histogram(metrics.FRESHNESS, REGISTRY)
REWINDS = instruments.counter(metrics.REWINDS, REGISTRY)
UNAVAILABLE = instruments.counter(metrics.UNAVAILABLE, REGISTRY)
DEFECTS = instruments.counter(metrics.DEFECTS, REGISTRY)
PARKED = instruments.counter(metrics.PARKED, REGISTRY)
SAMPLED = instruments.counter(metrics.SAMPLED, REGISTRY)

_RESULTS = ("written", "stale", "dropped", "dead")

VERIFICATION: CollectorRegistry = instruments.new_registry("verify", str(VERSION))
"""The metrics of `verify --continuous`, which is a process of its own."""

VERIFIED = instruments.counter(metrics.VERIFIED, VERIFICATION)
DIFFERENCES = instruments.counter(metrics.DIFFERENCES, VERIFICATION)
PASSES = instruments.counter(metrics.PASSES, VERIFICATION)

_SAMPLE_SECONDS = 1.0
_MAX_SAMPLE_BYTES = 8192
"""The largest value in a sample. To look for fields in a larger one may take milliseconds."""
KNOWN, UNKNOWN = "known", "unknown"


class LineMetrics:
    """The metrics of one line. All of them begin with 0, so that the first event is an increase."""

    def __init__(self, line: str) -> None:
        self._line = line
        for result in _RESULTS:
            APPLIED.labels(line, result)
        for metric in (RESPLICED, BATCHES, FRESHNESS, REWINDS, UNAVAILABLE, DEFECTS):
            metric.labels(line)

    def batch(self, applied: Applied, dead: int, seconds: float, freshness: float | None) -> None:
        """Count a batch that a checkpoint covers."""
        for result, count in zip(_RESULTS, (applied.written, applied.stale, applied.dropped, dead), strict=True):
            APPLIED.labels(self._line, result).inc(count)
        RESPLICED.labels(self._line).inc(applied.respliced)
        BATCHES.labels(self._line).observe(seconds)
        if freshness is not None:
            FRESHNESS.labels(self._line).observe(freshness)

    def count(self, metric: Counter) -> None:
        """Count one event of this line."""
        metric.labels(self._line).inc()


class Sample:
    """Takes at most one record of each topic per second, so that the cost does not depend on the rate of records."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}

    def takes(self, topic: str, now: float) -> bool:
        """Returns whether a record of this topic is taken. `now` is in seconds, from any beginning."""
        if now < self._next.get(topic, now):
            return False
        self._next[topic] = now + _SAMPLE_SECONDS
        return True


class UnknownFields:
    """Counts events with unknown fields, in a sample: producers should know of mistyped names.

    Names of fields are the producers', so none becomes a label or a log line. `validate --strict --topic` names them.
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self._sample = Sample()
        for topic in topics:
            for fields in (KNOWN, UNKNOWN):
                SAMPLED.labels(topic, fields)

    def look(self, last: Mapping[Partition, Record], now: float) -> None:
        """Look at the last record of each partition in a batch. `now` is in seconds, from any beginning."""
        for partition, record in last.items():
            if not record.value or len(record.value) > _MAX_SAMPLE_BYTES:
                continue
            if self._sample.takes(partition.topic, now):
                SAMPLED.labels(partition.topic, UNKNOWN if has_unknown_fields(record) else KNOWN).inc()
