"""The documentation names only files and sections that exist: in relative links, in paths in backticks, and in what the
programs, their alerts and their files of configuration say.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "bench/README.md", ROOT / "tests/data/README.md"]
SOURCES = ("api", "bench", "deploy", "devstack", "leadview", "projector", "schemas", "compose.yaml", "Dockerfile")
"""What speaks to people, and may name a page."""
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build", "dist"}  # what make writes

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w*][\w.*/-]*(::\w+)?")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_NAMED = re.compile(r"\bdocs/([a-z-]+\.md)(?:#([\w-]+))?|\"([a-z-]+\.md)(?:#([\w-]+))?\"")
_FILE = re.compile(r"\.(conf|example|json|lua|md|py|svg|toml|txt|yaml)$")


def broken(page: Path, text: str) -> list[str]:
    """Returns the links and paths in the text of a page that name nothing."""
    text = _FENCED.sub("", text)
    links = [link for link in _LINK.findall(text) if "://" not in link]
    paths = [path for path in _CODE.findall(text) if is_path(path)]
    return [link for link in links if not is_there(link, page.parent) or not has_section(link, page)] + [
        path for path in paths if not is_there(path, ROOT) and not is_there(path, page.parent)
    ]


def has_section(link: str, page: Path) -> bool:
    """Returns whether the page that a link names has the section after its `#`."""
    name, _, section = link.partition("#")
    return not section or section in sections(page.parent / name if name else page)


def sections(page: Path) -> set[str]:
    """Returns the names of all headings, as GitHub and the console make them."""
    found = _HEADING.findall(_FENCED.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def is_path(code: str) -> bool:
    """A path has the extension of a file of ours, or begins with a folder of the repository."""
    folder, slash, _ = code.partition("/")
    return bool(_PATH.fullmatch(code) and (_FILE.search(code.partition("::")[0]) or (slash and folder in FOLDERS)))


def is_there(path: str, folder: Path) -> bool:
    """`folder` is what the path is relative to. `*` stands for any text, and `::name` for a function in the file."""
    name, _, function = path.partition("#")[0].partition("::")
    found = list(folder.glob(name)) if "*" in name else [folder / name]
    if function:
        return any(each.is_file() and re.search(rf"def {function}\(", each.read_text("utf-8")) for each in found)
    return any(each.exists() for each in found)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_every_link_and_path_names_a_file(page: Path) -> None:
    assert broken(page, page.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("[a](no.md) [b](faults.md#run-it) [c](https://example.org/no.md)", ["no.md"], id="link"),
        pytest.param("[a](faults.md#no) [b](#no)", ["faults.md#no", "#no"], id="section"),
        pytest.param("`docs/no.md`, `docs/faults.md`, `faults.md`", ["docs/no.md"], id="path"),
        pytest.param("`projector/no`, `projector`, `no/thing`", ["projector/no"], id="folder"),
        pytest.param("`schemas/no_*.py`, `schemas/*.py`", ["schemas/no_*.py"], id="pattern"),
        pytest.param("`tests/unit/test_docs_links.py::no`", ["tests/unit/test_docs_links.py::no"], id="function"),
        pytest.param("`tests/unit/test_docs_links.py::broken`", [], id="function that exists"),
        pytest.param("`crm.leads`, `/api/v1/ext/openapi.json`, `redis://h/0`, `1.50`, `make run`", [], id="no path"),
        pytest.param("```\ndocs/no.md `docs/no.md`\n```\n", [], id="block of code"),
    ],
)
def test_a_mistake_would_be_found(text: str, found: list[str]) -> None:
    assert broken(ROOT / "docs" / "faults.md", text) == found


def named(text: str) -> list[tuple[str, str]]:
    """Returns the pages that a source names, with their sections: `docs/page.md#section` and `"page.md#section"`."""
    return [(page or linked, section or part) for page, section, linked, part in _NAMED.findall(text)]


def test_every_page_and_section_that_a_program_names_exists() -> None:
    found = [path for name in SOURCES for path in [ROOT / name, *(ROOT / name).rglob("*")]]
    sources = [path for path in found if path.is_file() and path.suffix not in (".md", ".pyc", ".svg", ".zdict")]
    known = {page.name: sections(page) for page in ROOT.glob("docs/*.md")}
    wrong = [
        f"{path.relative_to(ROOT)}: {page}#{section}"
        for path in sources
        for page, section in named(path.read_text("utf-8"))
        if page not in known or (section and section not in known[page])
    ]
    assert wrong == []


def test_a_page_that_a_program_names_is_found() -> None:
    text = 'raise its maxmemory (docs/capacity.md)", "runbook.md#redis_full" runbook: docs/runbook.md#leadviewstale'
    assert named(text) == [("capacity.md", ""), ("runbook.md", "redis_full"), ("runbook.md", "leadviewstale")]


def test_every_page_of_docs_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert [page.name for page in ROOT.glob("docs/*.md") if f"(docs/{page.name})" not in readme] == []


def test_the_readme_fits_on_a_few_screens_and_the_pages_are_few() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 140
    begin = ["Try it", "Three doors", "Promises", "Figures", "Where the code begins", "Documentation"]
    assert re.findall("^## (.+)", text, re.MULTILINE) == begin
    assert len(re.findall(r"^!\[.+\]\(docs/images/", text, re.MULTILINE)) == 1
    assert len([*ROOT.glob("docs/*.md")]) <= 17
