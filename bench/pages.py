"""Figures in pages: the text between two marks in a page is generated from `results.json`.

So no page shows a figure that `make bench` did not print. `make bench` writes the pages; a test compares them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path

from bench import api, consumers, memory, projector, rebuild
from bench.benchmark import LEADVIEW, Metric
from bench.memory import JEMALLOC, OF_1_KB, OF_700_BYTES, RANDOM_TEXT
from bench.outcome import Outcome, Results, Rounds, read
from bench.report import number, sentence

ROOT = Path(__file__).parents[1]
_MARKED = re.compile(r"(<!-- from bench/results\.json(?:: (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)

UNKNOWN = "not measured yet"
_HEADLINES = (
    ("A full request: one worker, 64 connections", "api", "64 connections", "throughput"),
    ("Its latency, p99", "api", "64 connections", "p99"),
    ("Latency at 10,000 requests a second, p99", "api", "10000 requests/s", "p99"),
    ("Among a million documents", "growth", "1,000,000 documents", "throughput"),
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
    ("Redis with them restarts: it loads for", "cold-start", "Redis restarts", "Redis loads for"),
    ("The API then serves after", "cold-start", "Redis restarts", "first 200 after that"),
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
    ("m", "Redis memory for a lead with its contact", "memory", _LEADS, memory.REDIS_BYTES),
    ("o", "Redis memory for an organization with a key", "memory", _OWNERS, memory.ORGANIZATION_BYTES),
    ("a", "API's CPU for a request", "api", api.SATURATED, api.CPU),
    ("q", "Redis's CPU for a request", "api", api.SATURATED, api.REDIS_CPU),
    ("p", "projector's CPU for an event", "projector", projector.NEW, consumers.CPU),
    ("w", "Redis's CPU for an event", "projector", projector.NEW, consumers.REDIS_CPU),
    ("r", "rebuild by one process while the API is in use", "rebuild", rebuild.REBUILDING, rebuild.RATE),
)
"""The figures that the formula of `docs/capacity.md` uses, and what prints them."""
_COMPRESSION = (
    *(
        (f"Redis's memory for each byte that is served, {what}", "memory", memory.case(kind, JEMALLOC), memory.RATIO)
        for what, kind in (
            ("leads of 1 KB", OF_1_KB),
            ("leads of 1 KB, random text", RANDOM_TEXT),
            ("leads of 700 bytes", OF_700_BYTES),
        )
    ),
    ("API, CPU per request", "api", api.SATURATED, api.CPU),
    ("Redis, CPU per request", "api", api.SATURATED, api.REDIS_CPU),
    ("projector, CPU per record", "projector", projector.NEW, consumers.CPU),
    ("Redis, CPU per record", "projector", projector.NEW, consumers.REDIS_CPU),
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
    lines = []
    for what, name, case, metric in rows:
        outcome = results.benchmarks.get(name)
        if outcome and Rounds(outcome.rounds).spread(case, LEADVIEW, metric):
            lines.append(_headline(what, outcome, case, metric))
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
    unit = next(each.unit for each in outcome.metrics if each.name == metric)
    others = [
        f"{number(ratio)} times {subject.name}"
        for subject in outcome.subjects
        if subject.name != LEADVIEW and (ratio := rounds.ratio(case, subject.name, metric))
    ]
    spread = rounds.spread(case, LEADVIEW, metric)
    return (
        f"| {what} | {number(spread.median) if spread else UNKNOWN} {unit} | {', '.join(others)} | `{outcome.name}` |"
    )


def capacity(results: Results) -> str:
    """The costs that the formula of `docs/capacity.md` uses."""
    lines = ["| | figure | | printed by |", "|---|---|---|---|"]
    for symbol, what, name, case, metric in _COSTS:
        lines.append(f"| `{symbol}` | {what} | {_cell(results, name, case, LEADVIEW, metric)} | `{name}`, {case} |")
    return "\n".join(lines)


def compression(results: Results) -> str:
    """The table of `docs/capacity.md`: what compression saves and costs."""
    lines = ["| | JSON | compressed |", "|---|---|---|"]
    for what, name, case, metric in _COMPRESSION:
        cells = [_cell(results, name, case, subject, metric) for subject in (LEADVIEW, api.ZSTD.name)]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(results: Results, name: str, case: str, subject: str, metric: Metric) -> str:
    outcome = results.benchmarks.get(name)
    spread = Rounds(outcome.rounds).spread(case, subject, metric.name) if outcome else None
    return f"{number(spread.median)} {metric.unit}" if spread else UNKNOWN


_PAGES: Mapping[str, Mapping[str | None, Callable[[Results], str]]] = {
    "README.md": {None: readme},
    "bench/README.md": {None: all_figures},
    "docs/capacity.md": {None: capacity, "compression": compression},
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
