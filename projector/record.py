"""A record of Kafka, as the projector sees it."""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from projector.errors import BadRecord
from schemas.fields import UUID_AS_0, digits_as_0


class Kind(StrEnum):
    """The kinds of entity, by the name of their topic."""

    __hash__ = str.__hash__  # Enum's own is a Python function, and each record is looked up by its kind

    LEAD = "leads"
    CONTACT = "contacts"
    ORGANIZATION = "organizations"
    API_KEY = "api-keys"


DOCUMENT_KINDS = (Kind.LEAD, Kind.CONTACT)
ACCESS_KINDS = (Kind.ORGANIZATION, Kind.API_KEY)


class Partition(NamedTuple):
    """A partition of a topic; equal to aiokafka's own TopicPartition."""

    topic: str
    partition: int


class Record(msgspec.Struct, frozen=True, gc=False):
    """`timestamp` is Kafka's, in milliseconds since 1970; `value` is None for a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    kind: Kind


class EntityKey(msgspec.Struct, frozen=True, gc=False):
    """What a message key says: canonical UUIDs in lower case. An organization is its own entity."""

    organization_id: str
    id: str


_LOWER_CASE = digits_as_0("0123456789abcdef")
_ENTITY_KEY = UUID_AS_0 + b":" + UUID_AS_0


def entity_key(record: Record) -> EntityKey:
    """Read a record's message key. Raises BadRecord: upper case would have gone to another partition, unordered."""
    key = record.key or b""
    is_organization = record.kind is Kind.ORGANIZATION
    if key.translate(_LOWER_CASE) != (UUID_AS_0 if is_organization else _ENTITY_KEY):
        shape = "<organization_id>" if is_organization else "<organization_id>:<entity_id>"
        raise BadRecord(f"the message key is not {shape} with ids in lower case")
    text = key.decode()
    return EntityKey(text[:36], text[-36:])
