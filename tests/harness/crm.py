"""The core product, for tests: its change events as messages, which become records once Kafka has stored them."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from projector.record import Record
from schemas import api_keys, events, resources
from schemas.envelopes import event_type

_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)

Json = dict[str, Any]


def uuid(number: int) -> str:
    """Returns a canonical UUID, the same for the same number."""
    return str(UUID(int=number, version=4))


ORGANIZATION, OTHER_ORGANIZATION = uuid(0xA1), uuid(0xA2)
LEAD, OTHER_LEAD = uuid(0x11), uuid(0x12)
CONTACT, OTHER_CONTACT = uuid(0xC1), uuid(0xC2)
API_KEY = uuid(0xF1)
KEY = api_keys.mint(ORGANIZATION, "k" * api_keys.RANDOM_LENGTH)
"""The text of that API key."""


def at(seconds: float) -> str:
    """Returns the time this number of seconds after the beginning, as RFC 3339."""
    return (_BEGINNING + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def at_ms(seconds: float) -> int:
    """Returns the same in milliseconds since 1970."""
    return int((_BEGINNING + timedelta(seconds=seconds)).timestamp() * 1000)


class Message(msgspec.Struct, frozen=True):
    """What a producer hands to Kafka. `value` is None for a tombstone."""

    kind: resources.Kind
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    seconds: float = 0
    """The record's timestamp, in seconds after the beginning."""

    def record(self, offset: int = 0, partition: int = 0, prefix: str = "crm.") -> Record:
        """Returns the message as a record with this position in Kafka."""
        timestamp = at_ms(self.seconds)
        return Record(
            f"{prefix}{self.kind.topic}", partition, offset, timestamp, self.key, self.value, self.headers, self.kind
        )


def lead(version: int = 1, *, seconds: float = 0, **fields: Any) -> Message:
    """Returns the event that a lead changed. `fields` replace those of `lead_data`."""
    return changed(resources.LEAD, lead_data(version=version, **fields), seconds)


def contact(version: int = 1, *, seconds: float = 0, **fields: Any) -> Message:
    return changed(resources.CONTACT, contact_data(version=version, **fields), seconds)


def organization(version: int = 1, *, seconds: float = 0, **fields: Any) -> Message:
    return changed(resources.ORGANIZATION, organization_data(version=version, **fields), seconds)


def api_key(version: int = 1, *, seconds: float = 0, **fields: Any) -> Message:
    return changed(resources.API_KEY, api_key_data(version=version, **fields), seconds)


def minimal(resource: resources.Resource) -> events.Entity:
    """Returns the example event of a resource with its required fields only."""
    required = [field.name for field in msgspec.structs.fields(resource.event) if field.required]
    return resource.event(**{name: getattr(resource.event_example, name) for name in required})


def lead_data(**fields: Any) -> Json:
    """Returns the required fields of a lead, and `fields`."""
    least = _entity(LEAD) | {"contact_id": CONTACT, "stage": "NEW", "created_at": at(0), "updated_at": at(0)}
    return least | fields


def contact_data(**fields: Any) -> Json:
    least = _entity(CONTACT) | {"first_name": "Ada", "last_name": "Lovelace"}
    return least | {"created_at": at(0), "updated_at": at(0)} | fields


def organization_data(**fields: Any) -> Json:
    organization_id = fields.get("organization_id", ORGANIZATION)
    return _entity(organization_id) | {"api_access": True} | fields


def api_key_data(**fields: Any) -> Json:
    return _entity(API_KEY) | {"hash": key_hash(1), "status": "active", "created_at": at(0)} | fields


def key_hash(number: int) -> str:
    """Returns the hash of an API key; that of `KEY` for 1."""
    return api_keys.key_hash(KEY if number == 1 else f"key {number}")


def deleted(
    kind: resources.Kind,
    version: int,
    entity_id: str | None = None,
    organization_id: str = ORGANIZATION,
    seconds: float = 0,
) -> Message:
    """Returns the event that an entity of this kind was deleted."""
    entity_id = entity_id or _default_id(kind, organization_id)
    data = {"id": entity_id, "organization_id": organization_id, "version": version}
    return changed(kind, data, seconds, verb="deleted")


def tombstone(
    kind: resources.Kind, entity_id: str | None = None, organization_id: str = ORGANIZATION, seconds: float = 0
) -> Message:
    """Returns a null value: the entity of its key was deleted."""
    key = message_key(kind, organization_id, entity_id or _default_id(kind, organization_id))
    return Message(kind, key, None, seconds=seconds)


def changed(kind: resources.Kind, data: Json, seconds: float = 0, verb: str = "changed") -> Message:
    """Returns a structured event with this `data`. Encoded by msgspec: tests have integers of any size, which orjson
    refuses.
    """
    event = {**envelope(kind, seconds, verb), "data": data}
    key = message_key(kind, str(data.get("organization_id")), str(data.get("id")))
    return Message(kind, key, msgspec.json.encode(event), seconds=seconds)


def envelope(kind: resources.Kind, seconds: float = 0, verb: str = "changed") -> Json:
    """Returns what a structured event holds besides `data`."""
    attributes = {"specversion": "1.0", "id": "e1", "source": "/crm", "time": at(seconds)}
    return {"type": event_type(kind, verb), **attributes}


def binary(message: Message) -> Message:
    """Returns the same event in binary mode: its attributes are headers, and the value is `data`."""
    event = msgspec.json.decode(message.value or b"")
    headers = [(f"ce_{name}", str(value).encode()) for name, value in event.items() if name != "data"]
    value = msgspec.json.encode(event["data"])
    return msgspec.structs.replace(message, value=value, headers=(*headers, ("content-type", b"application/json")))


def framed(message: Message) -> Message:
    """Returns the message with the frame of a schema registry before its value: a zero byte, and the id of a schema."""
    return msgspec.structs.replace(message, value=b"\0\0\0\1\7" + (message.value or b""))


def with_attributes(message: Message, **replaced: object) -> Message:
    """Returns a structured event with some attributes replaced or added; one that is None is left out."""
    event = msgspec.json.decode(message.value or b"") | replaced
    value = msgspec.json.encode({name: value for name, value in event.items() if value is not None})
    return msgspec.structs.replace(message, value=value)


def with_headers(message: Message, **replaced: bytes | None) -> Message:
    """Returns the message with some headers replaced or added; one that is None is left out. `__` stands for `-`."""
    headers = dict(message.headers) | {name.replace("__", "-"): value for name, value in replaced.items()}
    return msgspec.structs.replace(
        message, headers=tuple((name, value) for name, value in headers.items() if value is not None)
    )


def within(message: Message, json: bytes) -> Message:
    """Returns the message with this JSON in place of the text PLACE."""
    return msgspec.structs.replace(message, value=(message.value or b"").replace(b'"PLACE"', json, 1))


def message_key(kind: resources.Kind, organization_id: str, entity_id: str) -> bytes:
    whole = organization_id if kind is resources.ORGANIZATION else f"{organization_id}:{entity_id}"
    return whole.encode()


def _entity(entity_id: str) -> Json:
    return {"id": entity_id, "organization_id": ORGANIZATION, "version": 1}


def _default_id(kind: resources.Kind, organization_id: str) -> str:
    named = {resources.LEAD: LEAD, resources.CONTACT: CONTACT, resources.API_KEY: API_KEY}
    if kind is resources.ORGANIZATION:
        return organization_id
    return named[kind] if kind in named else uuid(0xE0)
