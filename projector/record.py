"""A Kafka record in the form that the projector uses, and how producers that cannot choose wrap it.

A value may have the frame of a schema registry (Confluent's wire format): a zero byte and the id of the schema in four
bytes, before the JSON that follows. The registry is never asked, because the contract is checked here. JSON never
begins with a zero byte, so other values cost one comparison.

Message keys are never unwrapped. Kafka chooses the partition by the bytes of the key, and compacts by them, so an
entity with two spellings of its key would have no order.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, TypeGuard

import msgspec

from projector.errors import BadRecord
from schemas.faults import Fault, Hint
from schemas.fields import LOWER_CASE, UUID_AS_0
from schemas.resources import ORGANIZATION, Kind


class Partition(NamedTuple):
    """A partition of a topic. Compares equal to aiokafka's TopicPartition."""

    topic: str
    partition: int


def count_by_topic(partitions: Iterable[Partition]) -> dict[str, int]:
    """Returns how many of these partitions each topic has: there may be too many to name them in a line of a log."""
    return dict(sorted(Counter(topic for topic, _ in partitions).items()))


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record. `timestamp` is Kafka's, in milliseconds since 1970; `value` is None for a tombstone.

    `problem` says why it could not be read from its batch, or which limit it exceeds. Such a record is bad, and its
    value is None although it is no tombstone. If a whole batch could not be read, it stands for all of its records: for
    `offsets` offsets, from its own on.

    `history` counts how often the topic was created again, or cut off, as far as that was noticed: offsets of one
    history say nothing about the order of records in another.
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


_ENTITY_KEY = UUID_AS_0 + b":" + UUID_AS_0
_UUID_LENGTH = len(UUID_AS_0)


def is_entity_key(key: bytes | None) -> TypeGuard[bytes]:
    """Returns whether it is the message key of an entity of an organization: both ids, in lower case."""
    return key is not None and key.translate(LOWER_CASE) == _ENTITY_KEY


def entity_key(record: Record) -> EntityKey:
    """Parse the message key of a record. Raises BadRecord.

    An id in upper case is bad as well: Kafka puts it into another partition than the same id in lower case, so the
    events of one entity would have no order.
    """
    key = record.key or b""
    is_organization = record.kind is ORGANIZATION
    if not (key.translate(LOWER_CASE) == UUID_AS_0 if is_organization else is_entity_key(key)):
        shape = "<organization_id>" if is_organization else "<organization_id>:<entity_id>"
        raise BadRecord(Fault("not_expected" if key else "missing", "key", f"{shape} with ids in lower case"))
    text = key.decode()
    return EntityKey(text[:_UUID_LENGTH], text[-_UUID_LENGTH:])


MAGIC = 0
"""The first byte of the frame."""
FRAME_BYTES = 5


class _ConnectEnvelope(msgspec.Struct):
    """What Kafka Connect's JsonConverter writes with `schemas.enable=true`."""

    schema: msgspec.Raw
    payload: msgspec.Raw


_CONNECT_ENVELOPE = msgspec.json.Decoder(_ConnectEnvelope)
_ENVELOPE = frozenset(("specversion", "data", "data_base64", "payload"))
"""Of these, an event or an envelope has one, and data alone has none."""
_NAMES = msgspec.json.Decoder(dict[str, msgspec.Raw])


def unframed(value: bytes) -> bytes:
    """Returns what follows the frame. Raises BadRecord if it is not a JSON object.

    Avro and Protobuf cannot be mistaken for one: the first byte of theirs is a count or a length, and `{` would be a
    negative one.
    """
    content = value[FRAME_BYTES:]
    if not content.lstrip().startswith(b"{"):
        raise BadRecord(Fault("registry_frame", expected="a JSON object"))
    return content


def hint(fault: Fault, record: Record) -> Hint | None:
    """Returns how Kafka Connect or the serializer has wrapped a record, if that is why it is bad."""
    if fault.path == "key" or fault.kind == "other_than_key":
        key = record.key or b""
        if key.startswith(b"\0"):
            return "framed_key"
        return "json_key" if key.startswith((b'"', b"{")) else None
    if fault.path.startswith("headers."):
        type_ = dict(record.headers).get("ce_type") or b""
        return "json_headers" if type_.startswith((b'"', b"{")) else None
    return hint_of_value(fault, record.value or b"")


def hint_of_value(fault: Fault, value: bytes) -> Hint | None:
    """Returns how the value of an event in structured mode is wrapped, or what it lacks as a whole."""
    content = value[FRAME_BYTES:] if value.startswith(b"\0") else value
    if content.startswith(b'"'):
        return "json_text"
    if (fault.kind, fault.path) == ("missing", "$.type") and _ENVELOPE.isdisjoint(_names(content)):
        return "data_alone"
    if b'"payload"' not in content:  # which is found in much less time
        return None
    try:
        envelope = _CONNECT_ENVELOPE.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return "json_text" if bytes(envelope.payload).startswith(b'"') else "connect_envelope"


def _names(content: bytes) -> Iterable[str]:
    try:
        return _NAMES.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _ENVELOPE
