"""The declared metrics (`schemas/metrics.py`) as objects of Prometheus's client library."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from schemas import metrics
from schemas.version import VERSION

# Otherwise each counter has a second metric, with the time of its creation.
disable_created_metrics()  # type: ignore[no-untyped-call]


def counter(metric: metrics.Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def histogram(metric: metrics.Metric, registry: CollectorRegistry) -> Histogram:
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)


def family(metric: metrics.Metric, samples: Mapping[tuple[str, ...], float] | float) -> Metric:
    """Returns a counter or a gauge for a collector. `samples` are its values by labels, or the one that it has."""
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    found = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in (samples if isinstance(samples, Mapping) else {(): samples}).items():
        found.add_metric(labels, value)
    return found


def histogram_family(
    metric: metrics.Metric, samples: Iterable[tuple[tuple[str, ...], list[int], float]]
) -> HistogramMetricFamily:
    """Returns a histogram for a collector. `samples` are labels, counts by bucket (the last one counts the values
    beyond the bounds), and the sum of all values.
    """
    found = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*map(str, metric.buckets), "+Inf"]
    for labels, counts, total in samples:
        cumulative = [(bound, float(sum(counts[: number + 1]))) for number, bound in enumerate(bounds)]
        found.add_metric(labels, cumulative, total)
    return found


def new_registry(program: str, mapping: str = "") -> CollectorRegistry:
    """Returns a registry that exports which program this is, and what its process uses."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    build = Gauge(metrics.BUILD.name, metrics.BUILD.help, metrics.BUILD.labels, registry=registry)
    build.labels(program, VERSION, mapping).set(1)
    return registry
