"""What the API does, read from its metrics ports: requests by answer, and their latency, over the last seconds; and the
readings of the last seconds, from which rates follow.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Generic, TypeVar
from urllib.request import urlopen

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from schemas import metrics

_PATIENCE_SECONDS = 1.0
SECONDS = 4.0
"""What happened before is not part of a rate: a few seconds after something has stopped, its rate is 0."""

T = TypeVar("T")
_BUCKET = f"{metrics.REQUEST_SECONDS.name}_bucket"


class ApiFigures(msgspec.Struct, frozen=True):
    """Rates are per second over the last seconds, latencies in milliseconds; None if there was no request. `waiting`
    counts the requests that wait for a change now.

    `answers` has the rate of each status. `unread` says why a metrics port could not be read.
    """

    requests: float | None = None
    answers: dict[str, float] = {}
    p50: float | None = None
    p99: float | None = None
    ready_workers: int | None = None
    waiting: int | None = None
    unread: str = ""


class Figures(msgspec.Struct, frozen=True):
    """The counters of all metrics ports together. `buckets` counts requests by the upper bound of their duration."""

    at: float
    answers: Mapping[str, float]
    buckets: Mapping[float, float]
    ready_workers: int
    waiting: int


def counts(texts: Sequence[str], at: float) -> Figures:
    """Returns the sum of what these metrics ports export."""
    answers: Counter[str] = Counter()
    buckets: Counter[float] = Counter()
    workers = waiting = 0
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == metrics.REQUESTS.exported[0]:
                    answers[sample.labels["status"]] += sample.value  # type: ignore[assignment]
                elif sample.name == _BUCKET:
                    buckets[float(sample.labels["le"])] += sample.value  # type: ignore[assignment]
                elif sample.name == metrics.READY_WORKERS.name and sample.value == sample.value:
                    workers += int(sample.value)
                elif sample.name == metrics.WAITING.name:
                    waiting += int(sample.value)
    return Figures(at, answers, buckets, workers, waiting)


def figures(before: Figures, after: Figures) -> ApiFigures:
    """Returns what happened between two readings. A counter that went back belongs to a program that was restarted."""
    seconds = after.at - before.at
    if seconds <= 0:
        return ApiFigures(ready_workers=after.ready_workers, waiting=after.waiting)
    rates = {
        status: (value - before.answers.get(status, 0)) / seconds
        for status, value in sorted(after.answers.items())
        if value >= before.answers.get(status, 0)
    }
    grown = {bound: value - before.buckets.get(bound, 0) for bound, value in sorted(after.buckets.items())}
    return ApiFigures(
        requests=sum(rates.values()),
        answers=rates,
        p50=_quantile(grown, 0.5),
        p99=_quantile(grown, 0.99),
        ready_workers=after.ready_workers,
        waiting=after.waiting,
    )


def _quantile(cumulative: Mapping[float, float], share: float) -> float | None:
    """Returns the latency in ms below which this share lies, from counts by upper bound, as Prometheus computes it."""
    total = max(cumulative.values(), default=0)
    if total <= 0:
        return None
    low, below = 0.0, 0.0
    for bound, count in cumulative.items():
        if count >= share * total:
            if bound == float("inf"):
                return low * 1000
            return (low + (bound - low) * (share * total - below) / max(count - below, 1e-9)) * 1000
        low, below = bound, count
    return low * 1000


class RecentFigures(Generic[T]):
    """Keeps one reading that is at least `SECONDS` old, if there is one, and those after it."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, T]] = deque()

    def add(self, at: float, reading: T) -> None:
        """`at` is in seconds, and grows."""
        self._readings.append((at, reading))
        while len(self._readings) > 2 and self._readings[1][0] <= at - SECONDS:
            self._readings.popleft()

    def clear(self) -> None:
        self._readings.clear()

    @property
    def oldest(self) -> tuple[float, T] | None:
        """When the oldest of them was taken, and what it was; None if there is none."""
        return self._readings[0] if self._readings else None


class ApiMetrics:
    """Reads the metrics ports of the API again and again."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._read: RecentFigures[Figures] = RecentFigures()

    async def take(self) -> ApiFigures | None:
        """Returns the figures of the last seconds; None if no address was given."""
        if not self._urls:
            return None
        found = await asyncio.gather(*(asyncio.to_thread(_fetch, url) for url in self._urls))
        if failed := [text for text, ok in found if not ok]:
            self._read.clear()
            return ApiFigures(unread="; ".join(failed))
        now = counts([text for text, _ in found], time.monotonic())
        self._read.add(now.at, now)
        _, before = self._read.oldest or (now.at, now)
        return figures(before, now)


def _fetch(url: str) -> tuple[str, bool]:
    """Returns the text of a metrics port and True, or why it could not be read and False."""
    try:
        with urlopen(f"{url}/metrics", timeout=_PATIENCE_SECONDS) as response:  # noqa: S310 - the options allow http and https
            return response.read().decode(), True
    except (OSError, HTTPException, ValueError) as error:
        return f"the metrics of the API at {url} cannot be read: {error}", False
