"""The simulation as a benchmark: its results are stored and shown as those of the others."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import api, capacity, projector, results
from bench.benchmark import LEADVIEW, Measure, MeasurementFailed, Metric, Subject, Target
from bench.capacity import Cluster
from bench.consuming_peers import RATE
from bench.lab import Lab
from bench.outcome import Rounds
from bench.results import Results
from bench.simulation import scenarios
from bench.simulation.scenarios import SCENARIOS, Both, Scenarios

FORMULA, MEASURED = "formula", "measured"
ONE_PROJECTOR, ONE_WORKER = "one projector, one Redis", "one API worker, one Redis"
_RESULTS = Path(__file__).parents[1] / "results.json"
_SECONDS, _QUICK_SECONDS = 0.2, 0.05
_QUICK_OUTAGE = 1.0


class Simulation:
    name = "simulation"
    what = (
        "A simulated installation of 64 masters, 32 projectors and as many API workers as the formula of "
        "docs/capacity.md demands, with the costs in bench/results.json, in the busiest second that the formula "
        "allows. Two cases simulate what other benchmarks have measured. Nothing is measured here: the machine does "
        "not matter."
    )
    metrics = (
        Metric(scenarios.RECORDS, "records/s", more_is_better=True),
        Metric(scenarios.REBUILT, "records/s", more_is_better=True),
        Metric(scenarios.REQUESTS, "requests/s", more_is_better=True),
        Metric(scenarios.MEAN, "%"),
        Metric(scenarios.BUSIEST, "%"),
        Metric(scenarios.PROJECTOR, "%"),
        Metric(scenarios.WORKER, "%"),
        Metric(scenarios.FRESH_P50, "ms"),
        Metric(scenarios.FRESH_P99, "ms"),
        Metric(scenarios.READ_P50, "ms"),
        Metric(scenarios.READ_P99, "ms"),
        Metric(scenarios.CAUGHT_UP, "s"),
    )
    subjects = (
        Subject(LEADVIEW, "leadview", "the simulated installation"),
        Subject(FORMULA, "limit", "what the formula says"),
        Subject(MEASURED, "limit", "what the benchmarks `projector` and `api` measured"),
    )
    targets: Sequence[Target] = ()
    rounds = 1
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        return (ONE_PROJECTOR, ONE_WORKER, *SCENARIOS)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:  # noqa: ARG002 - required by Benchmark
        found = results.read(_RESULTS)
        costs = capacity.cluster(found)
        if costs is None:
            needed = sorted({each.benchmark for each in capacity.INPUTS} | {"cluster-costs"})
            raise MeasurementFailed(f"run these benchmarks first, whose figures it uses: {', '.join(needed)}")
        # They are finished here, because a measurement is repeated if other processes use the machine.
        both = {**_validation(found, costs), **_scenarios(costs, quick=lab.quick)}
        return {
            LEADVIEW: lambda case: both[case][0],
            FORMULA: lambda case: both[case][1] if case in SCENARIOS else {},
            MEASURED: lambda case: {} if case in SCENARIOS else both[case][1],
        }


def _scenarios(costs: Cluster, *, quick: bool) -> Mapping[str, Both]:
    simulated = Scenarios(costs, *((_QUICK_SECONDS, _QUICK_OUTAGE) if quick else (_SECONDS,)))
    return {name: scenario() for name, scenario in simulated.by_name.items()}


def _validation(found: Results, costs: Cluster) -> Mapping[str, Both]:
    """Simulations of what was measured, and what was measured."""
    figures = capacity.inputs(found)
    worker = scenarios.one_worker(costs, figures["a"] / 1e6, figures["q"] / 1e6, _SECONDS)

    def measured(name: str, case: str, metric: Metric) -> float:
        spread = Rounds(found.benchmarks[name].rounds).spread(case, LEADVIEW, metric.name)
        return spread.median if spread else 0.0

    return {
        ONE_PROJECTOR: (
            {scenarios.RECORDS: scenarios.one_projector(costs, 2 * _SECONDS)},
            {scenarios.RECORDS: measured("projector", projector.NEW, RATE)},
        ),
        ONE_WORKER: (
            {
                scenarios.REQUESTS: worker.requests,
                scenarios.READ_P50: scenarios.percentile(worker.reads, 0.5) * 1e3,
            },
            {
                scenarios.REQUESTS: measured("api", api.CASE, api.RATE),
                scenarios.READ_P50: measured("api", api.CASE, api.P50),
            },
        ),
    }
