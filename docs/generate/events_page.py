"""The generated parts of docs/events.md: the fields of each event, a good example, and bad ones with their reasons."""

from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import msgspec
import orjson
from msgspec.structs import replace

from docs.generate.json_schema import components, data_of, descriptions, event_types, examples
from docs.generate.tables import table
from schemas import events, words
from schemas.envelopes import ENVELOPES, event_type
from schemas.events import CloudEvent
from schemas.faults import fault_of
from schemas.resources import KINDS, LEAD, ORGANIZATION, Kind
from schemas.settings import ProjectorSettings

Json = dict[str, Any]

DELETION = event_type(LEAD, "deleted")
"""The deletion that the page shows: those of other kinds have the same fields."""
_FAULTS_DELETED: tuple[Json, ...] = ({"version": None}, {"version": "4"})


class Bad(NamedTuple):
    """An event that breaks the contract: what is wrong with it, and the reason of its dead letter."""

    event: Json
    fault: str
    reason: str


def parts() -> dict[str, str]:
    """Returns the generated parts of the page, in Markdown, by the names of their places."""
    text = "Each event has these fields in its `data`. A field is required unless its type says that it is optional."
    common = f"{text}\n\n{_fields(events.Deleted)}\n"
    sections = [line for kind in KINDS for line in _section(kind)]
    return {"topics": _topics(), "events": "\n".join([common, *sections, *_deletions()])}


def bad_examples(type_: str) -> list[Bad]:
    """Returns two bad events of a type."""
    kind = next(kind for kind in KINDS if type_.startswith(f"crm.{kind.noun}."))
    good, found = examples()[type_], []
    for wrong in kind.event_faults if type_.endswith(".changed") else _FAULTS_DELETED:
        data = {name: value for name, value in (good["data"] | wrong).items() if name not in wrong or value is not None}
        [(field, value)] = wrong.items()
        fault = f"`{field}` is missing" if value is None else f"`{field}` is `{_text(value)}`"
        event = good | {"data": data}
        found.append(Bad(event, fault, _reason(kind, event_types()[type_], event)))
    return found


def _reason(kind: Kind, struct: type[CloudEvent], event: Json) -> str:
    try:
        msgspec.json.decode(orjson.dumps(event), type=struct)
    except msgspec.ValidationError as error:
        fault = fault_of(str(error), kind, binary=False)
        return words.fault(replace(fault, event_id=event["id"], event_source=event["source"]))
    raise AssertionError("a bad example is good")


def _topics() -> str:
    prefix, rows = ProjectorSettings().topic_prefix, []
    for kind in KINDS:
        key = "<organization_id>" if kind is ORGANIZATION else f"<organization_id>:<{kind.noun}_id>"
        types = ", ".join(f"`{event_type(kind, verb)}`" for verb in ("changed", "deleted"))
        rows.append((f"`{prefix}{kind.topic}`", f"`{key}`", types))
    return table(("topic", "message key", "types"), rows)


def _section(kind: Kind) -> Iterator[str]:
    changed = event_type(kind, "changed")
    yield f"### `{changed}`\n"
    data, *others = _with_inner(data_of(ENVELOPES[kind].changed))
    yield f"{data.__doc__}\n"
    yield _fields(data, events.Deleted.__struct_fields__)
    for other in others:
        yield f"\n`{other.__name__}`: {other.__doc__}\n"
        yield _fields(other)
    yield from _examples(changed)


def _deletions() -> Iterator[str]:
    yield "### Deletions\n"
    types = ", ".join(f"`{event_type(kind, 'deleted')}`" for kind in KINDS)
    yield f"The `data` of {types}"
    yield "has the three fields of every event. A null value with the same message key deletes the entity as well."
    yield from _examples(DELETION)


def _examples(type_: str) -> Iterator[str]:
    yield "\nA good event:\n\n```json"
    yield _pretty(examples()[type_])
    yield "```\n"
    yield f"{shown(type_)}\n"


def shown(type_: str) -> str:
    """Returns the sentence about the last bad event of a type."""
    bad = bad_examples(type_)[-1]
    return f"If {bad.fault}, the dead letter says: {bad.reason}."


def _pretty(event: Json) -> str:
    """Returns the event with each field of its data in a line."""
    lines = [f'  "{name}": {_text(value)}' for name, value in event.items() if name != "data"]
    fields = ",\n".join(f'    "{name}": {_text(value)}' for name, value in event["data"].items())
    return "{\n" + ",\n".join([*lines, '  "data": {\n' + fields + "\n  }"]) + "\n}"


def _text(value: object) -> str:
    # orjson writes no spaces in a line.
    return msgspec.json.format(orjson.dumps(value), indent=0).decode()


def _with_inner(struct: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """Returns the Struct, and those that its fields contain."""
    names = components([struct], "{name}")[1]
    return [struct, *(getattr(events, name) for name in names if name != struct.__name__)]


def _fields(struct: type[msgspec.Struct], known: Container[str] = ()) -> str:
    schema = components([struct], "{name}")[1][struct.__name__]
    texts, required = descriptions(struct), schema.get("required", ())
    rows = (
        (f"`{name}`", _type(field) if name in required else f"{_type(field)}; optional", texts[name])
        for name, field in schema["properties"].items()
        if name not in known
    )
    return table(("field", "type", "meaning"), rows)


_WORDS: tuple[tuple[Json, str], ...] = (
    ({"format": "uuid"}, "UUID"),
    ({"format": "date-time"}, "RFC 3339 time"),
    ({"minLength": 64, "maxLength": 64}, "64 hexadecimal digits"),
    ({"type": "string", "maxLength": 64}, "text: a decimal number without an exponent"),
    ({"type": "string"}, "text"),
)
"""The words for the first of these that a schema contains."""


def _type(field: Json) -> str:
    """Returns the type of a field in a few words."""
    match field:
        case {"anyOf": [*kinds]}:
            return " or ".join(dict.fromkeys(_type(kind) for kind in kinds if kind != {"type": "null"}))
        case {"$ref": name}:
            return f"`{name}`"
        case {"enum": [*values]}:
            return ", ".join(f"`{value}`" for value in values)
        case {"type": "array", "items": items}:
            return f"array of {_type(items)}"
        case {"type": "integer", "minimum": least, "maximum": most} if least > 0:
            return f"integer, {least:,} to {most:,}"
    return next((words for wanted, words in _WORDS if wanted.items() <= field.items()), str(field["type"]))
