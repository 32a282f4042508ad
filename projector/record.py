"""A record of Kafka, as the projector sees it."""

import re
from enum import StrEnum
from typing import NamedTuple

import msgspec

from projector.errors import BadRecord
from schemas.fields import UUID_PATTERN


class Kind(StrEnum):
    """The kinds of entity, by the name of their topic."""

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


_UUID = UUID_PATTERN.strip("^$").replace("A-F", "")
_ENTITY_KEY = re.compile(f"({_UUID}):({_UUID})".encode())
_ORGANIZATION_KEY = re.compile(f"({_UUID})".encode())


def entity_key(record: Record) -> EntityKey:
    """Read a record's message key. Raises BadRecord: upper case would have gone to another partition, unordered."""
    pattern = _ORGANIZATION_KEY if record.kind is Kind.ORGANIZATION else _ENTITY_KEY
    match = pattern.fullmatch(record.key or b"")
    if not match:
        shape = "<organization_id>" if record.kind is Kind.ORGANIZATION else "<organization_id>:<entity_id>"
        raise BadRecord(f"the message key is not {shape} with ids in lower case")
    return EntityKey(match[1].decode(), match[match.lastindex or 1].decode())
