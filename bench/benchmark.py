"""The shape of a benchmark: who is measured (subjects), under what (cases), in which numbers (metrics), and which
ratios must hold (bars). A file each; `catalogue` lists them.

The runner (`rounds`) asks every subject in turn for every case, again and again, so that a machine that is slow for
a while is slow for all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Literal, Protocol

from msgspec import Struct

from bench.lab import Lab

OURS = "leadview"

Values = Mapping[str, float]
"""What one measurement found: number by the metric's name."""
Measure = Callable[[str], Values]
"""Measures a subject once, for the case of that name."""


class MeasurementFailed(RuntimeError):
    """A subject did not do what is to be measured: it refused requests, or ended."""


class Metric(Struct, frozen=True):
    name: str
    unit: str
    more_is_better: bool = False
    chart: bool = False
    """Is there a chart of it?"""


class Subject(Struct, frozen=True):
    """Who is measured. A limit does less than Leadview and cannot be beaten fairly; a peer does the same."""

    name: str
    role: Literal["leadview", "limit", "peer"]
    what: str


class Bar(Struct, frozen=True):
    """What must hold for Leadview's median: at least, or at most, `bound` times that of `against`; without it, `bound`
    itself. `against` is another subject, or (`case_against`) another case of Leadview's own."""

    metric: str
    case: str
    bound: float
    at_least: bool
    against: str | None = None
    case_against: str | None = None


class Benchmark(Protocol):
    """`what` says what is measured, in a sentence or two."""

    @property
    def name(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def metrics(self) -> Sequence[Metric]: ...
    @property
    def subjects(self) -> Sequence[Subject]: ...
    @property
    def bars(self) -> Sequence[Bar]: ...
    @property
    def rounds(self) -> int: ...
    @property
    def anew(self) -> bool:
        """Is everything started anew for each round? Two processes of the same program differ by some percent, by
        where their memory happens to lie; a median over several of them does not."""
        ...

    def cases(self, lab: Lab) -> Sequence[str]:
        """Names of the cases; fewer, or smaller ones, in a quick lab."""
        ...

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        """Start everything; `stack` ends it. A subject that this machine cannot run is missing in the answer, and
        `lab.leave_out` has been told why."""
        ...
