"""Why a record is bad, in words that help to find and mend it, and never with other values of the payload.

A reason names the field, what was expected, and which event it was: the id and the source of the event, as far as they
can be read.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from projector.errors import BadRecord
from projector.record import Record
from projector.wire_format import MAGIC, hint, unframed
from schemas.envelopes import ENVELOPES, event_type
from schemas.resources import Kind

_ORIGIN = " (event "
_MAX_ORIGIN = 80
"""In characters, of the id and the source of an event each."""
_PATH = re.compile(r"^Invalid (?:enum )?value .* - at `\$((?:\.\w+|\[\.\.\.\]|\[\d+\])+)`$", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[")
_KINDS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("defect", "defect of Leadview"),
        ("limit", "more than|too deeply|nested deeper"),
        ("batch", r"^(a|the) batch|cannot be read|encoded as Kafka"),
        ("message-key", "message key"),
        ("envelope", r"^header |content type|`\$\.(type|id|source|specversion|time|datacontenttype)`|field `type`"),
        ("missing-field", "missing required field"),
        ("json", "JSON is malformed|UTF-8|truncated|frame of a schema registry"),
        ("value", "^(Invalid|Expected)|is not a UUID|outside of the years"),
    )
)
KINDS = (*(kind for kind, _ in _KINDS), "other")
"""The kinds of reasons, as the metrics count them."""


class _Event(msgspec.Struct):
    id: str | None = None
    source: str | None = None


_EVENT = msgspec.json.Decoder(_Event)


def kind_of(reason: str) -> str:
    """Returns which of `KINDS` a reason belongs to."""
    words = reason.partition(_ORIGIN)[0]
    return next((kind for kind, pattern in _KINDS if pattern.search(words)), "other")


def explain(reason: str, record: Record) -> str:
    """Returns a reason with the allowed values of the field, what to set if the producer wraps its records in a way
    that is not read, and the id and source of the event."""
    return f"{reason}{_allowed(reason, record)}{hint(reason, record)}{_origin(record)}"


def _allowed(reason: str, record: Record) -> str:
    found = _PATH.match(reason)
    values = _values(record.kind, "ce_specversion" in dict(record.headers), found[1]) if found else ()
    return f": allowed are {', '.join(values)}" if values else ""


@cache
def _values(kind: Kind, binary: bool, path: str) -> tuple[str, ...]:
    """Returns the values that a field of a kind's events may have, if its type lists them."""
    if not binary and path == ".type":
        return event_type(kind, "changed"), event_type(kind, "deleted")
    root: Any = kind.event if binary else ENVELOPES[kind].changed
    types = [inspect.type_info(root)]
    for step in _STEP.finditer(path):
        types = [inner for outer in types for inner in _inside(outer, step[1])]
    literals = [each for type_ in types for each in _alternatives(type_) if isinstance(each, inspect.LiteralType)]
    return tuple(str(value) for literal in literals for value in literal.values)


def _inside(outer: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    """Yields the types of a field; or of what a list or an object holds, if `field` is None."""
    for each in _alternatives(outer):
        match each:
            case inspect.StructType(fields=fields):
                yield from (found.type for found in fields if found.encode_name == field)
            case inspect.ListType(item_type=inner) | inspect.DictType(value_type=inner) if field is None:
                yield inner


def _alternatives(type_: inspect.Type) -> Iterator[inspect.Type]:
    match type_:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _alternatives(each)
        case inspect.Metadata(type=inner):
            yield from _alternatives(inner)
        case _:
            yield type_


def _origin(record: Record) -> str:
    id_, source = map(_shown, _id_and_source(record))
    words = f"{id_} of {source}" if id_ and source else id_ or (f"of {source}" if source else "")
    return f"{_ORIGIN}{words})" if words else ""


def _id_and_source(record: Record) -> tuple[object, object]:
    headers = dict(record.headers)
    if "ce_specversion" in headers:
        id_, source = ((headers.get(name) or b"").decode(errors="replace") for name in ("ce_id", "ce_source"))
        return id_, source
    value = record.value or b""
    try:
        event = _EVENT.decode(unframed(value) if value and value[0] == MAGIC else value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadRecord):
        return "", ""
    return event.id, event.source


def _shown(text: object) -> str:
    """Returns a short text that no terminal takes for commands."""
    if not isinstance(text, str):
        return ""
    return "".join(character if character.isprintable() else "?" for character in text[:_MAX_ORIGIN])
