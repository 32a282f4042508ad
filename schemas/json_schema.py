"""JSON Schemas (2020-12) of the change events, derived from the Structs that decode them.

Each type has two schemas: one of the structured CloudEvent (`crm.lead.changed`), and one of its `data` alone, which is
the whole value in binary mode (`crm.lead.changed.data`). Unknown fields are allowed everywhere, as in the contract.
"""

from typing import Any, get_type_hints

import msgspec

from schemas.envelopes import ENVELOPES
from schemas.events import CloudEvent

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def event_types() -> dict[str, type[CloudEvent]]:
    """Returns the Struct of each event type, by its `type`."""
    structs = [struct for envelopes in ENVELOPES.values() for struct in envelopes]
    return {str(struct.__struct_config__.tag): struct for struct in structs}


def event_schemas() -> dict[str, dict[str, Any]]:
    """Returns all schemas by name: `<type>` and `<type>.data`."""
    schemas = {}
    for name, struct in event_types().items():
        schemas[name] = _schema(struct, f"{name}, structured CloudEvent")
        schemas[f"{name}.data"] = _schema(get_type_hints(struct)["data"], f"{name}, data alone")
    return schemas


def _schema(struct: type[msgspec.Struct], title: str) -> dict[str, Any]:
    return {"$schema": _DIALECT, "title": title, **msgspec.json.schema(struct)}
