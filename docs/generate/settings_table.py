"""The README's table of settings, derived from the Structs that hold the settings."""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Meta
from msgspec.structs import fields

from schemas.settings import PROCESSES, variable

HEAD = ("Setting", "Default", "Meaning")


class Row(NamedTuple):
    """One line of the table. The cells are Markdown."""

    setting: str
    default: str
    meaning: str


def rows() -> list[Row]:
    """Returns every setting once: first those of all processes, then those of each process."""
    unique = {row.setting: row for process in PROCESSES for row in _rows(process)}
    return list(unique.values())


def table() -> str:
    """Returns the whole table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEAD, ("---",) * len(HEAD), *rows()))


def _rows(process: type[Any]) -> Iterator[Row]:
    hints = get_type_hints(process, include_extras=True)
    for field in fields(process):
        yield Row(f"`{variable(field.name)}`", _default(field.default), _meaning(hints[field.name]))


def _default(value: object) -> str:
    if value is NODEFAULT:
        return "required"
    return "none" if value is None else f"`{value}`"


def _meaning(hint: Any) -> str:
    """Returns the description of the field. That of a type alias comes before it, so the last one is the field's."""
    if get_origin(hint) is not Annotated:
        return ""
    found = [meta.description for meta in get_args(hint)[1:] if isinstance(meta, Meta) and meta.description]
    return found[-1] if found else ""
