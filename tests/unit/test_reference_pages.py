"""The pages of the reference that `make docs` renders. tests/service/reference tests the folder that it writes."""

import re

import pytest

from docs.generate.reference.pages import pages, to_html
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
    assert [link for text in PAGES.values() for link in re.findall(r"\]\((\.\.[^)]*)\)", text)] == []


def test_links_to_pages_are_links_to_their_html() -> None:
    html = to_html("[a](keys.md#test-a-key) [b](schemas/crm.lead.changed.json) [c](https://example.com/x.md)")
    assert re.findall('href="([^"]+)"', html) == [
        "keys.html#test-a-key",
        "schemas/crm.lead.changed.json",
        "https://example.com/x.md",
    ]
