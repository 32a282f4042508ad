"""Every setting is in the generated tables of docs/settings.md, once, with its meaning."""

from docs.generate.tables import settings
from schemas.settings import PROCESSES, variable

ROWS = [row for rows in settings().values() for row in rows]


def test_every_setting_is_listed_once() -> None:
    known = {f"`{variable(field)}`" for process in PROCESSES for field in process.__struct_fields__}
    assert sorted(row.name for row in ROWS) == sorted(known)


def test_every_setting_has_a_meaning() -> None:
    assert [row.name for row in ROWS if not row.meaning] == []
    assert not [row for row in ROWS if any("|" in cell for cell in row)]
