"""What a worker counts: plain integers, so that a request pays next to nothing. `snapshot` turns them into a file.

Workers are processes and only one of them can have the metrics port, so each writes its numbers once a second,
and the exporter adds up what it finds.
"""

from bisect import bisect_left

from msgspec import Struct, field

BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class RouteCounters(Struct):
    """Answers of one route."""

    statuses: dict[int, int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_SECONDS) + 1))
    """Answers by time: up to each of BUCKETS_SECONDS and above the one before; the last is for all slower ones."""
    seconds: float = 0.0

    def answered(self, status: int, seconds: float) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.buckets[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.seconds += seconds


class Counters(Struct):
    """All that one worker counts; gauges are as of the last snapshot."""

    routes: dict[str, RouteCounters] = field(default_factory=dict)
    redis_errors: int = 0
    limiter_failures: int = 0
    """Requests whose charge could not be written: they are served, as far as the worker's own bound allows."""
    limiter_refusals: int = 0
    """Those of them that this bound refused."""
    in_flight: int = 0
    generation: int = 0
    ready: bool = False

    def route(self, name: str) -> RouteCounters:
        return self.routes.setdefault(name, RouteCounters())
