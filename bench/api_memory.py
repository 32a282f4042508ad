"""The memory of an API worker over time."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from bench import candidates
from bench.benchmark import LEADVIEW, Measure, Metric, Target, Values
from bench.candidates import SUBJECTS
from bench.lab import Lab

_MEMORY = Metric("resident memory", "MB")
_ANSWERED = Metric("answered since the previous sample", "requests")
_SECONDS = 20.0
_BYTES = 1e6


class ApiMemory:
    name = "api-memory"
    what = "Memory of one busy worker after 20, 40, 60 and 80 seconds. It must not grow."
    metrics = (_MEMORY, _ANSWERED)
    subjects = tuple(subject for subject in SUBJECTS if subject.name == LEADVIEW)
    targets = (Target(_MEMORY.name, "sample 4", 1.02, at_least=False, case_against="sample 2"),)
    rounds = 1
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        return tuple(f"sample {number}" for number in (1, 2, 3, 4))

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        stage = candidates.set_up(lab, stack, only=frozenset({LEADVIEW}))
        server = stage.servers[LEADVIEW]

        def measure(_: str) -> Values:
            report = stage.load.closed(server.port, 64, lab.seconds(_SECONDS))
            return {_MEMORY.name: server.memory_bytes() / _BYTES, _ANSWERED.name: report.answered}

        return {LEADVIEW: measure}
