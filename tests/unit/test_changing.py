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


def test_metrics_are_listed_and_exported() -> None:
    declared = {name: value for name, value in vars(metrics).items() if isinstance(value, Metric)}
    unlisted = [name for name, metric in declared.items() if metric not in metrics.ALL]
    assert not unlisted, f"schemas/metrics.py: add {', '.join(unlisted)} to PROJECTOR, API or VERIFY"
    files = [path for folder in ("api", "projector", "leadview") for path in (ROOT / folder).rglob("*.py")]
    used = set(re.findall(r"\bmetrics\.([A-Z_0-9]+)\b", "\n".join(path.read_text("utf-8") for path in files)))
    assert not declared.keys() - used, f"nothing in api, projector or leadview exports {declared.keys() - used}"


def test_commands_are_run_and_listed() -> None:
    [commands] = [set(action.choices or ()) for action in parser_of("leadview")._actions if action.dest == "command"]
    unpaired = commands ^ {*_COMMANDS, *OWN}
    assert not unpaired, f"_COMMANDS in projector/__main__.py and projector/commands/arguments.py differ: {unpaired}"
    _, _, below = (ROOT / "docs/runbook.md").read_text("utf-8").partition("| for operators | what it does |")
    rows = below.partition("\n\n")[0]
    unlisted = [name for name in commands if not re.search(rf"projector {name}\b|`{name}[ `]", rows)]
    assert unlisted == ["run"], f"docs/runbook.md, in the table of commands: add a row for {unlisted}"


def test_every_setting_is_listed_once_with_its_meaning() -> None:
    """In the generated tables of docs/settings.md."""
    rows = [row for rows in tables.settings().values() for row in rows]
    known = {f"`{variable(field)}`" for process in PROCESSES for field in process.__struct_fields__}
    assert sorted(row.name for row in rows) == sorted(known)
    assert [row.name for row in rows if not row.meaning or any("|" in cell for cell in row)] == []
