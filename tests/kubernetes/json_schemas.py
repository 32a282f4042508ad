"""JSON Schemas for kubeconform, from what Kubernetes and its extensions publish. Pure: nothing is read or written.

Kubernetes may ignore a field that it does not know, so a mistyped one would have no effect. In these schemas, an object
has the fields that are named and no others.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = dict[str, Any]
_PREFIX = "#/definitions/"
_OF_EVERY_OBJECT: Schema = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"type": "object"},
}


def of_kubernetes(swagger: Mapping[str, Any]) -> Iterator[tuple[str, Schema]]:
    """Yields a file name and a schema for each kind in Kubernetes' OpenAPI document (Swagger 2.0)."""
    definitions = swagger["definitions"]
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            needed: dict[str, Schema] = {}
            _collect(name, definitions, needed)
            schema = needed[name] | {"definitions": needed}
            yield file_name(kind["group"], kind["version"], kind["kind"]), schema


def of_definition(resource: Mapping[str, Any]) -> Iterator[tuple[str, Schema]]:
    """Yields a file name and a schema for each version of a CustomResourceDefinition."""
    spec = resource["spec"]
    for version in spec["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        schema = _strict(schema | {"properties": _OF_EVERY_OBJECT | schema["properties"]})
        schema["properties"]["metadata"] = {"type": "object"}
        yield file_name(spec["group"], version["name"], spec["names"]["kind"]), schema


def file_name(group: str, version: str, kind: str) -> str:
    """Returns the name under which kubeconform looks for the schema of a kind."""
    return f"{kind.lower()}-{group.partition('.')[0] + '-' if group else ''}{version}.json"


def _collect(name: str, definitions: Mapping[str, Any], into: dict[str, Schema]) -> None:
    if name in into:
        return
    into[name] = _strict(definitions[name])
    for reference in _references(definitions[name]):
        _collect(reference.removeprefix(_PREFIX), definitions, into)


def _references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for inner in part.values():
            yield from _references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _references(inner)


def _strict(schema: Mapping[str, Any]) -> Schema:
    """Returns a copy in which every object with named fields has no others."""
    copy = {key: _copied(key, value) for key, value in schema.items()}
    if copy.get("format") == "int-or-string" or copy.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    open_ended = "additionalProperties" in copy or copy.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in copy and not open_ended:
        copy["additionalProperties"] = False
    return copy


def _copied(key: str, value: Any) -> Any:
    match value:
        case dict() if key == "properties":
            return {name: _strict(inner) for name, inner in value.items()}
        case dict() if key in ("items", "additionalProperties"):
            return _strict(value)
        case _:
            return value
