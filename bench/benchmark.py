"""What a benchmark is: its subjects (the programs that are measured), cases, metrics and targets.

The runner (`rounds`) measures every subject in turn for every case, round after round. So a machine that is slow for a
while is slow for all subjects.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal

from msgspec import Struct, field
from redis import Redis

from bench.machine import Cores, pinned
from devstack.redis_server import RedisServer

LEADVIEW = "leadview"
_QUICK_SECONDS = 0.4

Values = Mapping[str, float]
"""The result of one measurement: a number for each metric's name. Empty if the subject has nothing to do in a case."""
Measure = Callable[[str], Values]
"""Measures a subject once, for the case of this name."""


class MeasurementFailed(RuntimeError):
    """A subject did not do the work that is measured: for example, it refused requests, or its process ended."""


class Metric(Struct, frozen=True):
    name: str
    unit: str


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


class Lab(Struct):
    """The conditions of a benchmark. `directory` is temporary. A quick run shows that everything works; its figures
    mean little."""

    directory: Path
    quick: bool
    left_out: dict[str, str] = field(default_factory=dict)
    """The reason for each subject or tool that is missing."""

    def seconds(self, full: float) -> float:
        """How long to measure: `full` seconds, and much less in a quick run."""
        return _QUICK_SECONDS if self.quick else full

    def redis(
        self, stack: ExitStack, cores: Cores, *, appendonly: bool = False, program: Path | None = None
    ) -> RedisServer:
        """Start a new, empty Redis on the cores for Redis. `stack` stops it."""
        directory = Path(mkdtemp(dir=self.directory, prefix="redis-"))
        with pinned(cores.redis):
            return stack.enter_context(RedisServer.start(directory, appendonly=appendonly, program=program))


class Benchmark(Struct, frozen=True, kw_only=True):
    """`what` describes in a few sentences what is measured.

    `prepare` starts everything that is needed, which its stack stops, and returns a measure for each subject. A subject
    that cannot run on this machine is missing there, and in `left_out` of the lab with the reason.
    """

    name: str
    what: str
    metrics: Sequence[Metric]
    subjects: Sequence[Subject]
    cases: Sequence[str]
    prepare: Callable[[Lab, ExitStack], Mapping[str, Measure]]
    targets: Sequence[Target] = ()
    needs_kafka: bool = False
    """Whether it needs Apache Kafka, without which nothing is measured."""
    counts: bool = False
    """Whether it counts and does not time: what else the machine does changes nothing then."""
    rounds: int = 3
    restarts_each_round: bool = False
    """Whether `prepare` is called for each round, instead of once.

    Two processes of the same program differ by a few percent, because their memory is laid out differently. The median
    over several processes does not."""


def client(server: RedisServer) -> Redis:
    """A client whose replies are bytes. The caller closes it."""
    return Redis(port=server.port)
