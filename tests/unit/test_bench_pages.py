"""Pages show no figure that `make bench` did not print."""

import re
from pathlib import Path

import pytest

from bench import outcome, pages

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["README.md", "bench/README.md", "docs/capacity.md"])
def test_a_page_shows_the_figures_of_the_results(name: str) -> None:
    wanted = pages.pages(outcome.read(ROOT / "bench" / "results.json"))[ROOT / name]
    assert (ROOT / name).read_text("utf-8") == wanted, "run `python -m bench.pages`"


def test_the_readme_says_no_other_figure() -> None:
    """A number with a unit of measurement outside of what is made from the results would be one that nobody prints."""
    text = re.sub(
        r"<!-- from (?:bench|make test-images).*?<!-- end -->",
        "",
        (ROOT / "README.md").read_text("utf-8"),
        flags=re.DOTALL,
    )
    assert re.findall(r"\d[\d,.]* ?(?:ms|µs|MB|GB|requests/s|records/s|times)\b", text) == []
