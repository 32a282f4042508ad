"""Prometheus metrics and health of the projector, on a separate port.

A separate thread serves them, so that they are available even if the event loop is blocked.
"""

import threading
from collections.abc import Callable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec
from prometheus_client import REGISTRY, Counter, Gauge, Histogram, make_wsgi_app

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
STOPPED = Gauge("leadview_projector_line_stopped", "1 while the line is halted by too many bad records", ["line"])
REWINDS = Counter("leadview_projector_rewinds", "Times that Redis lost writes, and records were read again", ["line"])
UNAVAILABLE = Counter("leadview_projector_unavailable", "Times that Redis or Kafka was not available", ["line"])
REBUILD_DUE = Gauge("leadview_projector_rebuild_due", "1 if the live generation has another mapping version")
REDIS_MEMORY = Gauge("leadview_projector_redis_memory_ratio", "Redis memory in use, as a share of maxmemory")


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

    def stopped(self) -> None:
        STOPPED.labels(self._line).set(1)


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log nothing for a scrape."""


class MetricsServer:
    """Serves `/metrics`, and `/healthz`: 200, or 503 with the problems. `problems` is called in the server's thread."""

    def __init__(self, host: str, port: int, problems: Callable[[], list[str]]) -> None:
        self._metrics = make_wsgi_app(REGISTRY)
        self._problems = problems
        self._server: WSGIServer = make_server(host, port, self._answer, handler_class=_Quiet)
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        if environ.get("PATH_INFO") != "/healthz":
            return self._metrics(environ, start_response)
        problems = self._problems()
        body = msgspec.json.encode({"status": "unhealthy" if problems else "ok", "problems": problems})
        status = "503 Service Unavailable" if problems else "200 OK"
        start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]
