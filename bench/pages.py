"""Results for readers: tables in the terminal, and figures in pages.

The text between two marks in a page is generated from `results.json`, so no page shows a figure that `make bench` did
not print. `make bench` writes the pages; a test compares them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import api, consumers, growth, memory, projector, rebuild
from bench import capacity as example
from bench.benchmark import LEADVIEW
from bench.memory import JEMALLOC, OF_1_KB, OF_700_BYTES
from bench.outcome import Outcome, Results, Verdict, read

ROOT = Path(__file__).parents[1]
_MARKED = re.compile(r"(<!-- from bench/results\.json(?:: (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)

UNKNOWN = "not measured yet"
_CONSTANT, _IN_PROPORTION = 1.2, (7.5, 12.0)
"""The ratios of figures that hardly grow, and of those that grow as much as their cause, which is ten times as much."""
_HEADLINES = (
    ("A full request: one worker, 64 connections", "api", "64 connections", "throughput"),
    ("Its latency, p99", "api", "64 connections", "p99"),
    ("Latency at 10,000 requests a second, p99", "api", "10000 requests/s", "p99"),
    ("Among a million documents", "documents", "1,000,000 documents", "throughput"),
    ("Kafka into Redis, one process", "projector", "new records", "rate"),
    ("Updates of stored leads, one process", "projector", "leads whose contact stays", "rate"),
    ("Updates of contacts that 1 to 5 leads each show", "projector", "contacts whose summary changes", "rate"),
    ("Event produced to visible over HTTP, p50", "freshness", "1,000 events/s", "p50"),
    ("Event produced to visible over HTTP, p99", "freshness", "1,000 events/s", "p99"),
    ("The same while a rebuild runs, p99", "freshness", "1,000 events/s, during a rebuild", "p99"),
    ("Rebuild of 1,000,000 records", "rebuild", "during the rebuild", "rate"),
    ("100,000 records waited: the projector has caught up after", "rebuild", "while catching up", "time"),
    ("Latency of reads meanwhile, p99", "rebuild", "while catching up", "p99"),
    ("Empty Redis: 1,000,000 records are served after", "cold-start", "empty Redis", "all is served after"),
    ("A contact with 50,000 leads changes: all show it after", "fan-out", "the contact changes", "until all are right"),
    *(
        (
            f"Redis's memory for each byte that is served, with {allocator}",
            "memory",
            memory.case(OF_700_BYTES, allocator),
            memory.RATIO.name,
        )
        for allocator in (JEMALLOC, memory.LIBC)
    ),
)  # fmt: skip
_LEADS, _OWNERS = memory.case(OF_700_BYTES, JEMALLOC), memory.case(memory.OWNERS, JEMALLOC)
_COSTS = (
    ("m", "Redis memory for a lead with its contact", "memory", _LEADS, memory.REDIS_BYTES.name),
    ("o", "Redis memory for an organization with a key", "memory", _OWNERS, memory.ORGANIZATION_BYTES.name),
    ("a", "API's CPU for a request", "api", api.SATURATED, api.CPU.name),
    ("q", "Redis's CPU for a request", "api", api.SATURATED, api.REDIS_CPU.name),
    ("p", "projector's CPU for an event", "projector", projector.NEW, consumers.CPU.name),
    ("w", "Redis's CPU for an event", "projector", projector.NEW, consumers.REDIS_CPU.name),
    ("r", "rebuild by one process while the API is in use", "rebuild", rebuild.REBUILDING, rebuild.RATE.name),
)
"""The figures that the formula of `docs/capacity.md` uses, and what prints them."""
_COMPRESSION = (
    *(
        (
            f"Redis's memory for each byte that is served, {what}",
            "memory",
            memory.case(kind, JEMALLOC),
            memory.RATIO.name,
        )
        for what, kind in (
            ("leads of 1 KB", OF_1_KB),
            ("leads of 700 bytes", OF_700_BYTES),
        )
    ),
    ("API, CPU per request", "api", api.SATURATED, api.CPU.name),
    ("Redis, CPU per request", "api", api.SATURATED, api.REDIS_CPU.name),
    ("projector, CPU per record", "projector", projector.NEW, consumers.CPU.name),
    ("Redis, CPU per record", "projector", projector.NEW, consumers.REDIS_CPU.name),
)


_SHOWN = ("api", "throughput"), ("projector", "rate"), ("freshness", "p99")
_IN_README = tuple(next(row for row in _HEADLINES if (row[1], row[3]) == shown) for shown in _SHOWN)


def readme(results: Results) -> str:
    """The figures that the README shows."""
    return "\n".join(_table(results, _IN_README))


def all_figures(results: Results) -> str:
    """All figures, the machine and the time, and all targets that were missed."""
    lines = [*_measured_on(results), "", *_table(results, _HEADLINES)]
    verdicts = [(name, verdict) for name, outcome in results.benchmarks.items() for verdict in outcome.targets]
    if missed := [f"- `{name}`: {sentence(verdict)}" for name, verdict in verdicts if not verdict.met]:
        lines += ["", f"{len(missed)} of {len(verdicts)} targets were missed in that run:", "", *missed]
    return "\n".join(lines)


def _table(results: Results, rows: Iterable[tuple[str, str, str, str]]) -> list[str]:
    lines = ["| | Leadview | compared with | `make bench` |", "|---|---|---|---|"]
    for what, name, case, metric in rows:
        if figure := _figure(results, name, case, LEADVIEW, metric):
            outcome = results.benchmarks[name]
            ratios = {each.name: outcome.ratio(case, each.name, metric) for each in outcome.subjects}
            others = [
                f"{number(ratio)} times {other}" for other, ratio in ratios.items() if ratio and other != LEADVIEW
            ]
            lines.append(f"| {what} | {figure} | {', '.join(others)} | `{name}` |")
    return lines


def _measured_on(results: Results) -> list[str]:
    """A line for each machine, with the names of its benchmarks if there is more than one machine."""
    by_machine: dict[str, list[Outcome]] = {}
    for outcome in results.benchmarks.values():
        machine = "{processor}, {cores} cores, {memory}, Python {python}".format(**outcome.machine)
        by_machine.setdefault(f"{machine}, Redis {outcome.versions['redis-server']}", []).append(outcome)
    lines = []
    for machine, outcomes in by_machine.items():
        names = f" of {', '.join(f'`{each.name}`' for each in outcomes)}" if len(by_machine) > 1 else ""
        dates = sorted(datetime.fromisoformat(each.date) for each in outcomes)
        first, last = (f"{date:%Y-%m-%d %H:%M} UTC" for date in (dates[0], dates[-1]))
        lines.append(f"Machine{names}: {machine}. The first benchmark began at {first}, the last one at {last}.")
    return lines


def capacity(results: Results) -> str:
    """The costs that the formula of `docs/capacity.md` uses."""
    lines = ["| | figure | | printed by |", "|---|---|---|---|"]
    for symbol, what, name, case, metric in _COSTS:
        figure = _figure(results, name, case, LEADVIEW, metric) or UNKNOWN
        lines.append(f"| `{symbol}` | {what} | {figure} | `{name}`, {case} |")
    return "\n".join(lines)


def installation(results: Results) -> str:
    """The example of `docs/capacity.md`."""
    lines = [f"| {row.what} | {row.figure} | {row.how} |" for row in example.rows(results)]
    return "\n".join(["| | | from |", "|---|---|---|", *(lines or [f"| {UNKNOWN} | | |"])])


def growths(results: Results) -> str:
    """The table of `bench/README.md`: what becomes ten times as much, and how much more is counted then."""
    lines = ["| | ten times as many | counted | before | then | ratio | class |", "|---|---|---|---|---|---|---|"]
    for each in growth.GROWTHS:
        outcome = results.benchmarks.get(growth.BENCHMARK.name)
        if outcome is not None and (ratio := each.ratio(outcome)):
            medians = (outcome.spread(case, LEADVIEW, each.metric.name) for case in (each.few, each.many))
            counts = " | ".join(number(spread.median) for spread in medians if spread)
            what = f"{each.work} | {each.what} | {each.metric.name}"
            lines.append(f"| {what} | {counts} | {number(ratio)} | {_class(ratio)} |")
    return "\n".join(lines)


def _class(ratio: float) -> str:
    """How a figure grows that becomes this many times as much when something becomes ten times as much."""
    if ratio < _CONSTANT:
        return "constant"
    if ratio < _IN_PROPORTION[0]:
        return "less than in proportion"
    return "in proportion" if ratio <= _IN_PROPORTION[1] else "more than in proportion"


def compression(results: Results) -> str:
    """The table of `docs/capacity.md`: what compression saves and costs."""
    lines = ["| | JSON | compressed |", "|---|---|---|"]
    for what, name, case, metric in _COMPRESSION:
        figures = [_figure(results, name, case, subject, metric) or UNKNOWN for subject in (LEADVIEW, api.ZSTD.name)]
        lines.append(f"| {what} | {' | '.join(figures)} |")
    return "\n".join(lines)


def _figure(results: Results, name: str, case: str, subject: str, metric: str) -> str | None:
    """Returns the median with its unit; None if it was not measured."""
    outcome = results.benchmarks.get(name)
    spread = outcome.spread(case, subject, metric) if outcome else None
    if outcome is None or spread is None:
        return None
    unit = next(each.unit for each in outcome.metrics if each.name == metric)
    return f"{number(spread.median)} {unit}"


def show(outcome: Outcome, console: Console) -> None:
    """Print a table for each case (or one table if there is one subject), then targets and what was left out."""
    console.print(f"\n[bold]{outcome.name}[/bold]  {outcome.what}")
    subjects = [subject.name for subject in outcome.subjects]
    if len(subjects) == 1:
        console.print(_of_rows(outcome, subjects[0], [(case, case, subjects[0]) for case in outcome.cases]))
    else:
        for case in outcome.cases:
            console.print(_of_rows(outcome, case, [(subject, case, subject) for subject in subjects]))
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


def _of_rows(outcome: Outcome, title: str, rows: Iterable[tuple[str, str, str]]) -> Table:
    """Returns a table of these rows: the name of each, its case and its subject. What was not measured is left out."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for metric in outcome.metrics:
        table.add_column(f"{metric.name}\n{metric.unit}", justify="right")
    for name, case, subject in rows:
        cells = [_cell(outcome, case, subject, metric.name) for metric in outcome.metrics]
        if any(cells):
            table.add_row(name, *cells, style="bold" if name == LEADVIEW else "")
    return table


