"""Runs a benchmark: all subjects in turn, round after round, in alternating order."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import product

from bench import machine, quiet
from bench.benchmark import Benchmark, Measure
from bench.lab import Lab
from bench.outcome import Outcome, Round, Rounds


def run(benchmark: Benchmark, lab: Lab, report: Callable[[str], None]) -> Outcome:
    """Measure everything. `report` is called with each step before it is done. Raises MeasurementFailed."""
    date = datetime.now(UTC)
    cases = benchmark.cases(lab)
    count = 1 if lab.quick else benchmark.rounds
    measured: list[Round] = []
    for numbers in ([number] for number in range(count)) if benchmark.restarts_each_round else [range(count)]:
        with ExitStack() as stack:
            report(f"{benchmark.name}: starting servers and creating data")
            measures = benchmark.prepare(lab, stack)
            for number, case in product(numbers, cases):
                report(f"{benchmark.name}: round {number + 1} of {count}, {case}")
                measured += _round(lab, measures, number, case)
    rounds = Rounds(measured)
    subjects = {each.subject for each in measured}
    return Outcome(
        name=benchmark.name,
        what=benchmark.what,
        date=date.isoformat(timespec="seconds"),
        quick=lab.quick,
        machine=machine.description(),
        versions=machine.versions(),
        metrics=list(benchmark.metrics),
        subjects=[subject for subject in benchmark.subjects if subject.name in subjects],
        cases=list(cases),
        rounds=measured,
        targets=[verdict for target in benchmark.targets if (verdict := rounds.verdict(target))],
        left_out=dict(lab.left_out),
    )


def _round(lab: Lab, measures: Mapping[str, Measure], number: int, case: str) -> Iterator[Round]:
    """Every second round has the reverse order, so that no subject profits if the machine becomes slower or faster."""
    subjects = list(measures)
    for subject in reversed(subjects) if number % 2 else subjects:
        measure = partial(measures[subject], case)
        values, foreign = (measure(), 0.0) if lab.quick else quiet.undisturbed(measure)
        if values:
            yield Round(number + 1, case, subject, dict(values), round(foreign, 3))
