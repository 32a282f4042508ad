"""The structured CloudEvents of each kind of entity, `crm.<noun>.changed` and `crm.<noun>.deleted`; and the headers
which tell the modes of CloudEvents apart.
"""

from collections.abc import Mapping
from itertools import product
from typing import Literal, NamedTuple

import msgspec

from schemas.events import CloudEvent, Deleted, Entity
from schemas.resources import KINDS, Kind


class Envelopes(NamedTuple):
    """The Structs of a kind's two events. The field `data` holds the entity."""

    changed: type[CloudEvent]
    deleted: type[CloudEvent]


def event_type(kind: Kind, verb: str) -> str:
    """Returns the CloudEvents type. `verb` is `changed` or `deleted`."""
    return f"crm.{kind.noun}.{verb}"


def _envelope(kind: Kind, verb: str, data: type[Entity]) -> type[CloudEvent]:
    name = "".join(word.title() for word in (*kind.noun.split("_"), verb))
    found = msgspec.defstruct(
        name, [("data", data)], bases=(CloudEvent,), tag=event_type(kind, verb), frozen=True, kw_only=True
    )
    assert issubclass(found, CloudEvent)  # noqa: S101 - defstruct's type says only Struct
    return found


_ATTRIBUTES = ("specversion", "id", "source", "type", "time")
_CONTENT_TYPE = "content-type"
_OF_BINARY = frozenset(f"ce_{name}" for name in _ATTRIBUTES)
HEADERS = _OF_BINARY | {_CONTENT_TYPE}
"""The headers that are read in binary mode. All others are extension attributes, or not of CloudEvents."""
TRACE_HEADERS = frozenset(("traceparent", "ce_traceparent"))
"""The headers with the trace of an event: that of tracing libraries, and the extension of CloudEvents."""
MISSPELT = {
    spelling(f"{before}{name}"): f"ce_{name}"
    for before, name, spelling in product(("ce_", "ce-"), _ATTRIBUTES, (str.lower, str.upper, str.title))
    if spelling(f"{before}{name}") not in HEADERS
} | dict.fromkeys(("Content-Type", "CONTENT-TYPE", "contentType", "content_type"), _CONTENT_TYPE)
"""Names of headers that a producer meant for one of `HEADERS`. The names of Kafka's headers are exact."""

Mode = Literal["structured", "binary", "batch", "other_format"]


def mode_of(headers: Mapping[str, bytes | None]) -> Mode:
    """Returns in which mode of CloudEvents a record is (Kafka protocol binding, section 3). `content-type` decides: an
    event may be structured and carry the headers of binary mode as well.
    """
    type_ = (headers.get(_CONTENT_TYPE) or b"").partition(b";")[0].strip().lower()
    if type_.startswith(b"application/cloudevents"):
        format_ = type_.removeprefix(b"application/cloudevents")
        if format_.startswith(b"-batch"):
            return "batch"
        return "structured" if format_ == b"+json" else "other_format"
    return "structured" if _OF_BINARY.isdisjoint(headers) else "binary"


ENVELOPES = {
    kind: Envelopes(_envelope(kind, "changed", kind.event), _envelope(kind, "deleted", Deleted)) for kind in KINDS
}
