"""What the API does, read from its metrics ports: requests by answer, and their latency, over the last seconds; whether
its workers are ready; and the readings of the last seconds, from which rates follow.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from typing import Generic, NamedTuple, TypeVar
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from projector.health.observe import ApiPart
from schemas import metrics
from schemas.resources import RESOURCES

_PATIENCE_SECONDS = 1.0
SECONDS = 4.0
"""What happened before is not part of a rate: a few seconds after something has stopped, its rate is 0."""

WATCHED_SECONDS = 1.0
"""For how long `status` watches the API."""

T = TypeVar("T")
_BUCKET = f"{metrics.REQUEST_SECONDS.name}_bucket"
_GAUGES = (metrics.READY_WORKERS.name, metrics.WORKERS.name, metrics.WAITING.name)
_DOCUMENTS = frozenset(it.noun for it in RESOURCES)
"""The routes of which 503 is a problem: `/readyz` of a worker that is about to end answers it as well."""


class Figures(msgspec.Struct, frozen=True):
    """The counters of all metrics ports together. `buckets` counts requests by the upper bound of their duration,
    `unavailable` the requests for documents that got 503, and `rebuilding` those that did because Redis did not hold
    everything. `workers` is 0 if the API does not say it.
    """

    at: float
    answers: Mapping[str, float]
    buckets: Mapping[float, float]
    ready_workers: int
    workers: int = 0
    unavailable: float = 0
    rebuilding: float = 0
    reported: Mapping[str, int] = {}
    waiting: int = 0


def counts(texts: Sequence[str], at: float) -> Figures:
    """Returns the sum of what these metrics ports export."""
    answers: Counter[str] = Counter()
    buckets: Counter[float] = Counter()
    reported: Counter[str] = Counter()
    gauges: Counter[str] = Counter()
    unavailable = rebuilding = 0.0
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == metrics.REQUESTS.exported[0]:
                    answers[sample.labels["status"]] += sample.value  # type: ignore[assignment]
                    if sample.labels["status"] == "503" and sample.labels["route"] in _DOCUMENTS:
                        unavailable += sample.value
                elif sample.name == metrics.REDIS_ERRORS.exported[0]:
                    rebuilding += sample.value if sample.labels["reason"] == "rebuilding" else 0
                elif sample.name == _BUCKET:
                    buckets[float(sample.labels["le"])] += sample.value  # type: ignore[assignment]
                elif sample.name in _GAUGES and sample.value == sample.value:
                    gauges[sample.name] += int(sample.value)
                elif sample.name == metrics.API_PROBLEMS.name and sample.value:
                    reported[sample.labels["problem"]] += int(sample.value)
    ready, workers, waiting = (gauges[name] for name in _GAUGES)
    return Figures(at, answers, buckets, ready, workers, unavailable, rebuilding, reported, waiting)


def figures(before: Figures, after: Figures, causes: Sequence[str] = (), *, filling: bool = False) -> ApiPart:
    """Returns what happened between two readings. A counter that went back belongs to a program that was restarted.
    `causes` are the errors that keep workers from serving; `filling`: only that Redis does not hold everything yet.
    """
    now = ApiPart(
        ready_workers=after.ready_workers,
        workers=after.workers or None,
        waiting=after.waiting,
        causes=tuple(causes),
        filling=filling,
        reported=dict(after.reported),
    )
    seconds = after.at - before.at
    if seconds <= 0:
        return now
    rates = {
        status: (value - before.answers.get(status, 0)) / seconds
        for status, value in sorted(after.answers.items())
        if value >= before.answers.get(status, 0)
    }
    unavailable = max(0.0, after.unavailable - before.unavailable)
    others = unavailable - (after.rebuilding - before.rebuilding)
    grown = {bound: value - before.buckets.get(bound, 0) for bound, value in sorted(after.buckets.items())}
    return replace(
        now,
        requests=sum(rates.values()),
        answers=rates,
        p50=_quantile(grown, 0.5),
        p99=_quantile(grown, 0.99),
        unavailable=unavailable / seconds,
        filling=others <= 0 and (filling or (bool(unavailable) and not causes)),
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


class _Health(msgspec.Struct):
    """What `/healthz` of a metrics port says: why workers do not serve."""

    causes: list[str] = []
    filling: bool = False


class _Port(NamedTuple):
    """What a metrics port says, or why it could not be read (`unread`)."""

    exported: str = ""
    causes: Sequence[str] = ()
    filling: bool = False
    unread: str = ""


class ApiMetrics:
    """Reads the metrics ports of the API again and again."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._read: RecentFigures[Figures] = RecentFigures()

    async def take(self) -> ApiPart | None:
        """Returns the figures since the reading before, of the last seconds; None if no address was given."""
        if not self._urls:
            return None
        ports = await asyncio.gather(*(asyncio.to_thread(_fetch, url) for url in self._urls))
        now = counts([port.exported for port in ports], time.monotonic())
        causes = dict.fromkeys(cause for port in ports for cause in port.causes)
        filling = bool(causes) and all(port.filling for port in ports if port.causes)
        if unread := "; ".join(filter(None, (port.unread for port in ports))):
            self._read.clear()
            return replace(figures(now, now, [*causes]), unread=unread)
        self._read.add(now.at, now)
        _, before = self._read.oldest or (now.at, now)
        return figures(before, now, [*causes], filling=filling)

    async def watched(self) -> ApiPart | None:
        """Returns the same. If nothing was read before, it watches the API for a second, so that rates are known."""
        taken = await self.take()
        if taken is None or taken.unread or taken.requests is not None:
            return taken
        await asyncio.sleep(WATCHED_SECONDS)
        return await self.take()


def _fetch(url: str) -> _Port:
    try:
        health = msgspec.json.decode(_ask(f"{url}/healthz"), type=_Health)
        return _Port(_ask(f"{url}/metrics").decode(), health.causes, health.filling)
    except (OSError, HTTPException, ValueError) as error:
        return _Port(unread=f"{url} ({error})")


def _ask(url: str) -> bytes:
    """Returns the body of a response, also of 503: it says what is not well. Raises OSError and HTTPException."""
    try:
        with urlopen(url, timeout=_PATIENCE_SECONDS) as response:  # noqa: S310 - the options allow http and https
            return bytes(response.read())
    except HTTPError as error:
        with error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return error.read()
