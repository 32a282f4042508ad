"""`/metrics` and `/healthz` of the API on a port of their own, in the process that was started by hand."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec
from prometheus_client import CollectorRegistry, Metric, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from api.errors import CannotListen
from api.metrics import snapshot
from api.metrics.counters import BUCKETS_SECONDS, Counters
from schemas.problems import Health

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
            "Requests that Redis did not serve",
            sum(worker.redis_errors for worker in workers),
        )
        yield CounterMetricFamily(
            f"{_PREFIX}_limiter_failures",
            "Requests whose charge could not be written: served, as far as each worker's own bound allows",
            sum(worker.limiter_failures for worker in workers),
        )
        yield CounterMetricFamily(
            f"{_PREFIX}_limiter_refusals",
            "Requests refused by a worker's own bound, as their charge could not be written",
            sum(worker.limiter_refusals for worker in workers),
        )
        yield from _gauges(workers)


class MetricsServer:
    """Serves from a thread, which still answers when the event loop does not. Raises CannotListen."""

    def __init__(self, host: str, port: int, snapshots: Path) -> None:
        registry = CollectorRegistry()
        registry.register(WorkersCollector(snapshots))
        self._metrics = make_wsgi_app(registry)
        try:
            self._server: WSGIServer = make_server(host, port, self._answer, handler_class=_Quiet)
        except OSError as error:
            raise CannotListen(host, port, error, "LEADVIEW_METRICS") from error
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/healthz":
            return self._metrics(environ, start_response)  # type: ignore[no-any-return]  # WSGI
        start_response("200 OK", [("Content-Type", "application/json")])
        return [msgspec.json.encode(Health())]


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has above
        """No line for every scrape."""


def _requests(workers: list[Counters]) -> Metric:
    answered: Counter[tuple[str, str]] = Counter()
    for worker in workers:
        for route, counters in worker.routes.items():
            for status, count in counters.statuses.items():
                answered[route, str(status)] += count
    family = CounterMetricFamily(f"{_PREFIX}_requests", "Answers", labels=["route", "status"])
    for labels, count in sorted(answered.items()):
        family.add_metric(list(labels), count)
    return family


def _latency(workers: list[Counters]) -> Metric:
    family = HistogramMetricFamily(
        f"{_PREFIX}_request_seconds", "From a request's head to its answer", labels=["route"]
    )
    for route in sorted({route for worker in workers for route in worker.routes}):
        counted = [worker.routes[route] for worker in workers if route in worker.routes]
        per_bucket = [sum(counts) for counts in zip(*(route.buckets for route in counted), strict=True)]
        family.add_metric([route], _cumulative(per_bucket), sum(route.seconds for route in counted))
    return family


def _cumulative(per_bucket: list[int]) -> list[tuple[str, float]]:
    bounds = [*map(str, BUCKETS_SECONDS), "+Inf"]
    return [(bound, sum(per_bucket[: place + 1])) for place, bound in enumerate(bounds)]


def _gauges(workers: list[Counters]) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        f"{_PREFIX}_redis_in_flight",
        "Commands that wait for Redis",
        sum(worker.in_flight for worker in workers),
    )
    yield GaugeMetricFamily(
        f"{_PREFIX}_generation",
        "Generation of documents that is served",
        max((worker.generation for worker in workers), default=0),
    )
    yield GaugeMetricFamily(
        f"{_PREFIX}_ready_workers", "Workers that can serve", sum(worker.ready for worker in workers)
    )
