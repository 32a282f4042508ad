"""Pages show no figure that `make bench` did not print."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench import api, memory, outcome, pages, projector, rebuild
from bench.benchmark import LEADVIEW
from bench.outcome import Outcome, Results, Round

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["README.md", "bench/README.md", "docs/capacity.md"])
def test_a_page_shows_the_figures_of_the_results(name: str) -> None:
    wanted = pages.pages(outcome.read(ROOT / "bench" / "results.json"))[ROOT / name]
    assert (ROOT / name).read_text("utf-8") == wanted, "run `python -m bench.pages`"


def test_the_figures_name_the_machines() -> None:
    """And when the first and the last benchmark began: so a reader sees that a table is not of one run."""
    found = outcome.read(ROOT / "bench" / "results.json")
    found.benchmarks = {
        name: replace(
            found.benchmarks[name],
            date=f"2026-11-2{day}T10:30:00+00:00",
            machine={"processor": processor, "cores": "2", "memory": "4 GiB", "python": "3.12.0", "system": ""},
            versions={"redis-server": "7.2.0"},
        )
        for name, day, processor in (("api", 3, "One"), ("memory", 2, "One"), ("projector", 4, "Another"))
    }
    lines = pages.all_figures(found).splitlines()
    rest, began = "2 cores, 4 GiB, Python 3.12.0, Redis 7.2.0", "The first benchmark began at 2026-11-"
    assert lines[:2] == [
        f"Machine of `api`, `memory`: One, {rest}. {began}22 10:30 UTC, the last one at 2026-11-23 10:30 UTC.",
        f"Machine of `projector`: Another, {rest}. {began}24 10:30 UTC, the last one at 2026-11-24 10:30 UTC.",
    ]


def test_the_readme_says_no_other_figure() -> None:
    """A number with a unit of measurement outside of what is made from the results would be one that nobody prints."""
    text = re.sub(
        r"<!-- from (?:bench|make test-images).*?<!-- end -->",
        "",
        (ROOT / "README.md").read_text("utf-8"),
        flags=re.DOTALL,
    )
    assert re.findall(r"\d[\d,.]* ?(?:ms|µs|MB|GB|requests/s|records/s|times)\b", text) == []


def test_figures_that_are_missing_are_said_to_be() -> None:
    text = pages.capacity(Results())
    assert text.count(pages.UNKNOWN) == len(text.splitlines()) - 2 > 0


@pytest.mark.parametrize("page", [pages.capacity, pages.compression])
def test_every_figure_of_a_page_is_one_that_a_benchmark_has(page: Callable[[Results], str]) -> None:
    """With results of all cases and metrics, nothing is missing."""
    found = Results()
    for module in (api, memory, projector, rebuild):
        benchmark = module.BENCHMARK
        values = {metric.name: 1624.0 for metric in benchmark.metrics}
        rounds = [Round(1, case, each, values) for case in benchmark.cases for each in (LEADVIEW, api.ZSTD.name)]
        found.benchmarks[benchmark.name] = Outcome(
            benchmark.name, "", "", False, {}, {}, list(benchmark.metrics), [], list(benchmark.cases), rounds, [], {}
        )
    text = page(found)
    assert "1,624" in text
    assert pages.UNKNOWN not in text
