"""Prometheus metrics of the projector."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from projector.record import Partition
from projector.redis.applier import Applied

_FRESHNESS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)

APPLIED = Counter("leadview_projector_records", "Records read, by result", ["line", "result"])
RESPLICED = Counter("leadview_projector_respliced_leads", "Leads whose contact summary was rewritten", ["line"])
BATCHES = Histogram("leadview_projector_batch_seconds", "Time from reading a batch to its checkpoint", ["line"])
FRESHNESS = Histogram(
    "leadview_projector_freshness_seconds",
    "Time from the oldest event of each batch until its document is visible",
    ["line"],
    buckets=_FRESHNESS_BUCKETS,
)
LAG = Gauge("leadview_projector_lag_records", "Records that are not applied yet", ["topic", "partition"])
DEAD_LETTERS = Gauge("leadview_projector_dead_letters", "Dead letters that wait for an operator")
PARKED = Counter(
    "leadview_projector_parked_records",
    "Bad records that became dead letters, by topic and kind of reason",
    ["topic", "reason"],
)
STOPPED = Gauge("leadview_projector_line_stopped", "1 while the line is halted by too many bad records", ["line"])
REWINDS = Counter("leadview_projector_rewinds", "Times that Redis lost writes, and records were read again", ["line"])
UNAVAILABLE = Counter("leadview_projector_unavailable", "Times that Redis or Kafka was not available", ["line"])
DEFECTS = Counter("leadview_projector_defects", "Steps that failed with an error that nobody expected", ["line"])
REBUILD_DUE = Gauge("leadview_projector_rebuild_due", "1 if the live generation has another mapping version")
REDIS_MEMORY = Gauge("leadview_projector_redis_memory_ratio", "Redis memory in use, as a share of maxmemory")

VERIFICATION = CollectorRegistry()
"""Of `verify --continuous`, which is a process of its own and exports nothing else."""
VERIFIED = Counter("leadview_verify_records", "Records that were compared with Redis", ["topic"], registry=VERIFICATION)
DIFFERENCES = Counter(
    "leadview_verify_differences",
    "Entities in Redis that differed from their records",
    ["topic"],
    registry=VERIFICATION,
)
PASSES = Counter("leadview_verify_passes", "Passes over a whole partition", ["topic"], registry=VERIFICATION)


class LineMetrics:
    """The metrics of one line."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._partitions: set[Partition] = set()
        STOPPED.labels(line).set(0)

    def batch(self, applied: Applied, dead: int, seconds: float, freshness: float | None) -> None:
        """Count a batch that a checkpoint covers."""
        for result, count in (
            ("written", applied.written),
            ("stale", applied.stale),
            ("dropped", applied.dropped),
            ("dead", dead),
        ):
            APPLIED.labels(self._line, result).inc(count)
        RESPLICED.labels(self._line).inc(applied.respliced)
        BATCHES.labels(self._line).observe(seconds)
        if freshness is not None:
            FRESHNESS.labels(self._line).observe(freshness)

    def lag(self, lags: dict[Partition, int]) -> None:
        """Set the lag of the partitions that are assigned now, and remove that of all others."""
        for partition in self._partitions - lags.keys():
            LAG.remove(partition.topic, str(partition.partition))
        for partition, records in lags.items():
            LAG.labels(partition.topic, str(partition.partition)).set(records)
        self._partitions = set(lags)

    def rewound(self) -> None:
        REWINDS.labels(self._line).inc()

    def unavailable(self) -> None:
        UNAVAILABLE.labels(self._line).inc()

    def failed(self) -> None:
        DEFECTS.labels(self._line).inc()

    def stopped(self) -> None:
        STOPPED.labels(self._line).set(1)

    def resumed(self) -> None:
        STOPPED.labels(self._line).set(0)
