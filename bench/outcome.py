"""What came out of a benchmark: every round, and from it medians, spreads, ratios and bars kept or missed."""

from statistics import median

from msgspec import Struct

from bench.benchmark import OURS, Bar, Metric, Subject


class Round(Struct, frozen=True):
    """One measurement of one subject."""

    round: int
    case: str
    subject: str
    values: dict[str, float]
    foreign: float = 0.0
    """Share of a core that other processes took meanwhile."""


class Spread(Struct, frozen=True):
    median: float
    least: float
    most: float


class Verdict(Struct, frozen=True):
    """A bar and what was found; `found` is the ratio, or the number itself where the bar has no other side."""

    bar: Bar
    found: float
    kept: bool


class Outcome(Struct, frozen=True):
    """One benchmark on one machine: all that `results.json` says of it."""

    name: str
    what: str
    date: str
    quick: bool
    machine: dict[str, str]
    versions: dict[str, str]
    metrics: list[Metric]
    subjects: list[Subject]
    cases: list[str]
    rounds: list[Round]
    bars: list[Verdict]
    left_out: dict[str, str]


class Rounds:
    """Measurements, to be asked for by case, subject and metric."""

    def __init__(self, rounds: list[Round]) -> None:
        self._rounds = rounds

    def spread(self, case: str, subject: str, metric: str) -> Spread | None:
        """None where that was not measured."""
        found = [
            each.values[metric]
            for each in self._rounds
            if each.case == case and each.subject == subject and metric in each.values
        ]
        return Spread(median(found), min(found), max(found)) if found else None

    def ratio(self, case: str, subject: str, metric: str) -> float | None:
        """Leadview's median, as a multiple of this subject's."""
        return _quotient(self.spread(case, OURS, metric), self.spread(case, subject, metric))

    def verdict(self, bar: Bar) -> Verdict | None:
        """None where one side of the bar was not measured."""
        ours = self.spread(bar.case, OURS, bar.metric)
        if ours is None:
            return None
        found: float | None = ours.median
        if bar.against is not None or bar.case_against is not None:
            other = self.spread(bar.case_against or bar.case, bar.against or OURS, bar.metric)
            found = _quotient(ours, other)
        if found is None:
            return None
        return Verdict(bar, found, found >= bar.bound if bar.at_least else found <= bar.bound)


def _quotient(one: Spread | None, other: Spread | None) -> float | None:
    return one.median / other.median if one and other and other.median else None
