"""Results as tables for a person."""

from rich.console import Console
from rich.table import Table

from bench.benchmark import OURS, Metric, Subject
from bench.outcome import Outcome, Rounds, Spread, Verdict


def show(outcome: Outcome, console: Console) -> None:
    """Print one table a case, then the bars and what was left out."""
    console.print(f"\n[bold]{outcome.name}[/bold]  {outcome.what}")
    if len(outcome.subjects) == 1:
        console.print(_by_case(outcome, outcome.subjects[0]))
    else:
        for case in outcome.cases:
            console.print(_by_subject(outcome, case))
    for verdict in outcome.bars:
        console.print(("[green]kept[/green]    " if verdict.kept else "[red]missed[/red]  ") + sentence(verdict))
    for what, why in outcome.left_out.items():
        console.print(f"[yellow]left out[/yellow]  {what}: {why}")


def sentence(verdict: Verdict) -> str:
    """A bar and what was found, in words."""
    bar = verdict.bar
    limit = f"{'at least' if bar.at_least else 'at most'} {bar.bound:g}"
    other = " of ".join(part for part in (bar.case_against, bar.against) if part)
    times = f" times {other}" if other else ""
    return f"{bar.metric}, {bar.case}: {number(verdict.found)}{times} ({limit})"


def number(value: float) -> str:
    """Three digits that count."""
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
            table.add_row(subject.name, *cells, style="bold" if subject.name == OURS else "")
    return table


def _empty(outcome: Outcome, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for metric in outcome.metrics:
        table.add_column(f"{metric.name}\n{metric.unit}", justify="right")
    return table


def _cell(rounds: Rounds, case: str, subject: str, metric: Metric) -> str:
    """Median and spread; below, how many times that Leadview has."""
    spread = rounds.spread(case, subject, metric.name)
    if spread is None:
        return ""
    ratio = rounds.ratio(case, subject, metric.name)
    ours = "" if subject == OURS or ratio is None else f"\n[dim]ours {ratio:.2f} times[/dim]"
    return f"{number(spread.median)}{_range(spread)}{ours}"


def _range(spread: Spread) -> str:
    if spread.least == spread.most:
        return ""
    return f" [dim]{number(spread.least)}-{number(spread.most)}[/dim]"
