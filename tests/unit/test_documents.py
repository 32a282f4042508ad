"""The documentation names only what exists: files, sections, and commands with their options.

Commands behind a prompt have to be accepted as they stand there. Of those in sentences, which may lack arguments, the
names and the options count.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import pytest

from docs.generate.reference.pages import pages, to_html
from operate.commands.arguments import parser_of
from operate.main import _COMMANDS
from schemas import metrics
from schemas.error_body import PROBLEMS

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "bench/README.md", ROOT / "tests/data/README.md"]
PACKAGES = ("api", "leadview", "operate", "projector", "runtime", "schemas")
SOURCES = (*PACKAGES, "bench", "deploy", "devstack", "compose.yaml", "Dockerfile")
"""What speaks to people, and may name a page."""
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build", "dist"}  # what make writes
OTHERS = {"api": "", "completion": ""}
"""Commands of `leadview` that the projector does not have."""
EARLY = {"run", "console", "validate"}
"""Commands that `operate/main.py` runs before it opens Redis."""
MAKEFILES = (ROOT / "Makefile", ROOT / ".ci/parts.mk")
TARGETS = {name for path in MAKEFILES for name in re.findall(r"^([\w-]+):", path.read_text("utf-8"), re.MULTILINE)}
MADE = {
    "bench": ("bench.__main__", "_arguments"),
    "run": ("devstack.run", "parse"),
    "chaos": ("tests.chaos.__main__", "_arguments"),
    "rolling": ("tests.rolling.__main__", "_arguments"),
}
"""What reads ARGS, by the target of `make`."""

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w*][\w.*/-]*(::\w+)?")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_NAMED = re.compile(r"\bdocs/([a-z-]+\.md)(?:#([\w-]+))?|\"([a-z-]+\.md)(?:#([\w-]+))?\"")
_FILE = re.compile(r"\.(conf|example|json|lua|md|py|svg|toml|txt|yaml)$")
_BLOCK = re.compile(r"^ *```console\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"^ *[$#] ((?:.*\\\n)*.*)", re.MULTILINE)
_LEADVIEW = re.compile(r"(?:python -m (?:projector|leadview)|(?:\S*/)?leadview)(?= |$)")


def broken(page: Path, text: str) -> list[str]:
    """Returns the relative links and the paths in backticks, in the text of a page, that name nothing."""
    text = _FENCED.sub("", text)
    links = [link for link in _LINK.findall(text) if "://" not in link]
    paths = [path for path in _CODE.findall(text) if is_path(path)]
    return [link for link in links if not leads_somewhere(link, page)] + [
        path for path in paths if not is_there(path, ROOT) and not is_there(path, page.parent)
    ]


def leads_somewhere(link: str, page: Path) -> bool:
    """Returns whether there is what a link of a page names, and in it the section after its `#`."""
    name, _, section = link.partition("#")
    named = page.parent / name if name else page
    return named.exists() and (not section or section in sections(named))


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
    name, _, function = path.partition("::")
    found = folder.glob(name.rstrip("/"))
    return any(not function or f"def {function}(" in each.read_text("utf-8") for each in found)


def test_every_link_and_path_names_a_file() -> None:
    assert {page.name: found for page in PAGES if (found := broken(page, page.read_text("utf-8")))} == {}


def test_every_page_and_section_that_a_program_names_exists() -> None:
    found = [path for name in SOURCES for path in [ROOT / name, *(ROOT / name).rglob("*")]]
    sources = [path for path in found if path.is_file() and path.suffix not in (".md", ".pyc", ".svg", ".zdict")]
    known = {page.name: sections(page) for page in ROOT.glob("docs/*.md")}
    named = [
        (path, page or linked, section or part)
        for path in sources
        for page, section, linked, part in _NAMED.findall(path.read_text("utf-8"))
    ]
    assert len(named) > 100
    wrong = [
        f"{path.relative_to(ROOT)}: {page}#{section}"
        for path, page, section in named
        if page not in known or (section and section not in known[page])
    ]
    assert wrong == []


def test_the_readme_is_short_and_links_every_page_of_which_there_are_few() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    found = [page.name for page in ROOT.glob("docs/*.md")]
    assert [name for name in found if f"(docs/{name})" not in text] == []
    assert len(found) <= 17
    assert len(text.splitlines()) <= 140


def accept(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises SystemExit and AssertionError if a command of Leadview or of this repository is wrong."""
    if "--help" in command or "…" in command:
        return
    filled_in = re.sub(r"<[^>]*>|\$ORGANIZATION", str(uuid4()), command)
    if _LEADVIEW.match(command):
        _, *words = shlex.split(_LEADVIEW.sub("leadview", filled_in, count=1))
        if words and words[0] not in OTHERS:
            parser_of("leadview").parse_args(words)
        return
    match shlex.split(filled_in):
        case ["make", target, *rest]:
            assert target in TARGETS, target
            chosen = [word.removeprefix("ARGS=") for word in rest if word.startswith("ARGS=")]
            if chosen and target in MADE:
                module, function = MADE[target]
                quick = ["--quick"] if target == "bench" else []  # otherwise it asks for another interpreter
                monkeypatch.setattr(sys, "argv", [target, *shlex.split(chosen[0]), *quick])
                getattr(import_module(module), function)()
        case ["python", "-m", module, *_]:
            assert find_spec(module), module


