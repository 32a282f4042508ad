"""The interface of a benchmark: its subjects (the programs that are measured), cases, metrics and targets.

Each benchmark is a file; `catalogue` lists them. The runner (`rounds`) measures every subject in turn for every case,
round after round. So a machine that is slow for a while is slow for all subjects.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Literal, Protocol

from msgspec import Struct

from bench.lab import Lab

LEADVIEW = "leadview"

Values = Mapping[str, float]
"""The result of one measurement: a number for each metric's name."""
Measure = Callable[[str], Values]
"""Measures a subject once, for the case of this name."""


class MeasurementFailed(RuntimeError):
    """A subject did not do the work that is measured: for example, it refused requests, or its process ended."""


class Metric(Struct, frozen=True):
    name: str
    unit: str
    more_is_better: bool = False
    chart: bool = False
    """Whether a chart of it is drawn."""


class Subject(Struct, frozen=True):
    """A program that is measured. A peer does the same work as Leadview; a limit does less, so it should be faster."""

    name: str
    role: Literal["leadview", "limit", "peer"]
    what: str


class Target(Struct, frozen=True):
    """A bound on Leadview's median of a metric.

    The median must be at least, or at most, `bound` times the median of another subject (`against`) or of another case
    of Leadview (`case_against`). Without either, `bound` is an absolute number.
    """

    metric: str
    case: str
    bound: float
    at_least: bool
    against: str | None = None
    case_against: str | None = None


class Benchmark(Protocol):
    """`what` describes in a few sentences what is measured."""

    @property
    def name(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def metrics(self) -> Sequence[Metric]: ...
    @property
    def subjects(self) -> Sequence[Subject]: ...
    @property
    def targets(self) -> Sequence[Target]: ...
    @property
    def rounds(self) -> int: ...
    @property
    def restarts_each_round(self) -> bool:
        """Whether `prepare` is called for each round, instead of once.

        Two processes of the same program differ by a few percent, because their memory is laid out differently. The
        median over several processes does not."""
        ...

    def cases(self, lab: Lab) -> Sequence[str]:
        """The names of the cases. A quick lab has fewer or smaller ones."""
        ...

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        """Start everything that is needed; `stack` stops it. Returns a measure for each subject.

        A subject that cannot run on this machine is missing, and `lab.leave_out` was called with the reason."""
        ...
