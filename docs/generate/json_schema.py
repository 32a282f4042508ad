"""JSON Schemas (2020-12) of the change events, derived from the Structs that decode them.

Each type has two schemas: one of the structured CloudEvent (`crm.lead.changed`), and one of its `data` alone, which is
the whole value in binary mode (`crm.lead.changed.data`). Unknown fields are allowed everywhere, as in the contract.
"""

import ast
import inspect
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any, get_type_hints

import msgspec

from docs.generate.tables import texts_below
from schemas import events
from schemas.envelopes import ENVELOPES, event_type
from schemas.events import CloudEvent
from schemas.resources import Kind

Json = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def event_types() -> dict[str, type[CloudEvent]]:
    """Returns the Struct of each event type, by its `type`."""
    structs = [struct for envelopes in ENVELOPES.values() for struct in envelopes]
    return {str(struct.__struct_config__.tag): struct for struct in structs}


def data_of(struct: type[CloudEvent]) -> type[events.Entity]:
    """Returns the Struct of the `data` of this envelope."""
    data: type[events.Entity] = get_type_hints(struct)["data"]
    return data


def event_schemas() -> dict[str, Json]:
    """Returns all schemas by name: `<type>` and `<type>.data`."""
    found = examples()
    schemas = {}
    for name, struct in event_types().items():
        schemas[name] = _schema(name, struct, f"{name}, structured CloudEvent", found[name])
        schemas[f"{name}.data"] = _schema(f"{name}.data", data_of(struct), f"{name}, data alone", found[name]["data"])
    return schemas


def components(structs: Iterable[type[msgspec.Struct]], reference: str) -> tuple[list[Json], dict[str, Json]]:
    """Returns the schema of each Struct, and by name the schemas that these refer to, with a description of each field.

    `reference` is the form of a reference, such as `#/$defs/{name}`.
    """
    schemas, named = msgspec.json.schema_components(structs, ref_template=reference)
    structs_by_name = {struct.__name__: struct for struct in _all_structs()}
    for name, schema in named.items():
        for field in schema["properties"].values():
            if "enum" in field:
                field["type"] = "string"  # msgspec leaves it out, and some generators then make it any value
        texts = descriptions(structs_by_name[name])
        for field, text in texts.items():
            schema["properties"][field] = {"description": text, **schema["properties"][field]}
    return list(schemas), named


def examples() -> dict[str, Json]:
    """Returns a good event of each type, in structured mode."""
    return {
        event_type(kind, verb): _example(kind, verb, data)
        for kind in ENVELOPES
        for verb, data in (("changed", kind.event_example), ("deleted", _deleted(kind.event_example)))
    }


def _example(kind: Kind, verb: str, data: events.Entity) -> Json:
    return {
        "specversion": "1.0",
        "id": f"{kind.noun}-{data.version}",
        "source": "/crm",
        "type": event_type(kind, verb),
        "time": "2026-03-09T16:40:05Z",
        "data": msgspec.to_builtins(data),
    }


def _deleted(entity: events.Entity) -> events.Entity:
    return events.Deleted(id=entity.id, organization_id=entity.organization_id, version=entity.version + 1)


def _schema(name: str, struct: type[msgspec.Struct], title: str, example: Json) -> Json:
    [schema], named = components([struct], "#/$defs/{name}")
    return {
        "$schema": _DIALECT,
        "$id": f"urn:leadview:schema:{name}",
        "title": title,
        **schema,
        "$defs": named,
        "examples": [example],
    }


def _all_structs() -> list[type[msgspec.Struct]]:
    structs: list[type[msgspec.Struct]] = [*event_types().values()]
    return structs + [
        each for each in vars(events).values() if isinstance(each, type) and issubclass(each, msgspec.Struct)
    ]


def descriptions(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Returns the description of each field that has one, by name. Fields of base classes are included."""
    found: dict[str, str] = {}
    for each in reversed(struct.__mro__):
        module = sys.modules.get(each.__module__)
        if module and issubclass(each, msgspec.Struct):
            found |= _classes(inspect.getsource(module)).get(each.__name__, {})
    return {name: found[name] for name in struct.__struct_encode_fields__ if name in found}


@cache
def _classes(source: str) -> dict[str, dict[str, str]]:
    """Returns the texts below the fields of each class in a module."""
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return {node.name: texts_below(node.body) for node in classes}
