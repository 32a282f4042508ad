"""The README's table of settings is what the Structs of `schemas.settings` say."""

from pathlib import Path

import pytest

from docs.generate.__main__ import main
from docs.generate.settings_table import HEAD, Row, rows

README = Path(__file__).parents[2] / "README.md"


def cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))


def tables(text: str) -> list[Row]:
    """The rows of all tables with the head of settings: there may be one for each process."""
    found: list[Row] = []
    inside = False
    for line in text.splitlines():
        if not line.lstrip().startswith("|"):
            inside = False
        elif cells(line) == HEAD:
            inside = True
        elif inside and set(line) - set("|-: "):
            found.append(Row(*cells(line)))
    return found


def test_the_table_is_what_the_structs_say() -> None:
    assert sorted(tables(README.read_text("utf-8"))) == sorted(rows()), "run `python -m docs.generate settings`"


def test_the_printed_table_is_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    assert tables(f"Text\n\n{capsys.readouterr().out}\n| a | b | c |") == rows()


def test_every_setting_has_a_meaning() -> None:
    assert [row.setting for row in rows() if not row.meaning] == []
    assert not [row for row in rows() if any("|" in cell for cell in row)]
