"""The figures of the live view, from the metrics of the projector and the API in the Prometheus text format. Pure."""

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_HEALTH = ("healthz", "readyz")


class Figures(Struct, frozen=True, kw_only=True):
    """The counts of both processes at one moment."""

    at: float
    """Seconds on the clock of the caller."""
    records: dict[str, int]
    """Records by result: written, stale, dropped, dead."""
    lag: int
    dead_letters: int
    freshness_seconds: float
    """The sum over `freshness_batches`."""
    freshness_batches: int
    answers: dict[str, int]
    """Responses of the API by status, without health checks."""

    @property
    def seen(self) -> int:
        return sum(self.records.values())

    @property
    def applied(self) -> int:
        return self.records.get("written", 0)

    @property
    def answered(self) -> int:
        return sum(self.answers.values())


class Rates(Struct, frozen=True, kw_only=True):
    """The rates between two moments."""

    applied: float
    """Records per second."""
    answered: float
    """Responses per second."""
    freshness: float | None
    """Mean seconds from an event to its visible document; None if nothing was applied."""


def read(projector: str, api: str, at: float) -> Figures:
    """Returns the figures in the texts of both metrics ports, read at the time `at`."""
    samples = [*_samples(projector), *_samples(api)]
    return Figures(
        at=at,
        records=_by(samples, "leadview_projector_records_total", "result"),
        lag=_sum(samples, "leadview_projector_lag_records"),
        dead_letters=_sum(samples, "leadview_projector_dead_letters"),
        freshness_seconds=sum(s.value for s in samples if s.name == "leadview_projector_freshness_seconds_sum"),
        freshness_batches=_sum(samples, "leadview_projector_freshness_seconds_count"),
        answers=_by(
            (sample for sample in samples if sample.labels.get("route") not in _HEALTH),
            "leadview_api_requests_total",
            "status",
        ),
    )


def rates(before: Figures, after: Figures) -> Rates:
    """Returns the rates between two figures; zeros if no time has passed."""
    seconds = after.at - before.at
    batches = after.freshness_batches - before.freshness_batches
    return Rates(
        applied=(after.applied - before.applied) / seconds if seconds > 0 else 0.0,
        answered=(after.answered - before.answered) / seconds if seconds > 0 else 0.0,
        freshness=(after.freshness_seconds - before.freshness_seconds) / batches if batches > 0 else None,
    )


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
