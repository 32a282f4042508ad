"""The fields of an event that Leadview does not know. They are ignored, so a field with a mistyped name has no effect.

Extension attributes of CloudEvents are no mistakes. So an attribute counts only if its name is close to that of a known
one that the event does not have.
"""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from itertools import islice
from typing import Any

import msgspec
from msgspec import inspect

from projector.change import is_too_deep
from projector.errors import BadRecord
from projector.record import MAGIC, Record, unframed
from schemas.envelopes import ENVELOPES, HEADERS, event_type, mode_of
from schemas.events import Deleted
from schemas.faults import Fault, shown
from schemas.resources import Kind

_MAX_NAMES = 100
"""Of unknown fields that are named, and of attributes that are compared. Each takes a while, and a value has room for a
hundred thousand."""
_DATA = "data"
_CE = "ce_"
_LIKELY = 0.75
"""How close the name of an extension attribute is to that of an attribute for which it was probably meant."""

Known = Mapping[str, Any]
"""The fields of a Struct. The value has those of the Struct in a field, also of one in a list; it is None without."""


def unknown_fields(record: Record) -> list[Fault]:
    """Returns a fault for each of the first hundred unknown fields of an event, and one for the others. An event that
    cannot be read has none: it is bad anyway.
    """
    if record.value is None:
        changed = dict(record.headers).get("ce_type") == event_type(record.kind, "changed").encode()
        return [Fault("tombstone_of_change", "headers.ce_type")] if changed else []
    value = _decoded(record)
    fields = _in_data(record, value)
    found = [
        Fault("unknown_field", f"{path}.{shown(name)}", "".join(get_close_matches(name.lower(), known, 1)))
        for path, name, known in islice(fields, _MAX_NAMES)
    ]
    if more := sum(1 for _ in fields):
        found.append(Fault("more_unknown_fields", count=more))
    if isinstance(value, dict) and not _is_binary(record):
        attributes = ENVELOPES[record.kind].changed.__struct_encode_fields__
        found += _mistyped(value, {"type", *attributes}, "$.")
    return found


def has_unknown_fields(record: Record) -> bool:
    """Returns whether the data of an event has an unknown field. It ends at the first one, and compares no names."""
    return any(True for _ in _in_data(record, _decoded(record)))


def _decoded(record: Record) -> Any:
    content = record.value or b""
    if is_too_deep(record):
        return None
    try:  # not with orjson: the decoder of events accepts the value, and this one has to read the same
        return msgspec.json.decode(unframed(content) if content and content[0] == MAGIC else content)
    except (msgspec.MsgspecError, UnicodeDecodeError, BadRecord):
        return None


def _is_binary(record: Record) -> bool:
    return mode_of(dict(record.headers)) == "binary"


def _in_data(record: Record, value: Any) -> Iterator[tuple[str, str, Known]]:
    """Yields what `_unknown` does, for the data of an event."""
    deleted = event_type(record.kind, "deleted")
    if _is_binary(record):
        deletes = dict(record.headers).get("ce_type") == deleted.encode()
        yield from _unknown(value, _known(record.kind, deletes), "$")
    elif isinstance(value, dict):
        yield from _unknown(value.get(_DATA), _known(record.kind, value.get("type") == deleted), f"$.{_DATA}")


def unknown_headers(names: Iterable[str]) -> list[Fault]:
    """Returns a fault for each header of an event in binary mode that was probably meant for a known one."""
    known = {name for name in HEADERS if name.startswith(_CE)}
    return list(_mistyped([name for name in names if name.startswith(_CE)], known, "headers."))


@cache
def _known(kind: Kind, deletes: bool) -> Known:
    return _fields(inspect.type_info(Deleted if deletes else kind.event)) or {}


def _fields(type_: inspect.Type) -> Known | None:
    """Returns the fields of a Struct, of the Struct in a list, or of one that is optional."""
    match type_:
        case inspect.StructType(fields=fields):
            return {field.encode_name: _fields(field.type) for field in fields}
        case inspect.ListType(item_type=inner) | inspect.Metadata(type=inner):
            return _fields(inner)
        case inspect.UnionType(types=types):
            return next((found for each in types if (found := _fields(each))), None)
        case _:
            return None


def _unknown(value: Any, known: Known, path: str) -> Iterator[tuple[str, str, Known]]:
    """Yields the path of an object, the name of an unknown field in it, and the known ones."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _unknown(item, known, f"{path}[{number}]")
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name not in known:
                yield path, name, known
            elif known[name]:
                yield from _unknown(inner, known[name], f"{path}.{name}")


def _mistyped(found: Iterable[str], known: set[str], before: str) -> Iterator[Fault]:
    """Yields the names that are close to a known one that is missing."""
    present = set(found)
    for name in sorted(present - known)[:_MAX_NAMES]:
        for nearest in get_close_matches(name.lower(), sorted(known - present), 1, _LIKELY):
            yield Fault("unknown_attribute", before + shown(name), nearest)
