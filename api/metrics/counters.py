"""The counters of a worker: plain integers, so that counting takes a request almost no time.

Workers are processes, and only one process can listen on the metrics port. Each worker therefore writes its counters to
a file once a second (`snapshot`), and the exporter in the main process adds them up.
"""

from bisect import bisect_left
from typing import get_args

from msgspec import Struct, field

from leadview.redis.errors import Kind
from schemas import metrics

BUCKETS_SECONDS = metrics.LATENCY_BUCKETS


class RouteCounters(Struct):
    """The responses of one route."""

    statuses: dict[int, int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_SECONDS) + 1))
    """Responses by duration: bucket i counts those up to BUCKETS_SECONDS[i], the last bucket counts all slower ones."""
    seconds: float = 0.0

    def count(self, status: int, seconds: float) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.buckets[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.seconds += seconds


class Counters(Struct):
    """Everything that one worker counts. The gauges (`in_flight`, `generation`, `ready`) are set by each snapshot, and
    `projectors` and `complete_until` by `api/metrics/projectors.py`.
    """

    routes: dict[str, RouteCounters] = field(default_factory=dict)
    redis_errors: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(get_args(Kind), 0))
    limiter_failures: int = 0
    """Requests whose charge Redis refused to write. The worker's local limiter decides whether they are served."""
    limiter_refusals: int = 0
    """Those of them that the local limiter refused."""
    in_flight: int = 0
    generation: int = 0
    ready: bool = False
    projectors: int | None = None
    """Those with a recent heartbeat; None if Redis could not be read."""
    measured_at: int = 0
    complete_until: int = 0
    """As in the newest heartbeat that this worker has ever read; 0 if there was none."""

    def route(self, name: str) -> RouteCounters:
        return self.routes.setdefault(name, RouteCounters())
