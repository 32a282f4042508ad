"""The documentation names only files that exist: in relative links, and in paths in backticks."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "bench/README.md", ROOT / "tests/data/README.md"]
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build"}

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w*][\w.*/-]*(::\w+)?")
_FILE = re.compile(r"\.(conf|example|json|lua|md|py|svg|toml|txt|yaml)$")


def broken(page: Path, text: str) -> list[str]:
    """Returns the links and paths in the text of a page that name nothing."""
    text = _FENCED.sub("", text)
    links = [link for link in _LINK.findall(text) if "://" not in link]
    paths = [path for path in _CODE.findall(text) if is_path(path)]
    return [link for link in links if not is_there(link, page.parent)] + [
        path for path in paths if not is_there(path, ROOT) and not is_there(path, page.parent)
    ]


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
        pytest.param("[a](no.md) [b](ordering.md#rule) [c](https://example.org/no.md)", ["no.md"], id="link"),
        pytest.param("`docs/no.md`, `docs/ordering.md`, `ordering.md`", ["docs/no.md"], id="path"),
        pytest.param("`projector/no`, `projector`, `no/thing`", ["projector/no"], id="folder"),
        pytest.param("`schemas/no_*.py`, `schemas/*.py`", ["schemas/no_*.py"], id="pattern"),
        pytest.param("`tests/unit/test_docs_links.py::no`", ["tests/unit/test_docs_links.py::no"], id="function"),
        pytest.param("`tests/unit/test_docs_links.py::broken`", [], id="function that exists"),
        pytest.param("`crm.leads`, `/api/v1/ext/openapi.json`, `redis://h/0`, `1.50`, `make run`", [], id="no path"),
        pytest.param("```\ndocs/no.md `docs/no.md`\n```\n", [], id="block of code"),
    ],
)
def test_a_mistake_would_be_found(text: str, found: list[str]) -> None:
    assert broken(ROOT / "docs" / "page.md", text) == found


def test_every_page_of_docs_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert [page.name for page in ROOT.glob("docs/*.md") if f"(docs/{page.name})" not in readme] == []
