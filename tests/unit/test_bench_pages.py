"""Pages show no figure that `make bench` did not print; and what the capacity formula says."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench import capacity, pages, results
from bench.benchmark import LEADVIEW, Metric
from bench.capacity import INPUTS, Demand
from bench.outcome import Outcome, Round
from bench.results import Results
from bench.table import number

ROOT = Path(__file__).parents[2]
FIGURES = {"m": 1_000.0, "o": 500.0, "a": 30.0, "q": 12.0, "p": 25.0, "w": 10.0, "r": 20_000.0}


def measured(figures: dict[str, float]) -> Results:
    """Results in which these were found, by symbol."""
    found = Results()
    for each in (each for each in INPUTS if each.symbol in figures):
        rounds = found.benchmarks[each.benchmark].rounds if each.benchmark in found.benchmarks else []
        rounds.append(Round(1, each.case, LEADVIEW, {each.metric: figures[each.symbol]}))
        metrics = [Metric(each.metric, each.unit)]
        date = datetime.now(UTC).isoformat()
        found.benchmarks[each.benchmark] = Outcome(
            each.benchmark, "", date, False, {}, {}, metrics, [], [each.case], rounds, [], {}
        )
    return found


@pytest.mark.parametrize("name", ["README.md", "bench/README.md", "docs/capacity.md"])
def test_a_page_shows_the_figures_of_the_results(name: str) -> None:
    wanted = pages.pages(results.read(ROOT / "bench" / "results.json"))[ROOT / name]
    assert (ROOT / name).read_text("utf-8") == wanted, "run `python -m bench.pages`"


def test_the_figures_name_the_machines() -> None:
    """And when the first and the last benchmark began: so a reader sees that a table is not of one run."""
    found = results.read(ROOT / "bench" / "results.json")
    found.benchmarks = {
        name: replace(
            found.benchmarks[name],
            date=f"2026-11-2{day}T10:30:00+00:00",
            machine={"processor": processor, "cores": "2", "memory": "4 GiB", "python": "3.12.0", "system": ""},
            versions={"redis-server": "7.2.0"},
        )
        for name, day, processor in (("api", 3, "One"), ("memory", 2, "One"), ("updates", 4, "Another"))
    }
    lines = pages.all_figures(found).splitlines()
    rest, began = "2 cores, 4 GiB, Python 3.12.0, Redis 7.2.0", "The first benchmark began at 2026-11-"
    assert lines[:2] == [
        f"Machine of `api`, `memory`: One, {rest}. {began}22 10:30 UTC, the last one at 2026-11-23 10:30 UTC.",
        f"Machine of `updates`: Another, {rest}. {began}24 10:30 UTC, the last one at 2026-11-24 10:30 UTC.",
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


@pytest.mark.parametrize(
    ("demand", "wanted"),
    [
        pytest.param(Demand("", 0, 100, 1, 1, 1), (1, 1, 1), id="one of each at least"),
        pytest.param(Demand("", 0, 8_000_000, 1, 1, 1), (19, 1, 1), id="memory makes masters: twice, to four fifths"),
        pytest.param(Demand("", 0, 100, 100_000, 1, 1), (3, 5, 1), id="requests make workers, and masters"),
        pytest.param(Demand("", 0, 100, 1, 100_000, 1), (2, 1, 5), id="events make projectors, and masters"),
        pytest.param(Demand("", 8_000_000, 100, 1, 1, 1), (5, 1, 1), id="organizations take memory as well"),
    ],
)
def test_the_formula(demand: Demand, wanted: tuple[int, int, int]) -> None:
    need = capacity.need(demand, FIGURES)
    assert (need.shards, need.api_workers, need.projectors) == wanted


def test_figures_that_are_missing_are_said_to_be() -> None:
    text = capacity.page(measured({"m": 1624.0}))
    assert "1,624 bytes" in text
    assert text.count(capacity.UNKNOWN) == len(INPUTS) - 1 + len(capacity.DEMANDS)


def test_every_figure_enters_the_page() -> None:
    text = capacity.page(measured(FIGURES))
    assert capacity.UNKNOWN not in text
    assert all(f"| {number(FIGURES[each.symbol])} {each.unit} |" in text for each in INPUTS)
