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

    def __init__(self, snapshots: Path, workers: int) -> None:
        """`workers` is how many there should be."""
        self._snapshots = snapshots
        self._workers = workers

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
        yield family(metrics.WORKERS, self._workers)
        yield family(metrics.READY_WORKERS, sum(worker.ready for worker in workers))
        reported = Counter(name for worker in workers for name in worker.problems)
        yield family(metrics.API_PROBLEMS, {(name,): reported[name] for name in metrics.API_PROBLEM_LABELS})
        known = [worker.projectors for worker in workers if worker.projectors is not None]
        yield family(metrics.PROJECTORS, max(known, default=_NAN))
        yield family(metrics.SERVED_AGE, _served_age(workers))

    def health(self) -> HealthAnswer:
        """Returns healthy if at least one worker is ready, and none reports a problem. `causes` has the errors that
        keep workers from being ready; `filling`: these say only that Redis does not hold everything yet.
        """
        workers = read_snapshots(self._snapshots)
        unready = [worker for worker in workers if worker.unready]
        causes = sorted({worker.unready for worker in unready})
        problems = [words for name, words in _WORDS.items() if any(name in worker.problems for worker in workers)]
        if not any(worker.ready for worker in workers):
            why = "; ".join(causes) or "none has started yet, or all stand still"
            problems.insert(0, f"no worker is ready to serve: {why}")
        body = {"status": "unhealthy", "problems": problems} if problems else {"status": "ok"}
        why_not = {"causes": causes, "filling": all(worker.rebuilding for worker in unready)} if causes else {}
        return HealthAnswer(not problems, body | why_not)


def serve_metrics(host: str, port: int, snapshots: Path, workers: int) -> MetricsServer:
    """Serve the metrics of all workers, of which there should be this number. Raises CannotListen."""
    registry, collector = new_registry("api"), WorkersCollector(snapshots, workers)
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
