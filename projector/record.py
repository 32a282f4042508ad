"""A Kafka record in the form that the projector uses."""

from typing import NamedTuple

import msgspec

from projector.errors import BadRecord
from schemas.faults import Fault
from schemas.fields import UUID_AS_0, digits_as_0
from schemas.resources import ORGANIZATION, Kind


class Partition(NamedTuple):
    """A partition of a topic. Compares equal to aiokafka's TopicPartition."""

    topic: str
    partition: int


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record. `timestamp` is Kafka's, in milliseconds since 1970; `value` is None for a tombstone.

    `problem` says why it could not be read from its batch, or which limit it exceeds. Such a record is bad, and its
    value is None although it is no tombstone. If a whole batch could not be read, it stands for all of its records: for
    so many `offsets`, from its own on.

    `history` counts how often the topic was made again, or cut off, as far as that was noticed: offsets of one history
    say nothing about the order of records in another.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    kind: Kind
    problem: Fault | None = None
    offsets: int = 1
    history: int = 0

    @property
    def next_offset(self) -> int:
        return self.offset + self.offsets


class EntityKey(msgspec.Struct, frozen=True, gc=False):
    """The ids in a message key: canonical UUIDs in lower case. For an organization, both are its own id."""

    organization_id: str
    id: str


_LOWER_CASE = digits_as_0("0123456789abcdef")
_ENTITY_KEY = UUID_AS_0 + b":" + UUID_AS_0
_UUID_LENGTH = len(UUID_AS_0)


def entity_key(record: Record) -> EntityKey:
    """Parse the message key of a record. Raises BadRecord.

    An id in upper case is bad as well: Kafka puts it into another partition than the same id in lower case, so the
    events of one entity would have no order.
    """
    key = record.key or b""
    is_organization = record.kind is ORGANIZATION
    if key.translate(_LOWER_CASE) != (UUID_AS_0 if is_organization else _ENTITY_KEY):
        shape = "<organization_id>" if is_organization else "<organization_id>:<entity_id>"
        raise BadRecord(Fault("not_expected", "key", f"{shape} with ids in lower case"))
    text = key.decode()
    return EntityKey(text[:_UUID_LENGTH], text[-_UUID_LENGTH:])
