"""Figures in pages: the text between two marks in a page is generated from `results.json`.

So no page shows a figure that `make bench` did not print. `make bench` writes the pages; a test compares them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path

from bench import capacity, compression
from bench.benchmark import LEADVIEW
from bench.outcome import Outcome, Rounds
from bench.results import Results, read
from bench.simulation import page as simulated
from bench.table import number, sentence

ROOT = Path(__file__).parents[1]
_MARKED = re.compile(r"(<!-- from bench/results\.json(?:: (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)

_HEADLINES = (
    ("A full request: one worker, 64 connections", "api", "64 connections", "throughput"),
    ("Its latency, p99", "api", "64 connections", "p99"),
    ("Latency at 2,000 requests a second, p99", "api-latency", "2000 requests/s", "p99"),
    ("Among a million documents", "growth-documents", "1,000,000 documents", "throughput"),
    ("Kafka into Redis, one process", "projector", "new records", "rate"),
    ("Kafka into Redis, two processes", "projector-processes", "4 partitions, 2 processes", "rate"),
    ("Updates of stored leads, one process", "updates", "leads whose contact stays", "rate"),
    ("Updates of contacts that 1 to 5 leads each show", "updates", "contacts whose summary changes", "rate"),
    ("Event produced to visible over HTTP, p50", "freshness", "1,000 events/s", "p50"),
    ("Event produced to visible over HTTP, p99", "freshness", "1,000 events/s", "p99"),
    ("The same while a rebuild runs, p99", "freshness", "1,000 events/s, during a rebuild", "p99"),
    ("Rebuild of 1,000,000 records", "rebuild", "during the rebuild", "rate"),
    ("100,000 records waited: the projector has caught up after", "catch-up", "while catching up", "caught up after"),
    ("Latency of reads meanwhile, p99", "catch-up", "while catching up", "p99"),
    ("Empty Redis: 1,000,000 records are served after", "cold-start", "empty Redis", "all is served after"),
    ("Redis with them restarts: it loads for", "cold-start", "Redis restarts", "Redis loads for"),
    ("The API then serves after", "cold-start", "Redis restarts", "first 200 after that"),
    ("A contact with 50,000 leads changes: all show it after", "fan-out", "the contact changes", "until all are right"),
    ("Redis's memory for each byte that is served", "memory", "100,000 documents", "Redis bytes per document byte"),
)  # fmt: skip


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
    found = ((row, results.benchmarks.get(row[1])) for row in rows)
    lines = [_headline(what, outcome, case, metric) for (what, _, case, metric), outcome in found if outcome]
    return ["| | Leadview | compared with | `make bench` |", "|---|---|---|---|", *lines]


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


def _headline(what: str, outcome: Outcome, case: str, metric: str) -> str:
    rounds = Rounds(outcome.rounds)
    spread = rounds.spread(case, LEADVIEW, metric)
    unit = next((each.unit for each in outcome.metrics if each.name == metric), "")
    others = [
        f"{number(ratio)} times {subject.name}"
        for subject in outcome.subjects
        if subject.name != LEADVIEW and (ratio := rounds.ratio(case, subject.name, metric))
    ]
    value = f"{number(spread.median)} {unit}" if spread else capacity.UNKNOWN
    return f"| {what} | {value} | {', '.join(others)} | `{outcome.name}` |"


_PAGES: Mapping[str, Mapping[str | None, Callable[[Results], str]]] = {
    "README.md": {None: readme},
    "bench/README.md": {None: all_figures},
    "docs/capacity.md": {None: capacity.page, "simulation": simulated.page, "compression": compression.page},
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
