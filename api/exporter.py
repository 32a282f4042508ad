"""The metrics of all workers together, exported on the metrics port by the main process."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from prometheus_client import Metric
from prometheus_client.registry import Collector

from api.metrics import Counters, read_snapshots
from runtime.instruments import family, histogram_family, new_registry
from runtime.metrics_port import HealthAnswer, MetricsServer
from runtime.redis.errors import ErrorKind
from schemas import metrics

_NAN = float("nan")
_WORDS = {
    "not_written": "not_written: no projector has written to the Redis that this API reads for a minute, also over new "
    "connections: start one, or look whether LEADVIEW_REDIS_URL leads to another Redis than that of the projectors",
    "clock_differs": "clock_differs: the clock of Redis and that of this machine are more than 2 s apart: let NTP set "
    "both",
}


class WorkersCollector(Collector):
    """Adds up the snapshots of all workers."""

    def __init__(self, snapshots: Path) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterator[Metric]:
        workers = read_snapshots(self._snapshots)
        yield _requests(workers)
        yield _latency(workers)
        # Every reason is exported from the start: Prometheus sees no increase when a series begins with 1.
        errors: dict[tuple[str, ...], float] = {
            (kind,): sum(worker.redis_errors[kind] for worker in workers) for kind in get_args(ErrorKind)
        }
        yield family(metrics.REDIS_ERRORS, errors)
        yield family(metrics.LIMITER_FAILURES, sum(worker.limiter_failures for worker in workers))
        yield family(metrics.LIMITER_REFUSALS, sum(worker.limiter_refusals for worker in workers))
        yield family(metrics.IN_FLIGHT, sum(worker.in_flight for worker in workers))
        yield family(metrics.WAITING, sum(worker.waiting for worker in workers))
        yield family(metrics.GENERATION, max((worker.generation for worker in workers), default=0))
        yield family(metrics.READY_WORKERS, sum(worker.ready for worker in workers))
        reported = Counter(name for worker in workers for name in worker.problems)
        yield family(metrics.API_PROBLEMS, {(name,): reported[name] for name in metrics.API_PROBLEM_LABELS})
        known = [worker.projectors for worker in workers if worker.projectors is not None]
        yield family(metrics.PROJECTORS, max(known, default=_NAN))
        yield family(metrics.SERVED_AGE, _served_age(workers))

    def health(self) -> HealthAnswer:
        """Returns healthy if at least one worker is ready, and none reports a problem. Only the workers know why one is
        not ready: `/readyz` on their port.
        """
        workers = read_snapshots(self._snapshots)
        problems = [words for name, words in _WORDS.items() if any(name in worker.problems for worker in workers)]
        if not any(worker.ready for worker in workers):
            problems.insert(0, "no worker is ready to serve: Redis cannot be reached, or holds no complete projection")
        if problems:
            return HealthAnswer(False, {"status": "unhealthy", "problems": problems})
        return HealthAnswer(True, {"status": "ok"})


def serve_metrics(host: str, port: int, snapshots: Path) -> MetricsServer:
    """Serve the metrics of all workers. Raises CannotListen."""
    registry, collector = new_registry("api"), WorkersCollector(snapshots)
    registry.register(collector)
    return MetricsServer(host, port, registry, collector.health)


def _requests(workers: list[Counters]) -> Metric:
    answered: Counter[tuple[str, ...]] = Counter()
    for worker in workers:
        for route, counters in worker.routes.items():
            for status, count in counters.statuses.items():
                answered[route, str(status)] += count
    return family(metrics.REQUESTS, dict(sorted(answered.items())))


def _latency(workers: list[Counters]) -> Metric:
    samples = []
    for route in sorted({route for worker in workers for route in worker.routes}):
        counted = [worker.routes[route] for worker in workers if route in worker.routes]
        per_bucket = [sum(counts) for counts in zip(*(route.buckets for route in counted), strict=True)]
        samples.append(((route,), per_bucket, sum(route.seconds for route in counted)))
    return histogram_family(metrics.REQUEST_SECONDS, samples)


def _served_age(workers: list[Counters]) -> float:
    newest = max(workers, key=lambda worker: worker.measured_at, default=None)
    if newest is None or not newest.measured_at:
        return _NAN
    return max(0.0, time.time() - newest.complete_until / 1000)