def behind_prompts(text: str) -> Iterator[str]:
    """Yields the commands behind a prompt, without comments and redirections."""
    for block in _BLOCK.findall(text):
        for command in _PROMPT.findall(block):
            yield re.sub(r"\s+(?:#|[<>] ).*", "", command.replace("\\\n", " "))


def choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    [found] = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)] or [{}]
    return dict(found)


def options(command: str) -> set[str]:
    """Returns the options of a command, and of those that it consists of."""
    commands = choices(parser_of("leadview", OTHERS))
    assert command in commands, f"operate/commands/arguments.py has no command {command}"
    left, found = [commands[command]], set[str]()
    while left:
        parser = left.pop()
        found |= parser._option_string_actions.keys()
        left += choices(parser).values()
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_is_accepted(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name == "CHANGELOG.md":  # which also names what is no longer there
        return
    text = page.read_text("utf-8")
    in_sentences = _CODE.findall(_FENCED.sub("", text))
    for command in [*behind_prompts(text), *(each for each in in_sentences if each.startswith("make "))]:
        accept(command, monkeypatch)
    for command in in_sentences:
        if match := _LEADVIEW.match(command):
            name, *rest = command[match.end() :].split() or ["run"]
            assert {word for word in rest if word.startswith("--")} <= options(name), command


def test_every_command_is_parsed_run_listed_and_tested() -> None:
    parsers = choices(parser_of("leadview"))
    commands = parsers.keys()
    assert _COMMANDS.keys() | EARLY == commands, (
        "_COMMANDS in operate/main.py, and parser_of in operate/commands/arguments.py"
    )
    for name, parser in parsers.items():
        assert parser.format_help().startswith(f"usage: leadview {name}")
    runbook = (ROOT / "docs/runbook.md").read_text("utf-8")
    table = runbook.partition("| for operators | what it does |")[2].partition("\n\n")[0]
    listed = {name for name in commands if re.search(rf"leadview {name}\b|`{name}[ `]", table)}
    assert commands - {"run"} - listed == set(), "docs/runbook.md: add a row below `for operators`"
    for folder, how in (("unit/test_arguments.py", "add wrong arguments"), ("service", "call it there")):
        paths = [*(ROOT / "tests" / folder).rglob("*.py")] or [ROOT / "tests" / folder]
        tests = "\n".join(path.read_text("utf-8") for path in paths)
        untested = [name for name in commands if not re.search(rf"""["' ]{name}["' ]""", tests)]
        assert untested == [], f"tests/{folder}: {how}"


def test_every_metric_is_in_the_list_of_its_program_exported_and_tested() -> None:
    sources = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")]
    exporting = "\n".join(path.read_text("utf-8") for path in sources)
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))
    for name, metric in vars(metrics).items():
        if isinstance(metric, metrics.Metric):
            short = re.sub("^leadview_[a-z]+_", "", metric.name)
            assert re.search(rf"{short}|\b{name}\b", tests), (
                f"no test knows metrics.{name}: tests/unit/test_observations.py or tests/service/test_api_process.py"
            )
            assert metric in metrics.ALL, f"schemas/metrics.py: {name} is not in PROJECTOR, API or VERIFY"
            assert re.search(rf"\bmetrics\.{name}\b", exporting), (
                f"nothing exports metrics.{name}: count in projector/line or api/metrics.py, or export it in "
                "projector/health or api/exporter.py"
            )


REFERENCE = {page.name: page.markdown for page in pages()}
"""The pages that `make docs` renders. tests/service/reference tests the folder that it writes."""


def test_every_error_has_a_section_where_docs_url_leads() -> None:
    html = to_html(REFERENCE["errors"])
    for problem in PROBLEMS:
        assert f'<h2 id="{problem.code}">' in html
        assert f"## `{problem.code}`\n\nStatus {problem.status}" in REFERENCE["errors"]
