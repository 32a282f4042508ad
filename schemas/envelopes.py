"""The structured CloudEvents of each kind of entity: `crm.<noun>.changed` and `crm.<noun>.deleted`."""

from typing import NamedTuple

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


HEADERS = frozenset({"ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "content-type"})
"""The headers that are read in binary mode. All others are extension attributes, or not of CloudEvents."""
ENVELOPES = {
    kind: Envelopes(_envelope(kind, "changed", kind.event), _envelope(kind, "deleted", Deleted)) for kind in KINDS
}