def _cell(outcome: Outcome, case: str, subject: str, metric: str) -> str:
    """Median, minimum and maximum; below, Leadview's median as a multiple of it."""
    spread = outcome.spread(case, subject, metric)
    if spread is None:
        return ""
    ratio = outcome.ratio(case, subject, metric)
    multiple = "" if subject == LEADVIEW or ratio is None else f"\n[dim]leadview: {ratio:.2f} times[/dim]"
    least, most = number(spread.least), number(spread.most)
    between = "" if spread.least == spread.most else f" [dim]{least}-{most}[/dim]"
    return f"{number(spread.median)}{between}{multiple}"


_PAGES: Mapping[str, Mapping[str | None, Callable[[Results], str]]] = {
    "README.md": {None: readme},
    "bench/README.md": {None: all_figures, "growth": growths},
    "docs/capacity.md": {None: capacity, "example": installation, "compression": compression},
}
"""What stands between two marks, by the name in the first of them."""


def pages(results: Results) -> dict[Path, str]:
    """The text that each page should have, by file."""
    texts = {}
    for name, figures in _PAGES.items():
        text = (ROOT / name).read_text("utf-8")
        generated = {mark: figure(results) for mark, figure in figures.items()}
        texts[ROOT / name] = _MARKED.sub(
            lambda match, generated=generated: f"{match[1]}{generated[match[2]]}\n{match[3]}",  # type: ignore[misc]
            text,
        )
    return texts


def write(results: Results) -> None:
    """Update all pages."""
    for path, text in pages(results).items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    write(read(ROOT / "bench" / "results.json"))
