"""Outcomes for readers: tables in the terminal, and charts as SVG (a bar for each subject's median, a line from its
minimum to its maximum, grouped by case)."""

from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.benchmark import LEADVIEW, Metric, Subject
from bench.outcome import Outcome, Rounds, Spread, Verdict

_WIDTH, _LEFT, _RIGHT = 760, 170, 110
_BAR, _GAP, _CASE, _HEAD = 16, 6, 26, 50
_STYLE = """
text{font:12px system-ui,sans-serif;fill:#333} .title{font-size:14px;font-weight:600} .case{font-weight:600}
.bar{fill:#9aa7b5} .ours{fill:#2563eb} .limit{fill:#d5dbe1} .spread{stroke:#111;stroke-width:1.5}
@media (prefers-color-scheme:dark){text{fill:#ddd} .spread{stroke:#fff} .bar{fill:#6b7785} .limit{fill:#444c56}}
"""


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


def write_charts(directory: Path, outcome: Outcome) -> None:
    """Write a file for each metric that has a chart: `<benchmark>-<metric>.svg`."""
    directory.mkdir(parents=True, exist_ok=True)
    for metric in outcome.metrics:
        if metric.chart:
            name = f"{outcome.name}-{metric.name.replace(',', '').replace(' ', '-').lower()}.svg"
            (directory / name).write_text(_draw(outcome, metric), "utf-8")


def _draw(outcome: Outcome, metric: Metric) -> str:
    """The chart of a metric, as SVG."""
    rounds = Rounds(outcome.rounds)
    rows = [
        (case, subject, spread)
        for case in outcome.cases
        for subject in outcome.subjects
        if (spread := rounds.spread(case, subject.name, metric.name))
    ]
    scale = (_WIDTH - _LEFT - _RIGHT) / max((spread.most for *_, spread in rows), default=1.0)
    parts, y, last_case = [], float(_HEAD), ""
    for case, subject, spread in rows:
        if case != last_case:
            parts.append(f'<text class="case" x="10" y="{y + 13:g}">{escape(case)}</text>')
            y, last_case = y + _CASE, case
        kind = "ours" if subject.name == LEADVIEW else "limit" if subject.role == "limit" else "bar"
        parts.append(_bar_row(subject.name, kind, spread, scale, y))
        y += _BAR + _GAP
    better = "more" if metric.more_is_better else "less"
    title = f"{outcome.name}: {metric.name}, {metric.unit} ({better} is better)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 10:g}" role="img">\n'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>\n"
        f'<text class="title" x="10" y="24">{escape(title)}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _bar_row(name: str, kind: str, spread: Spread, scale: float, y: float) -> str:
    middle = y + _BAR / 2
    end = _LEFT + spread.median * scale
    least, most = _LEFT + spread.least * scale, _LEFT + spread.most * scale
    return (
        f'<text x="{_LEFT - 8}" y="{y + 12:g}" text-anchor="end">{escape(name)}</text>'
        f'<rect class="{kind}" x="{_LEFT}" y="{y:g}" width="{end - _LEFT:.1f}" height="{_BAR}"/>'
        f'<line class="spread" x1="{least:.1f}" y1="{middle:g}" x2="{most:.1f}" y2="{middle:g}"/>'
        f'<text x="{max(end, most) + 6:.1f}" y="{y + 12:g}">{number(spread.median)}</text>'
    )
