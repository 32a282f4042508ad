"""The outcome of a benchmark: all rounds, and from them medians, spreads, ratios, and targets met or missed. The latest
outcome of each benchmark is in `results.json`."""

from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct, field

from bench.benchmark import LEADVIEW, Metric, Subject, Target


class Round(Struct, frozen=True):
    """One measurement of one subject."""

    round: int
    case: str
    subject: str
    values: dict[str, float]
    foreign: float = 0.0
    """Share of one core that other processes of the machine used meanwhile."""


class Spread(Struct, frozen=True):
    """Median, minimum and maximum of all rounds."""

    median: float
    least: float
    most: float


class Verdict(Struct, frozen=True):
    """A target, and the measured value: a ratio, or the number itself if the target is an absolute number."""

    target: Target
    value: float
    met: bool


class Outcome(Struct):
    """One benchmark on one machine: everything that `results.json` holds about it."""

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
    targets: list[Verdict]
    left_out: dict[str, str]

    def spread(self, case: str, subject: str, metric: str) -> Spread | None:
        """Returns None if that was not measured."""
        values = [
            each.values[metric]
            for each in self.rounds
            if each.case == case and each.subject == subject and metric in each.values
        ]
        return Spread(median(values), min(values), max(values)) if values else None

    def ratio(self, case: str, subject: str, metric: str) -> float | None:
        """Leadview's median as a multiple of this subject's; None if one of them was not measured."""
        return _quotient(self.spread(case, LEADVIEW, metric), self.spread(case, subject, metric))

    def judge(self, target: Target) -> None:
        """Add the verdict on this target, unless one side of it was not measured."""
        own = self.spread(target.case, LEADVIEW, target.metric)
        value = own.median if own else None
        if target.against is not None or target.case_against is not None:
            other = self.spread(target.case_against or target.case, target.against or LEADVIEW, target.metric)
            value = _quotient(own, other)
        if value is not None:
            met = value >= target.bound if target.at_least else value <= target.bound
            self.targets.append(Verdict(target, value, met))


class Results(Struct):
    """The contents of `results.json`."""

    benchmarks: dict[str, Outcome] = field(default_factory=dict)


def read(path: Path) -> Results:
    """Read results; they are empty if there is no such file."""
    return msgspec.json.decode(path.read_bytes(), type=Results) if path.is_file() else Results()


def write(path: Path, results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def _quotient(one: Spread | None, other: Spread | None) -> float | None:
    return one.median / other.median if one and other and other.median else None
