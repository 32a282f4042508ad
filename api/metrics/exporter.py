"""The metrics of all workers together, exported on the metrics port by the main process."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from api.errors import CannotListen
from api.metrics import snapshot
from api.metrics.counters import BUCKETS_SECONDS, Counters
from schemas import problems
from telemetry.metrics_server import Health, MetricsServer

_PREFIX = "leadview_api"


class WorkersCollector(Collector):
    """Adds up the snapshots of all workers."""

    def __init__(self, snapshots: Path) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterator[Metric]:
        workers = snapshot.read(self._snapshots)
        yield _requests(workers)
        yield _latency(workers)
        yield CounterMetricFamily(
            f"{_PREFIX}_redis_errors",
            "Requests that failed because of Redis",
            sum(worker.redis_errors for worker in workers),
        )
        yield CounterMetricFamily(
            f"{_PREFIX}_limiter_failures",
            "Requests whose charge Redis refused to write: each worker's local limiter decided",
            sum(worker.limiter_failures for worker in workers),
        )
        yield CounterMetricFamily(
            f"{_PREFIX}_limiter_refusals",
            "Requests whose charge Redis refused to write, refused by a worker's local limiter",
            sum(worker.limiter_refusals for worker in workers),
        )
        yield from _gauges(workers)


def serve_metrics(host: str, port: int, snapshots: Path) -> MetricsServer:
    """Serve the metrics of all workers. Raises CannotListen."""
    registry = CollectorRegistry()
    registry.register(WorkersCollector(snapshots))
    try:
        return MetricsServer(host, port, registry, lambda: Health(True, problems.Health()))
    except OSError as error:
        raise CannotListen(host, port, error, "LEADVIEW_METRICS") from error


def _requests(workers: list[Counters]) -> Metric:
    answered: Counter[tuple[str, str]] = Counter()
    for worker in workers:
        for route, counters in worker.routes.items():
            for status, count in counters.statuses.items():
                answered[route, str(status)] += count
    family = CounterMetricFamily(f"{_PREFIX}_requests", "Responses", labels=["route", "status"])
    for labels, count in sorted(answered.items()):
        family.add_metric(list(labels), count)
    return family


def _latency(workers: list[Counters]) -> Metric:
    family = HistogramMetricFamily(
        f"{_PREFIX}_request_seconds", "Time from the head of a request to its response", labels=["route"]
    )
    for route in sorted({route for worker in workers for route in worker.routes}):
        counted = [worker.routes[route] for worker in workers if route in worker.routes]
        per_bucket = [sum(counts) for counts in zip(*(route.buckets for route in counted), strict=True)]
        family.add_metric([route], _cumulative(per_bucket), sum(route.seconds for route in counted))
    return family


def _cumulative(per_bucket: list[int]) -> list[tuple[str, float]]:
    bounds = [*map(str, BUCKETS_SECONDS), "+Inf"]
    return [(bound, sum(per_bucket[: number + 1])) for number, bound in enumerate(bounds)]


def _gauges(workers: list[Counters]) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        f"{_PREFIX}_redis_in_flight",
        "Commands that are waiting for Redis",
        sum(worker.in_flight for worker in workers),
    )
    yield GaugeMetricFamily(
        f"{_PREFIX}_generation",
        "The generation of documents that is served",
        max((worker.generation for worker in workers), default=0),
    )
    yield GaugeMetricFamily(
        f"{_PREFIX}_ready_workers", "Workers that are ready to serve", sum(worker.ready for worker in workers)
    )
