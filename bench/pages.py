"""Figures in pages: what stands between two marks of the README and of `docs/capacity.md` is made from `results.json`.

So no page says a figure that `make bench` did not print. `make bench` writes the pages; a test compares them.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from bench import capacity
from bench.benchmark import OURS
from bench.outcome import Outcome, Rounds
from bench.results import Results, read
from bench.table import number, sentence

ROOT = Path(__file__).parents[1]
_MARKED = re.compile(r"(<!-- from bench/results.json -->\n).*?(<!-- end -->)", re.DOTALL)

_HEADLINES = (
    ("A full request: one worker, 64 connections", "api", "64 connections", "throughput"),
    ("Its latency, p99", "api", "64 connections", "p99"),
    ("Latency at 2,000 requests a second, p99", "api-latency", "2000 requests/s", "p99"),
    ("Among a million documents", "growth-documents", "1,000,000 documents", "throughput"),
    ("Kafka into Redis, one process", "projector", "new records", "rate"),
    ("Kafka into Redis, two processes", "projector-processes", "4 partitions, 2 processes", "rate"),
    ("Event produced to visible over HTTP, p50", "freshness", "1,000 events/s", "p50"),
    ("The same, p99", "freshness", "1,000 events/s", "p99"),
    ("The same while a rebuild runs, p99", "freshness", "1,000 events/s, during a rebuild", "p99"),
    ("Rebuild of 1,000,000 records", "rebuild", "during the rebuild", "rate"),
    ("A contact with 50,000 leads: all are right after", "fan-out", "the contact changes", "until all are right"),
    ("Redis's memory for each byte that is served", "memory", "100,000 documents", "Redis bytes a document byte"),
)  # fmt: skip


def readme(results: Results) -> str:
    """The figures that the README shows, and every bar that was missed."""
    lines = ["| | Leadview | of others | `make bench` |", "|---|---|---|---|"]
    for what, name, case, metric in _HEADLINES:
        if outcome := results.benchmarks.get(name):
            lines.append(_headline(what, outcome, case, metric))
    bars = [(name, bar) for name, outcome in results.benchmarks.items() for bar in outcome.bars]
    if missed := [f"- `{name}`: {sentence(bar)}" for name, bar in bars if not bar.kept]:
        lines += ["", f"{len(missed)} of {len(bars)} bars were missed in that run:", "", *missed]
    return "\n".join(lines)


def _headline(what: str, outcome: Outcome, case: str, metric: str) -> str:
    rounds = Rounds(outcome.rounds)
    spread = rounds.spread(case, OURS, metric)
    unit = next((each.unit for each in outcome.metrics if each.name == metric), "")
    others = [
        f"{number(ratio)} times {subject.name}"
        for subject in outcome.subjects
        if subject.name != OURS and (ratio := rounds.ratio(case, subject.name, metric))
    ]
    value = f"{number(spread.median)} {unit}" if spread else capacity.UNKNOWN
    return f"| {what} | {value} | {', '.join(others)} | `{outcome.name}` |"


_PAGES: Mapping[str, Callable[[Results], str]] = {"README.md": readme, "docs/capacity.md": capacity.page}


def pages(results: Results) -> dict[Path, str]:
    """The text that each page should have."""
    found = {}
    for name, figures in _PAGES.items():
        text = (ROOT / name).read_text("utf-8")
        made = figures(results)
        found[ROOT / name] = _MARKED.sub(lambda match, made=made: f"{match[1]}{made}\n{match[2]}", text)  # type: ignore[misc]
    return found


def write(results: Results) -> None:
    """Bring all pages up to date."""
    for path, text in pages(results).items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    write(read(ROOT / "bench" / "results.json"))
