"""Why a record is bad, in words that help to find and mend it, and never with other values of the payload.

A reason names the field, what was expected, and which event it was: the id and the source of the event, as far as they
can be read.
"""

import re

import msgspec
from msgspec.structs import replace

from projector.record import Record
from schemas.faults import Fault, fault_of

_ORIGIN = " (event "
_MAX_ORIGIN = 80
"""In characters, of the id and the source of an event each."""
_MAGIC = b"\0"
_FRAMED = (
    "The value has the frame of a schema registry (magic byte 0), and no JSON after it: Avro and Protobuf are not "
    "supported, so use a serializer for JSON"
)
_KINDS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("defect", "defect of Leadview"),
        ("limit", "more than|too deeply|nested deeper"),
        ("batch", r"^(a|the) batch|cannot be read|encoded as Kafka"),
        ("message-key", "message key"),
        ("envelope", r"^header |^`\$\.(type|id|source|specversion|time|datacontenttype)`"),
        ("missing-field", "` is missing"),
        ("json", "is not JSON|UTF-8"),
        ("value", r"^`\$"),
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


def explain(reason: str, record: Record) -> Fault:
    """Returns what a reason of the decoder means, with the id and the source of the event in its text."""
    fault = fault_of(reason, record.kind, binary="ce_specversion" in dict(record.headers))
    return replace(fault, text=f"{fault.text}{_hint(reason, record)}{_origin(record)}")


def _hint(reason: str, record: Record) -> str:
    """Returns why a value is not JSON, if it has the frame of a schema registry: a zero byte and the id of a schema."""
    is_framed = (record.value or b"").startswith(_MAGIC) and "JSON" in reason
    return f". {_FRAMED}" if is_framed else ""


def _origin(record: Record) -> str:
    id_, source = map(_shown, _id_and_source(record))
    words = f"{id_} of {source}" if id_ and source else id_ or (f"of {source}" if source else "")
    return f"{_ORIGIN}{words})" if words else ""


def _id_and_source(record: Record) -> tuple[object, object]:
    headers = dict(record.headers)
    if "ce_specversion" in headers:
        id_, source = ((headers.get(name) or b"").decode(errors="replace") for name in ("ce_id", "ce_source"))
        return id_, source
    try:
        event = _EVENT.decode(record.value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "", ""
    return event.id, event.source


def _shown(text: object) -> str:
    """Returns a short text that no terminal takes for commands."""
    if not isinstance(text, str):
        return ""
    return "".join(character if character.isprintable() else "?" for character in text[:_MAX_ORIGIN])
