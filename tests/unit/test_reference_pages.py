"""The pages of the reference that `make docs` renders. tests/service/reference tests the folder that it writes."""

import re

import pytest

from docs.generate.reference.pages import pages, parts, to_html
from schemas.problems import PROBLEMS, Problem

PAGES = {page.name: page.markdown for page in pages()}


@pytest.mark.parametrize("problem", [pytest.param(problem, id=problem.code) for problem in PROBLEMS])
def test_every_error_has_a_section_where_docs_url_leads(problem: Problem) -> None:
    code, status = problem.code, problem.status
    html = to_html(PAGES["errors"])
    assert f'<h2 id="{code}">' in html
    assert f"## `{code}`\n\nStatus {status}" in PAGES["errors"]


def test_links_to_other_documents_of_the_repository_become_text() -> None:
    assert "](schemas.md)" in PAGES["events"]
    assert "](dead-letters.md" not in PAGES["events"]
    assert "](rate-limits.md)" in PAGES["reading"]
    assert [link for text in PAGES.values() for link in re.findall(r"\]\((\.\.[^)]*)\)", text)] == []


def test_links_to_pages_are_links_to_their_html() -> None:
    html = to_html("[a](keys.md#test-a-key) [b](schemas/crm.lead.changed.json) [c](https://example.com/x.md)")
    assert re.findall('href="([^"]+)"', html) == [
        "keys.html#test-a-key",
        "schemas/crm.lead.changed.json",
        "https://example.com/x.md",
    ]


def test_links_to_sections_of_pages_name_sections() -> None:
    sections = {part.href for page in pages() for part in parts(page)}
    linked = [link for text in PAGES.values() for link in re.findall(r"\]\(([\w-]+)\.md(#[^)]+)\)", text)]
    assert {"reading", "rate-limits"} < {name for name, _ in linked}
    assert [f"{name}.md{part}" for name, part in linked if f"{name}.html{part}" not in sections] == []


def test_readers_learn_what_has_changed_when_and_what_to_quote() -> None:
    dates = re.findall(r"^\| (\d{4}-\d\d-\d\d) \|", PAGES["versioning"], re.MULTILINE)
    assert len(dates) > 1
    assert dates == sorted(dates, reverse=True)
    assert "Quote what finds your request in the logs: the `X-Request-Id`" in PAGES["index"]
