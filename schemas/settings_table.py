"""The README's table of settings, made of the Structs that read them."""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Meta
from msgspec.structs import fields

from schemas.settings import PROCESSES, variable

HEAD = ("Setting", "Default", "Meaning")


class Row(NamedTuple):
    """As it stands in the table, Markdown included."""

    setting: str
    default: str
    meaning: str


def rows() -> list[Row]:
    """Every setting once: those of all processes first, then each process's own."""
    unique = {row.setting: row for process in PROCESSES for row in _rows(process)}
    return list(unique.values())


def table() -> str:
    """The whole table in Markdown."""
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
    """The description nearest to the field, wherever a type alias has one of its own."""
    if get_origin(hint) is not Annotated:
        return ""
    found = [meta.description for meta in get_args(hint)[1:] if isinstance(meta, Meta) and meta.description]
    return found[-1] if found else ""
