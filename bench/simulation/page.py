"""The results of the simulation as a table of `docs/capacity.md`."""

from bench.benchmark import LEADVIEW
from bench.capacity import UNKNOWN
from bench.outcome import Rounds
from bench.results import Results
from bench.simulation.benchmark import FORMULA, MEASURED, Simulation
from bench.table import number


def page(results: Results) -> str:
    """A row for each case and each of its figures, as Markdown. A ratio stands where there is something to compare."""
    outcome = results.benchmarks.get(Simulation.name)
    if outcome is None:
        return f"The simulation is {UNKNOWN}."
    rounds = Rounds(outcome.rounds)
    lines = ["| | | simulated | formula, or measured | simulated ÷ other |", "|---|---|---|---|---|"]
    for case in outcome.cases:
        first = case
        for metric in outcome.metrics:
            simulated = rounds.spread(case, LEADVIEW, metric.name)
            if simulated is None:
                continue
            other = rounds.spread(case, FORMULA, metric.name) or rounds.spread(case, MEASURED, metric.name)
            cells = [f"{number(simulated.median)} {metric.unit}", "", ""]
            if other:
                cells[1:] = f"{number(other.median)} {metric.unit}", f"{simulated.median / other.median:.2f}"
            lines.append(f"| {first} | {metric.name} | {' | '.join(cells)} |")
            first = ""
    return "\n".join(lines)
