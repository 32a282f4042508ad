"""Why a record is bad, in words that help to find and correct it, and never with other values of the payload.

A reason names the field, what was expected, and which event it was: the id and the source of the event, as far as they
can be read.
"""

import re

import msgspec
from msgspec.structs import replace

from projector.errors import BadRecord
from projector.record import MAGIC, Record, hint, unframed
from schemas.faults import Fault, fault_of

_ORIGIN = " (event "
_MAX_ORIGIN = 80
"""In characters, of the id and the source of an event each."""
_KINDS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("defect", "defect of Leadview"),
        ("limit", "more than|too deeply|nested deeper"),
        ("batch", r"^(a|the) batch|cannot be read|encoded as Kafka"),
        ("message-key", "message key"),
        ("envelope", r"^header |^`\$\.(type|id|source|specversion|time|datacontenttype)`"),
        ("missing-field", "` is missing"),
        ("json", "is not JSON|UTF-8|frame of a schema registry"),
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
    """Returns what a reason of the decoder means. Its text also says what to set if the producer wraps its records in a
    way that is not read, and has the id and the source of the event."""
    fault = fault_of(reason, record.kind, binary="ce_specversion" in dict(record.headers))
    return replace(fault, text=f"{fault.text}{hint(reason, record)}{_origin(record)}")


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
