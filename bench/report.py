"""Outcomes for readers: tables in the terminal."""

from rich.console import Console
from rich.table import Table

from bench.benchmark import LEADVIEW, Metric, Subject
from bench.outcome import Outcome, Rounds, Spread, Verdict


def show(outcome: Outcome, console: Console) -> None:
    """Print a table for each case (or one table if there is one subject), then targets and what was left out."""
    console.print(f"\n[bold]{outcome.name}[/bold]  {outcome.what}")
    if len(outcome.subjects) == 1:
        console.print(_by_case(outcome, outcome.subjects[0]))
    else:
        for case in outcome.cases:
            if any(each.case == case for each in outcome.rounds):
                console.print(_by_subject(outcome, case))
    for verdict in outcome.targets:
        console.print(("[green]met[/green]     " if verdict.met else "[red]missed[/red]  ") + sentence(verdict))
    for what, why in outcome.left_out.items():
        console.print(f"[yellow]left out[/yellow]  {what}: {why}")


def sentence(verdict: Verdict) -> str:
    """A target and the measured value, in words."""
    target = verdict.target
    limit = f"{'at least' if target.at_least else 'at most'} {target.bound:g}"
    other = " of ".join(part for part in (target.case_against, target.against) if part)
    times = f" times {other}" if other else ""
    return f"{target.metric}, {target.case}: {number(verdict.value)}{times} ({limit})"


def number(value: float) -> str:
    """A number with three significant digits, or without decimals."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _by_case(outcome: Outcome, subject: Subject) -> Table:
    rounds = Rounds(outcome.rounds)
    table = _empty(outcome, subject.name)
    for case in outcome.cases:
        table.add_row(case, *(_cell(rounds, case, subject.name, metric) for metric in outcome.metrics))
    return table


def _by_subject(outcome: Outcome, case: str) -> Table:
    rounds = Rounds(outcome.rounds)
    table = _empty(outcome, case)
    for subject in outcome.subjects:
        cells = [_cell(rounds, case, subject.name, metric) for metric in outcome.metrics]
        if any(cells):
            table.add_row(subject.name, *cells, style="bold" if subject.name == LEADVIEW else "")
    return table


def _empty(outcome: Outcome, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for metric in outcome.metrics:
        table.add_column(f"{metric.name}\n{metric.unit}", justify="right")
    return table


def _cell(rounds: Rounds, case: str, subject: str, metric: Metric) -> str:
    """Median, minimum and maximum; below, Leadview's median as a multiple of it."""
    spread = rounds.spread(case, subject, metric.name)
    if spread is None:
        return ""
    ratio = rounds.ratio(case, subject, metric.name)
    multiple = "" if subject == LEADVIEW or ratio is None else f"\n[dim]leadview: {ratio:.2f} times[/dim]"
    return f"{number(spread.median)}{_range(spread)}{multiple}"


def _range(spread: Spread) -> str:
    if spread.least == spread.most:
        return ""
    return f" [dim]{number(spread.least)}-{number(spread.most)}[/dim]"
