"""The AsyncAPI document (3.0): the topics, message keys, headers and events that producers publish."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.generate.json_schema import components, data_of, examples
from docs.generate.tables import all_resources
from schemas.envelopes import ENVELOPES, event_type
from schemas.limits import MAX_KEY_BYTES
from schemas.resources import KINDS, ORGANIZATION, Kind
from schemas.settings import ProjectorSettings

Json = dict[str, Any]

_REFERENCE = "#/components/schemas/{name}"
_BINDING = "0.5.0"
_STRUCTURED, _BINARY = "application/cloudevents+json", "application/json"
_ABOUT = (
    "The core product publishes the whole state of each entity whenever it changes. Leadview applies these events, and "
    f"serves {all_resources()} as JSON over HTTPS.\n\nEvents are CloudEvents 1.0, in structured or binary mode. "
    "Unknown fields are ignored. Optional fields may be absent or null. A record that breaks this contract becomes a "
    "dead letter: it blocks nothing, and the document keeps its last good state. docs/events.md says more."
)


def document() -> Json:
    """Returns the whole document."""
    _, schemas = components(
        [struct for envelopes in ENVELOPES.values() for struct in (*envelopes, *map(data_of, envelopes))], _REFERENCE
    )
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Leadview: change events", "version": _version(), "description": _ABOUT},
        "defaultContentType": _STRUCTURED,
        "servers": {
            "kafka": {
                "host": ProjectorSettings().kafka_bootstrap_servers,
                "protocol": "kafka",
                "description": "The brokers of LEADVIEW_KAFKA_BOOTSTRAP_SERVERS",
            }
        },
        "channels": {kind.topic: _channel(kind) for kind in KINDS},
        "operations": {f"receive-{kind.topic}": _operation(kind) for kind in KINDS},
        "components": {
            "schemas": schemas,
            "messages": {name: message for kind in KINDS for name, message in _messages(kind)},
        },
    }


def _version() -> str:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8"))
    return str(project["project"]["version"])


def _channel(kind: Kind) -> Json:
    topic = f"{ProjectorSettings().topic_prefix}{kind.topic}"
    return {
        "address": topic,
        "description": f"The state of each {_noun(kind)}. The prefix of the topic is LEADVIEW_TOPIC_PREFIX.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name, _ in _messages(kind)},
        "bindings": {
            "kafka": {
                "topic": topic,
                "topicConfiguration": {"cleanup.policy": ["compact"]},
                "bindingVersion": _BINDING,
            }
        },
    }


def _operation(kind: Kind) -> Json:
    return {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{kind.topic}"},
        "summary": f"Leadview applies every event of {_a(kind)}.",
        "messages": [{"$ref": f"#/channels/{kind.topic}/messages/{name}"} for name, _ in _messages(kind)],
    }


def _messages(kind: Kind) -> Iterator[tuple[str, Json]]:
    """Yields the name and the content of each message: both types in both modes, and the tombstone."""
    for verb, struct in zip(("changed", "deleted"), ENVELOPES[kind], strict=True):
        type_ = event_type(kind, verb)
        example = examples()[type_]
        summary = f"{_a(kind).capitalize()} {'was created or changed' if verb == 'changed' else 'was deleted'}"
        yield (
            type_,
            {
                "name": type_,
                "title": f"{type_}, structured mode",
                "summary": f"{summary}. The value is the whole CloudEvent.",
                "contentType": _STRUCTURED,
                "payload": {"$ref": _REFERENCE.format(name=struct.__name__)},
                "examples": [{"name": type_, "payload": example}],
                "bindings": _key(kind),
            },
        )
        yield (
            f"{type_}.binary",
            {
                "name": f"{type_}.binary",
                "title": f"{type_}, binary mode",
                "summary": f"{summary}. The attributes are headers, and the value is `data`.",
                "contentType": _BINARY,
                "headers": _headers(type_),
                "payload": {"$ref": _REFERENCE.format(name=data_of(struct).__name__)},
                "examples": [
                    {
                        "name": f"{type_}.binary",
                        "headers": {
                            f"ce_{name}": example[name] for name in ("specversion", "id", "source", "type", "time")
                        },
                        "payload": example["data"],
                    }
                ],
                "bindings": _key(kind),
            },
        )
    yield (
        f"crm.{kind.noun}.tombstone",
        {
            "name": f"crm.{kind.noun}.tombstone",
            "title": "Tombstone",
            "summary": f"A null value deletes the {_noun(kind)} of the message key.",
            "payload": {"type": "null"},
            "bindings": _key(kind),
        },
    )


def _headers(type_: str) -> Json:
    return {
        "type": "object",
        "required": ["ce_specversion", "ce_id", "ce_source", "ce_type"],
        "properties": {
            "ce_specversion": {"type": "string", "const": "1.0"},
            "ce_id": {"type": "string", "minLength": 1, "description": "The id of the event"},
            "ce_source": {"type": "string", "minLength": 1, "description": "The producer, as a URI reference"},
            "ce_type": {"type": "string", "const": type_},
            "ce_time": {"type": "string", "format": "date-time", "description": "When the entity changed"},
            "content-type": {"type": "string", "description": "If it is there, it has to be a JSON type"},
        },
    }


def _key(kind: Kind) -> Json:
    uuid = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    parts, form = ([uuid], "<organization_id>") if kind is ORGANIZATION else ([uuid] * 2, "<organization_id>:<id>")
    key = {
        "type": "string",
        "pattern": f"^{':'.join(parts)}$",
        "maxLength": MAX_KEY_BYTES,
        "description": f"The message key: `{form}`, in lower case. Order holds for each message key only.",
    }
    return {"kafka": {"key": key, "bindingVersion": _BINDING}}


def _noun(kind: Kind) -> str:
    return kind.noun.replace("_", " ")


def _a(kind: Kind) -> str:
    return f"{'an' if kind.noun[0] in 'aeiou' else 'a'} {_noun(kind)}"
