"""What a line counts. What it has not applied yet is measured from outside of it (`projector/operate`)."""

from prometheus_client import CollectorRegistry

from leadview import instruments
from projector.mapping import VERSION
from projector.redis.applier import Applied
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
"""Of `verify --continuous`, which is a process of its own."""

VERIFIED = instruments.counter(metrics.VERIFIED, VERIFICATION)
DIFFERENCES = instruments.counter(metrics.DIFFERENCES, VERIFICATION)
PASSES = instruments.counter(metrics.PASSES, VERIFICATION)


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

    def rewound(self) -> None:
        REWINDS.labels(self._line).inc()

    def unavailable(self) -> None:
        UNAVAILABLE.labels(self._line).inc()

    def failed(self) -> None:
        DEFECTS.labels(self._line).inc()
