"""Charts as SVG: a bar for each subject's median, a line from its minimum to its maximum, grouped by case."""

from html import escape
from pathlib import Path

from bench.benchmark import LEADVIEW, Metric
from bench.outcome import Outcome, Rounds, Spread
from bench.table import number

_WIDTH, _LEFT, _RIGHT = 760, 170, 110
_BAR, _GAP, _CASE, _HEAD = 16, 6, 26, 50
_STYLE = """
text{font:12px system-ui,sans-serif;fill:#333} .title{font-size:14px;font-weight:600} .case{font-weight:600}
.bar{fill:#9aa7b5} .ours{fill:#2563eb} .limit{fill:#d5dbe1} .spread{stroke:#111;stroke-width:1.5}
@media (prefers-color-scheme:dark){text{fill:#ddd} .spread{stroke:#fff} .bar{fill:#6b7785} .limit{fill:#444c56}}
"""


def write(directory: Path, outcome: Outcome) -> None:
    """Write a file for each metric that has a chart: `<benchmark>-<metric>.svg`."""
    directory.mkdir(parents=True, exist_ok=True)
    for metric in outcome.metrics:
        if metric.chart:
            name = f"{outcome.name}-{metric.name.replace(',', '').replace(' ', '-').lower()}.svg"
            (directory / name).write_text(draw(outcome, metric), "utf-8")


def draw(outcome: Outcome, metric: Metric) -> str:
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
        parts.append(_row(subject.name, kind, spread, scale, y))
        y += _BAR + _GAP
    better = "more" if metric.more_is_better else "less"
    title = f"{outcome.name}: {metric.name}, {metric.unit} ({better} is better)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 10:g}" role="img">\n'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>\n"
        f'<text class="title" x="10" y="24">{escape(title)}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _row(name: str, kind: str, spread: Spread, scale: float, y: float) -> str:
    middle = y + _BAR / 2
    end = _LEFT + spread.median * scale
    least, most = _LEFT + spread.least * scale, _LEFT + spread.most * scale
    return (
        f'<text x="{_LEFT - 8}" y="{y + 12:g}" text-anchor="end">{escape(name)}</text>'
        f'<rect class="{kind}" x="{_LEFT}" y="{y:g}" width="{end - _LEFT:.1f}" height="{_BAR}"/>'
        f'<line class="spread" x1="{least:.1f}" y1="{middle:g}" x2="{most:.1f}" y2="{middle:g}"/>'
        f'<text x="{max(end, most) + 6:.1f}" y="{y + 12:g}">{number(spread.median)}</text>'
    )
