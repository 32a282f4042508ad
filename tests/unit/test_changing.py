"""What docs/changing.md asks for and nothing else checks. Each message names the file, and its line if there is one."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.generate import tables
from projector.__main__ import _COMMANDS
from projector.commands.arguments import parser_of
from schemas import metrics
from schemas.metrics import Metric
from schemas.resources import AS_SPECIFIED
from schemas.settings import PROCESSES, variable

ROOT = Path(__file__).parents[2]
PROSE = ("docs/events.md", "docs/generate/reference/pages/index.md", "docs/generate/reference/site.py")
"""Pages that say in a sentence which records are served."""
OWN = ("run", "console", "validate")
"""Commands that `projector/__main__.py` runs before it opens Redis."""


def lines(path: str) -> Iterator[tuple[str, str]]:
    """Yields each line with its place."""
    for number, line in enumerate((ROOT / path).read_text("utf-8").splitlines(), 1):
        yield f"{path}:{number}", line


@pytest.mark.parametrize("path", PROSE)
def test_pages_name_every_resource(path: str) -> None:
    *others, last = (resource.topic for resource in AS_SPECIFIED)
    every = f"{', '.join(others)} and {last}"
    found = [(place, named) for place, line in lines(path) for named in re.findall(r"leads(?:, \w+)* and \w+", line)]
    assert found, f"{path} says nowhere which records are served: write `{every}`, or remove it from PROSE"
    wrong = [place for place, named in found if named != every]
    assert not wrong, f"write `{every}`: {', '.join(wrong)}"


def declared() -> dict[str, Metric]:
    return {name: value for name, value in vars(metrics).items() if isinstance(value, Metric)}


@pytest.mark.parametrize("name", declared())
def test_a_metric_is_in_the_list_of_its_program_and_is_exported(name: str) -> None:
    [place] = [place for place, line in lines("schemas/metrics.py") if line.startswith(f"{name} = ")]
    assert declared()[name] in metrics.ALL, f"{place}: {name} is not in PROJECTOR, API or VERIFY below"
    sources = (path for folder in ("api", "projector", "leadview") for path in (ROOT / folder).rglob("*.py"))
    used = any(re.search(rf"\bmetrics\.{name}\b", path.read_text("utf-8")) for path in sources)
    assert used, f"{place}: nothing in api, projector or leadview exports metrics.{name}"


def commands() -> list[str]:
    """Returns the names of all commands."""
    [choices] = [action.choices for action in parser_of("leadview")._actions if action.dest == "command"]
    return list(choices or ())


@pytest.mark.parametrize("command", commands())
def test_a_command_is_run_and_listed(command: str) -> None:
    [table] = [place for place, line in lines("projector/__main__.py") if line.startswith("_COMMANDS")]
    assert command in _COMMANDS or command in OWN, f"{table}: add `{command}`"
    head = "| for operators | what it does |"
    [place] = [place for place, line in lines("docs/runbook.md") if line == head]
    row = (ROOT / "docs/runbook.md").read_text("utf-8").partition(head)[2].partition("\n\n")[0]
    named = re.search(rf"projector {command}\b|`{command}[ `]", row)
    assert named or command == "run", f"{place}: add a row for `python -m projector {command}`"


def test_every_command_that_is_run_is_parsed() -> None:
    unparsed = _COMMANDS.keys() - set(commands())
    assert not unparsed, f"projector/commands/arguments.py: parser_of does not know {', '.join(sorted(unparsed))}"


def test_every_setting_is_listed_once_with_its_meaning() -> None:
    """In the generated tables of docs/settings.md."""
    rows = [row for rows in tables.settings().values() for row in rows]
    known = {f"`{variable(field)}`" for process in PROCESSES for field in process.__struct_fields__}
    assert sorted(row.name for row in rows) == sorted(known)
    assert [row.name for row in rows if not row.meaning or any("|" in cell for cell in row)] == []
