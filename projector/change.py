"""From the bytes of a record to the change that it says: CloudEvents 1.0, structured or binary, or a tombstone.

Pure: no clock, no I/O. Everything that breaks the contract raises BadRecord, with a reason that holds no value
of the payload.
"""

import re
from typing import Any

import msgspec

from projector.errors import BadRecord
from projector.record import EntityKey, Kind, Record, entity_key
from schemas import events
from schemas.fields import Timestamp, are_uuids
from schemas.layouts import milliseconds


class Change(msgspec.Struct, frozen=True, gc=False):
    """What a record says of one entity. `entity` is None for a tombstone, which has no version."""

    kind: Kind
    key: EntityKey
    entity: events.Data | None
    time: int
    """Of the event, in milliseconds since 1970; the record's own where the event has none."""


_STRUCTURED: dict[Kind, msgspec.json.Decoder[Any]] = {
    Kind.LEAD: msgspec.json.Decoder(events.LeadChanged | events.LeadDeleted),
    Kind.CONTACT: msgspec.json.Decoder(events.ContactChanged | events.ContactDeleted),
    Kind.ORGANIZATION: msgspec.json.Decoder(events.OrganizationChanged | events.OrganizationDeleted),
    Kind.API_KEY: msgspec.json.Decoder(events.ApiKeyChanged | events.ApiKeyDeleted),
}
_DATA: dict[Kind, dict[str, msgspec.json.Decoder[Any]]] = {
    Kind.LEAD: {
        "crm.lead.changed": msgspec.json.Decoder(events.Lead),
        "crm.lead.deleted": msgspec.json.Decoder(events.Deleted),
    },
    Kind.CONTACT: {
        "crm.contact.changed": msgspec.json.Decoder(events.Contact),
        "crm.contact.deleted": msgspec.json.Decoder(events.Deleted),
    },
    Kind.ORGANIZATION: {
        "crm.organization.changed": msgspec.json.Decoder(events.Organization),
        "crm.organization.deleted": msgspec.json.Decoder(events.Deleted),
    },
    Kind.API_KEY: {
        "crm.api_key.changed": msgspec.json.Decoder(events.ApiKey),
        "crm.api_key.deleted": msgspec.json.Decoder(events.Deleted),
    },
}
_JSON_TYPE = re.compile(r"[a-z]+/([a-z0-9.+-]+\+)?json\s*(;.*)?", re.IGNORECASE)
_VALUE = re.compile(r"""(['"]).*\1""", re.DOTALL)


def read(record: Record) -> Change:
    """The change that a record says. Raises BadRecord."""
    key = entity_key(record)
    if record.value is None:
        return Change(record.kind, key, None, record.timestamp)
    try:
        entity, time = _read_event(record, record.value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRecord(_without_values(error)) from None
    except RecursionError:
        raise BadRecord("the JSON is nested too deep") from None
    _check_ids(key, entity)
    return Change(record.kind, key, entity, record.timestamp if time is None else time)


def _read_event(record: Record, value: bytes) -> tuple[events.Data, int | None]:
    if record.headers and "ce_specversion" in (headers := dict(record.headers)):
        return _read_binary(record.kind, headers, value)
    event = _STRUCTURED[record.kind].decode(value)
    if event.datacontenttype is not None:
        _check_json(event.datacontenttype)
    return event.data, None if event.time is None else milliseconds(event.time)


def _read_binary(kind: Kind, headers: dict[str, bytes], value: bytes) -> tuple[events.Data, int | None]:
    attributes = {name: (headers.get(name) or b"").decode() for name in ("ce_specversion", "ce_id", "ce_source")}
    if attributes["ce_specversion"] != "1.0":
        raise BadRecord("header ce_specversion is not 1.0")
    if not (attributes["ce_id"] and attributes["ce_source"]):
        raise BadRecord("header ce_id or ce_source is missing")
    decoder = _DATA[kind].get((headers.get("ce_type") or b"").decode())
    if decoder is None:
        raise BadRecord(f"header ce_type is missing, or no type of the topic {kind}")
    if "content-type" in headers:
        _check_json(headers["content-type"].decode())
    time = headers.get("ce_time")
    return decoder.decode(value), None if time is None else _read_time(time.decode())


def _read_time(text: str) -> int:
    try:
        return milliseconds(msgspec.convert(text, Timestamp))
    except msgspec.ValidationError:
        raise BadRecord("header ce_time is no RFC 3339 time with an offset") from None


def _check_json(content_type: str) -> None:
    if not _JSON_TYPE.fullmatch(content_type.strip()):
        raise BadRecord("the content type of the event's data is not JSON")


def _check_ids(key: EntityKey, entity: events.Data) -> None:
    """The key's ids are UUIDs already, so that those of the data are when they are the same."""
    if entity.id.lower() != key.id or entity.organization_id.lower() != key.organization_id:
        raise BadRecord("id and organization_id of the data are not those of the message key")
    if isinstance(entity, events.Lead):
        _check_other_ids(entity)


def _check_other_ids(lead: events.Lead) -> None:
    ids = [event.id for event in lead.events] if lead.events else []
    ids.append(lead.contact_id)
    if lead.assigned_to is not None:
        ids.append(lead.assigned_to)
    if not are_uuids(ids):
        named = {"contact_id": lead.contact_id, "assigned_to": lead.assigned_to}
        bad = [name for name, id_ in named.items() if id_ is not None and not are_uuids([id_])]
        raise BadRecord(f"{bad[0] if bad else 'the id of an event'} is no UUID")


def _without_values(error: Exception) -> str:
    """msgspec quotes a bad value as Python would, one in a message; it may be personal, and hold quotes itself."""
    if isinstance(error, UnicodeDecodeError):
        return "the text is not UTF-8"
    return _VALUE.sub("'…'", str(error))
