"""All metrics, declared once: both processes export what is declared here, and nothing else.

`docs/runbook.md` and the dashboard are generated from these declarations, and a test compares the alert rules with
them. Names follow Prometheus: base units, a counter ends in `_total`. A value that cannot be measured is NaN or absent.
"""

from typing import Literal

from msgspec import Struct

MetricType = Literal["counter", "gauge", "histogram"]

LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
BATCH_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
FRESHNESS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
PROBLEM_LABELS = (
    "halted",
    "failing",
    "standing_by",
    "no_step",
    "not_advancing",
    "no_partitions",
    "few_projectors",
    "other_settings",
    "foreign_member",
    "topic_missing",
    "topic_not_compacted",
    "topic_recreated",
    "topic_truncated",
    "open_transaction",
    "records_missed",
    "deletes_missed",
    "partitions_raised",
    "other_cluster",
    "evicted",
    "redis_evicts",
    "redis_full",
    "redis_refuses_writes",
    "clock_differs",
    "redis_unknown",
    "kafka_unknown",
    "kafka_denies",
)
"""The names of the problems that projectors report: in `leadview_projector_problems`, in logs, and as sections of
`docs/runbook.md`."""

API_PROBLEM_LABELS = ("not_written", "clock_differs")
"""The names of the problems that workers of the API report: in `leadview_api_problems`, and as sections of
`docs/runbook.md`."""


class Metric(Struct, frozen=True):
    """A metric. `name` is that of the family: the exported names follow from it and from the type.

    `buckets` are the upper bounds of a histogram, without infinity.
    """

    name: str
    type: MetricType
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def exported(self) -> tuple[str, ...]:
        """The names of its time series."""
        match self.type:
            case "counter":
                return (f"{self.name}_total",)
            case "gauge":
                return (self.name,)
            case "histogram":
                return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))


BUILD = Metric(
    "leadview_build_info",
    "gauge",
    "1",
    "Always 1. The labels say which program this is; `mapping` is the mapping version, empty for the API",
    ("program", "version", "mapping"),
)

# The whole service, as Kafka and Redis show it. Every projector exports the same.
LAG = Metric(
    "leadview_projector_lag_records",
    "gauge",
    "records",
    "Records of a partition that are not applied yet, also if no projector owns it. Absent if unknown",
    ("topic", "partition"),
)
UNAPPLIED_AGE = Metric(
    "leadview_projector_unapplied_age_seconds",
    "gauge",
    "seconds",
    "Age of the oldest record in Kafka that is not visible yet, 0 if all are visible. NaN if unknown",
)
MEASURED = Metric(
    "leadview_projector_measured",
    "gauge",
    "1",
    "1 if the last sample of `kafka` or `redis` was complete and recent, otherwise 0",
    ("part",),
)
DEAD_LETTERS = Metric(
    "leadview_projector_dead_letters", "gauge", "dead letters", "Dead letters that wait for an operator"
)
DOCUMENTS_AS_BEFORE = Metric(
    "leadview_projector_documents_as_before",
    "gauge",
    "documents",
    "Documents that show the state before their newest record, which is bad, among 1,000 dead letters. NaN if unknown",
)
OLDER_PUBLISHED = Metric(
    "leadview_projector_older_published",
    "gauge",
    "entities",
    "Entities whose last record is not their newest one. NaN if unknown",
)
REBUILD_DUE = Metric(
    "leadview_projector_rebuild_due", "gauge", "1", "1 if the live generation has an older mapping version than this"
)
REDIS_MEMORY = Metric(
    "leadview_projector_redis_memory_ratio",
    "gauge",
    "ratio",
    "Redis memory in use, as a share of maxmemory, on the fullest server. 0 if none has a maxmemory",
)
UNVERIFIED_TOPIC = Metric(
    "leadview_projector_unverified_topic",
    "gauge",
    "1",
    "1 from the problem until a comparison has confirmed that what is served is right, otherwise 0. Absent if unknown",
    ("topic", "problem"),
)

OPEN_TRANSACTION = Metric(
    "leadview_projector_open_transaction_age_seconds",
    "gauge",
    "seconds",
    "Age of the oldest transaction in a topic that is open for longer than usual, otherwise 0. Absent if unknown",
    ("topic",),
)

# This projector.
PROBLEMS = Metric(
    "leadview_projector_problems",
    "gauge",
    "problems",
    "What /healthz reports, by name. docs/runbook.md has a section for each",
    ("problem",),
)
PARTITIONS = Metric(
    "leadview_projector_partitions", "gauge", "partitions", "Partitions that belong to this projector", ("topic",)
)
LINE_STOPPED = Metric(
    "leadview_projector_line_stopped", "gauge", "1", "1 while the line is halted by too many bad records", ("line",)
)
LINE_STANDING_BY = Metric(
    "leadview_projector_line_standing_by", "gauge", "1", "1 while the line leaves its work to newer programs", ("line",)
)
RECORDS = Metric(
    "leadview_projector_records",
    "counter",
    "records",
    "Records read, by result: written, stale (not newer than the stored), dropped (its organization is deleted), dead",
    ("line", "result"),
)
RESPLICED = Metric(
    "leadview_projector_respliced_leads", "counter", "leads", "Leads whose contact summary was rewritten", ("line",)
)
BATCH_SECONDS = Metric(
    "leadview_projector_batch_seconds",
    "histogram",
    "seconds",
    "Time from the first record of a batch to its checkpoint",
    ("line",),
    BATCH_BUCKETS,
)
FRESHNESS = Metric(
    "leadview_projector_freshness_seconds",
    "histogram",
    "seconds",
    "Time from the oldest event of each batch until its document is visible",
    ("line",),
    FRESHNESS_BUCKETS,
)
PARKED = Metric(
    "leadview_projector_parked_records",
    "counter",
    "records",
    "Bad records that became dead letters, by topic and kind of reason",
    ("topic", "reason"),
)
SAMPLED = Metric(
    "leadview_projector_sampled_records",
    "counter",
    "records",
    "Sampled records, by whether the event has only `known` fields or an `unknown` one, which `validate --strict "
    "--topic` names",
    ("topic", "fields"),
)
REWINDS = Metric(
    "leadview_projector_rewinds", "counter", "times", "Redis lost writes, and records were read again", ("line",)
)
UNAVAILABLE = Metric(
    "leadview_projector_unavailable", "counter", "times", "Redis or Kafka was not available", ("line",)
)
DEFECTS = Metric(
    "leadview_projector_defects", "counter", "steps", "Steps that failed with an unexpected error", ("line",)
)

