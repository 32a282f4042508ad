"""What is expected of each field of an event, in words. They follow from the types of the events (`schemas.events`), so
a field that is added has them as well.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import inspect

from schemas.envelopes import ENVELOPES, event_type
from schemas.fields import DecimalText, Integer, Sha256Hex, Timestamp, Uuid
from schemas.resources import Kind

_STEP = re.compile(r"\.(\w+)|\[")
_INDEX = re.compile(r"\[[^]]*")
_NULL = "null"


@cache
def expectation(kind: Kind, binary: bool, path: str, *, null: bool = True) -> tuple[str, tuple[str, ...]]:
    """Returns what is expected at a path, and the values that are allowed there, if the type lists them.

    `binary` says in which mode of CloudEvents the record is: then `data` is the whole value. Without `null`, nothing is
    said of null: a header cannot be that.
    """
    root: Any = kind.event if binary else ENVELOPES[kind].changed
    types = [inspect.type_info(root)]
    for step in _STEP.finditer(_INDEX.sub("[", path)):
        types = [inner for outer in types for inner in _inside(outer, step[1])]
    if not null:
        types = [each for each in _alternatives(types) if not isinstance(each, inspect.NoneType)]
    if not binary and path == "$.type":
        allowed: tuple[str, ...] = (event_type(kind, "changed"), event_type(kind, "deleted"))
    else:
        allowed = tuple(str(value) for each in _alternatives(types) for value in getattr(each, "values", ()))
    return f"one of {', '.join(allowed)}" if allowed else _words(types), allowed


def _inside(outer: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    """Yields the types of a field; or of what a list or an object holds, if `field` is None."""
    for each in _alternatives([outer]):
        match each:
            case inspect.StructType(fields=fields):
                yield from (found.type for found in fields if found.encode_name == field)
            case inspect.ListType(item_type=inner) | inspect.DictType(value_type=inner) if field is None:
                yield inner


def _alternatives(types: list[inspect.Type]) -> Iterator[inspect.Type]:
    for type_ in types:
        match type_:
            case inspect.UnionType(types=inner):
                yield from _alternatives([*inner])
            case inspect.Metadata(type=inner_type):
                yield from _alternatives([inner_type])
            case _:
                yield type_


def _plain(hint: Any) -> inspect.Type:
    [found] = _alternatives([inspect.type_info(hint)])
    return found


_NAMED = (
    (_plain(Uuid), "a UUID"),
    (_plain(Timestamp), "an RFC 3339 time with an offset, such as 2026-03-02T09:15:00Z"),
    (_plain(Sha256Hex), "64 hexadecimal digits"),
    (_plain(DecimalText), 'a decimal number without an exponent, as text, such as "1234.50"'),
    (_plain(Integer), "an integer of at most 64 bits"),
)
"""The words for the types of `schemas.fields`."""


def _words(types: list[inspect.Type]) -> str:
    """Returns the words for any of these types; an empty text if every value is accepted."""
    words = list(dict.fromkeys(map(_word, _alternatives(types))))
    if "" in words:
        return ""
    *others, last = sorted(words, key=_NULL.__eq__) or [""]
    return f"{', '.join(others)}, or {last}" if others else last


def _word(type_: inspect.Type) -> str:
    named = next((words for known, words in _NAMED if known == type_), "")
    match type_:
        case _ if named:
            return named
        case inspect.NoneType():
            return _NULL
        case inspect.StrType(min_length=least):
            return "text that is not empty" if least else "text"
        case inspect.IntType(ge=int(least), le=int(most)):
            return f"an integer from {least:,} to {most:,}"
        case inspect.FloatType():
            return "a number"
        case inspect.BoolType():
            return "true or false"
        case inspect.ListType(item_type=item, max_length=most):
            size = f"at most {most:,} entries, each " if most else ""
            return f"an array of {size}{_words([item])}"
        case inspect.StructType() | inspect.DictType():
            return "an object"
        case _:
            return ""
