"""Shows what Leadview does: a small table refreshed in place on a terminal, otherwise a line every few seconds. The
figures come from the metrics of the projector and the API, in the Prometheus text format."""

import math
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, TextIO

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from devstack.programs import ask

EVERY_SECONDS = 1.0
_LINE_EVERY_SECONDS = 5.0
_WINDOW_SECONDS = 5.0
_HEALTH = ("healthz", "readyz")


class Figures(Struct, frozen=True, kw_only=True):
    """The counts of both processes at one moment."""

    at: float
    """Seconds on the clock of the caller."""
    records: dict[str, int]
    """Records by result: written, stale, dropped, dead."""
    lag: int
    dead_letters: int
    freshness: Mapping[float, int]
    """How many batches were visible within so many seconds: a histogram."""
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
    """Median of the seconds from an event to its visible document; None if nothing was applied. The mean would show one
    event with an old `time` only.
    """


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


def rates(before: Figures, after: Figures) -> Rates:
    """Returns the rates between two figures; zeros if no time has passed."""
    seconds = after.at - before.at
    return Rates(
        applied=(after.applied - before.applied) / seconds if seconds > 0 else 0.0,
        answered=(after.answered - before.answered) / seconds if seconds > 0 else 0.0,
        freshness=_median({bound: n - before.freshness.get(bound, 0) for bound, n in after.freshness.items()}),
    )


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


class View(Protocol):
    """Shows figures. `show` is called about once per second."""

    def show(self, figures: Figures, now: Rates) -> None: ...


class Meter:
    """Reads both metrics ports, and computes rates over the last seconds."""

    def __init__(self, projector_port: int, api_port: int) -> None:
        self._ports = (projector_port, api_port)
        self._seen: deque[Figures] = deque()

    def take(self) -> tuple[Figures, Rates] | None:
        """Returns the present figures and rates; None if a metrics port does not respond in time."""
        replies = [ask("127.0.0.1", port, "/metrics") for port in self._ports]
        if any(reply.status != 200 for reply in replies):
            return None
        figures = read(replies[0].body, replies[1].body, time.monotonic())
        while self._seen and figures.at - self._seen[0].at > _WINDOW_SECONDS + EVERY_SECONDS / 2:
            self._seen.popleft()
        self._seen.append(figures)
        return figures, rates(self._seen[0], figures)


@contextmanager
def live_view(base_url: str) -> Iterator[View]:
    """Yields the view that suits standard output."""
    console = Console(highlight=False)
    if not console.is_terminal:
        yield LineView(sys.stdout)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield TableView(live, base_url)


class TableView:
    """A table that is refreshed in place."""

    def __init__(self, live: Live, base_url: str) -> None:
        self._live = live
        self._base_url = base_url
        self._started = time.monotonic()

    def show(self, figures: Figures, now: Rates) -> None:
        running = timedelta(seconds=int(time.monotonic() - self._started))
        panel = Panel(
            table(figures, now),
            title=f"Leadview at {self._base_url}",
            subtitle=f"{running}, stop with Ctrl-C",
            title_align="left",
            subtitle_align="left",
            expand=False,
            padding=(0, 2),
        )
        self._live.update(panel, refresh=True)


class LineView:
    """A line every few seconds."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._due = time.monotonic()

    def show(self, figures: Figures, now: Rates) -> None:
        if time.monotonic() < self._due:
            return
        self._due += _LINE_EVERY_SECONDS
        print(f"{time.strftime('%H:%M:%S')}  {line(figures, now)}", file=self._output, flush=True)


def table(figures: Figures, now: Rates) -> Table:
    """Returns a table of four rows: name, number, details."""
    grid = Table.grid(padding=(0, 3))
    grid.add_column(style="bold")
    grid.add_column(justify="right", min_width=9)
    grid.add_column(min_width=40)
    bad = f", [red]{figures.dead_letters} dead letters[/red]" if figures.dead_letters else ""
    grid.add_row("applied", f"{figures.applied:,}", f"{now.applied:.1f} records/s{bad}")
    grid.add_row("lag", f"{figures.lag:,}", "records not applied yet")
    grid.add_row("freshness", _freshness(now), "from an event to its visible document")
    grid.add_row("requests", f"{figures.answered:,}", f"{now.answered:.1f}/s   {_answers(figures)}".rstrip())
    return grid


def line(figures: Figures, now: Rates) -> str:
    """Returns the same figures in one line."""
    bad = f"  dead letters {figures.dead_letters}" if figures.dead_letters else ""
    return (
        f"applied {figures.applied} ({now.applied:.1f}/s)  lag {figures.lag}  freshness {_freshness(now)}  "
        f"requests {figures.answered} ({now.answered:.1f}/s) {_answers(figures)}".rstrip()
        + bad
    )


def _freshness(now: Rates) -> str:
    if now.freshness is None:
        return "-"
    return f"{now.freshness * 1000:.0f} ms" if now.freshness < 1 else f"{now.freshness:.1f} s"


def _answers(figures: Figures) -> str:
    return "  ".join(f"{status}: {count:,}" for status, count in figures.answers.items())