PROJECTOR = (
    *(LAG, UNAPPLIED_AGE, MEASURED, DEAD_LETTERS, DOCUMENTS_AS_BEFORE, OLDER_PUBLISHED, REBUILD_DUE, REDIS_MEMORY),
    *(UNVERIFIED_TOPIC, OPEN_TRANSACTION),
    *(PROBLEMS, PARTITIONS, LINE_STOPPED, LINE_STANDING_BY),
    *(RECORDS, RESPLICED, BATCH_SECONDS, FRESHNESS, PARKED, SAMPLED, REWINDS, UNAVAILABLE, DEFECTS),
)
"""What each projector exports."""

REQUESTS = Metric("leadview_api_requests", "counter", "responses", "Responses", ("route", "status"))
REQUEST_SECONDS = Metric(
    "leadview_api_request_seconds",
    "histogram",
    "seconds",
    "Time from the head of a request to its response",
    ("route",),
    LATENCY_BUCKETS,
)
SERVED_AGE = Metric(
    "leadview_api_served_age_seconds",
    "gauge",
    "seconds",
    "Age of what is served: everything that Kafka held before that is visible. It grows while no projector lives. NaN "
    "if no projector has reported it since the API started",
)
PROJECTORS = Metric(
    "leadview_api_projectors",
    "gauge",
    "projectors",
    "Projectors with a recent heartbeat in Redis. NaN if Redis cannot be read",
)
REDIS_ERRORS = Metric(
    "leadview_api_redis_errors",
    "counter",
    "requests",
    "Requests that failed because Redis was `unavailable` (not reachable, too slow, overloaded), replied with an "
    "`error`, was `busy` with a script that does not end, or was `rebuilding` its data",
    ("reason",),
)
LIMITER_FAILURES = Metric(
    "leadview_api_limiter_failures",
    "counter",
    "requests",
    "Requests whose charge Redis refused to write: each worker's local limiter decided",
)
LIMITER_REFUSALS = Metric(
    "leadview_api_limiter_refusals",
    "counter",
    "requests",
    "Requests whose charge Redis refused to write, refused by a worker's local limiter",
)
IN_FLIGHT = Metric("leadview_api_redis_in_flight", "gauge", "commands", "Commands that are waiting for Redis")
WAITING = Metric("leadview_api_waiting", "gauge", "requests", "Requests that wait for a change of their record")
GENERATION = Metric("leadview_api_generation", "gauge", "1", "The generation of documents that is served")
API_PROBLEMS = Metric(
    "leadview_api_problems",
    "gauge",
    "workers",
    "Workers that report a problem, by its name. docs/runbook.md has a section for each",
    ("problem",),
)
READY_WORKERS = Metric("leadview_api_ready_workers", "gauge", "workers", "Workers that are ready to serve")
WORKERS = Metric("leadview_api_workers", "gauge", "workers", "Workers that there should be: LEADVIEW_API_WORKERS")

API = (
    *(REQUESTS, REQUEST_SECONDS, SERVED_AGE, PROJECTORS),
    *(REDIS_ERRORS, LIMITER_FAILURES, LIMITER_REFUSALS, IN_FLIGHT, WAITING, GENERATION),
    *(WORKERS, READY_WORKERS, API_PROBLEMS),
)
"""What the API exports for all of its workers together."""

VERIFIED = Metric("leadview_verify_records", "counter", "records", "Records that were compared with Redis", ("topic",))
DIFFERENCES = Metric(
    "leadview_verify_differences",
    "counter",
    "entities",
    "Entities in Redis that differed from their records",
    ("topic",),
)
PASSES = Metric("leadview_verify_passes", "counter", "passes", "Passes over a whole partition", ("topic",))

VERIFY = (VERIFIED, DIFFERENCES, PASSES)
"""What `verify --continuous` exports."""

PROCESS = (
    Metric("process_cpu_seconds", "counter", "seconds", "CPU time of the process"),
    Metric("process_resident_memory_bytes", "gauge", "bytes", "Resident memory of the process"),
    Metric("process_virtual_memory_bytes", "gauge", "bytes", "Virtual memory of the process"),
    Metric("process_start_time_seconds", "gauge", "seconds", "When the process started, as Unix time"),
    Metric("process_open_fds", "gauge", "files", "Open files and sockets"),
    Metric("process_max_fds", "gauge", "files", "How many files and sockets the process may open"),
    Metric(
        "python_info",
        "gauge",
        "1",
        "Always 1. The labels say which Python this is",
        ("implementation", "major", "minor", "patchlevel", "version"),
    ),
)
"""What the client library of Prometheus exports about the process. For the API it is the main process."""

ALL = (BUILD, *PROJECTOR, *API, *VERIFY, *PROCESS)
