"""Shows what Leadview does: a line of figures every few seconds, which replaces the former one on a terminal. The
figures come from the metrics of the projector and the API, in the Prometheus text format; the console draws them.
"""

import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from devstack.programs import ask

_EVERY_SECONDS = 5.0
_HEALTH = ("healthz", "readyz")
_INSTEAD = "\r\x1b[K"
"""On a terminal: from the beginning of this line, and without the rest of it."""


class Figures(Struct, frozen=True, kw_only=True):
    """The counts of both processes at one moment."""

    at: float
    """Seconds on the clock of the caller."""
    records: dict[str, int]
    """Records by result: written, stale, dropped, dead."""
    lag: int
    dead_letters: int
    freshness: Mapping[float, int]
    """The number of batches that were visible within each number of seconds: a histogram."""
    answers: dict[str, int]
    """Responses of the API by status, without health checks."""

    @property
    def seen(self) -> int:
        return sum(self.records.values())


def read(projector: str, api: str, at: float) -> Figures:
    """Returns the figures in the texts of both metrics ports, read at the time `at`."""
    samples = [*_samples(projector), *_samples(api)]
    return Figures(
        at=at,
        records=_by(samples, "leadview_projector_records_total", "result"),
        lag=_sum(samples, "leadview_projector_lag_records"),
        dead_letters=_sum(samples, "leadview_projector_dead_letters"),
        freshness={
            float(bound): count
            for bound, count in _by(samples, "leadview_projector_freshness_seconds_bucket", "le").items()
        },
        answers=_by(
            (sample for sample in samples if sample.labels.get("route") not in _HEALTH),
            "leadview_api_requests_total",
            "status",
        ),
    )


def line(before: Figures, now: Figures) -> str:
    """Returns the figures of now, with the rates and the median of the freshness since then."""
    seconds = now.at - before.at
    applied, answered = now.records.get("written", 0), sum(now.answers.values())
    applied_before, answered_before = before.records.get("written", 0), sum(before.answers.values())
    # The mean would show one event with an old `time` only.
    median = _median({bound: count - before.freshness.get(bound, 0) for bound, count in now.freshness.items()})
    freshness = "-" if median is None else f"{median * 1000:.0f} ms" if median < 1 else f"{median:.1f} s"
    words = [
        f"applied {applied} ({(applied - applied_before) / seconds:.1f}/s)",
        f"lag {now.lag}",
        f"freshness {freshness}",
        f"requests {answered} ({(answered - answered_before) / seconds:.1f}/s)",
        *(f"{status}: {count:,}" for status, count in now.answers.items()),
    ]
    if now.dead_letters:
        words.append(f"dead letters {now.dead_letters}")
    return "  ".join(words)


class LiveView:
    """Reads both metrics ports and prints a line, whenever `show` is called and one is due."""

    def __init__(self, projector_port: int, api_port: int) -> None:
        self._ports = (projector_port, api_port)
        self._before = read("", "", time.monotonic())
        self._due = time.monotonic() + _EVERY_SECONDS  # before, rates would be of an instant

    def show(self) -> None:
        """Prints nothing if a metrics port does not respond in time."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _EVERY_SECONDS
        replies = [ask("127.0.0.1", port, "/metrics") for port in self._ports]
        if any(reply.status != 200 for reply in replies):
            return
        figures = read(replies[0].body, replies[1].body, time.monotonic())
        text = f"{time.strftime('%H:%M:%S')}  {line(self._before, figures)}"
        self._before = figures
        sys.stdout.write(_INSTEAD + text if sys.stdout.isatty() else f"{text}\n")
        sys.stdout.flush()


def _median(batches: Mapping[float, int]) -> float | None:
    """Returns the median of a histogram, as Prometheus estimates it; None if it is empty."""
    half = batches.get(math.inf, 0) / 2
    lower, below = 0.0, 0
    for bound, count in sorted(batches.items()):
        if count > below and count >= half:
            return lower if bound == math.inf else lower + (bound - lower) * (half - below) / (count - below)
        lower, below = bound, count
    return None


def _samples(text: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def _sum(samples: Iterable[Sample], name: str) -> int:
    """Returns the sum of what is known: a metric that could not be measured is NaN."""
    return int(sum(sample.value for sample in samples if sample.name == name and sample.value == sample.value))


def _by(samples: Iterable[Sample], name: str, label: str) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for sample in samples:
        if sample.name == name:
            counted[sample.labels[label]] += int(sample.value)
    return dict(sorted(counted.items()))
