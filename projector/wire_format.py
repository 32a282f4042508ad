"""How records are wrapped by producers that cannot choose: what is unwrapped, and what has to be set instead.

A value may have the frame of a schema registry (Confluent's wire format): a zero byte and the id of the schema in four
bytes, before the JSON that follows. The registry is never asked, because the contract is checked here. JSON never
begins with a zero byte, so other values cost one comparison.

Message keys are never unwrapped. Kafka chooses the partition by the bytes of the key, and compacts by them, so an
entity with two spellings of its key would have no order.
"""

import msgspec

from projector.errors import BadRecord
from projector.record import Record

MAGIC = 0
"""The first byte of the frame."""
_FRAME_BYTES = 5
_STRINGS = "org.apache.kafka.connect.storage.StringConverter"


class _ConnectEnvelope(msgspec.Struct):
    """What Kafka Connect's JsonConverter writes with `schemas.enable=true`."""

    schema: msgspec.Raw
    payload: msgspec.Raw


_CONNECT_ENVELOPE = msgspec.json.Decoder(_ConnectEnvelope)


def unframed(value: bytes) -> bytes:
    """Returns what follows the frame. Raises BadRecord if it is not a JSON object.

    Avro and Protobuf cannot be mistaken for one: the first byte of theirs is a count or a length, and `{` would be a
    negative one.
    """
    content = value[_FRAME_BYTES:]
    if not content.lstrip().startswith(b"{"):
        raise BadRecord(
            "the value has the frame of a schema registry, and what follows is not a JSON object: "
            "Avro and Protobuf are not read, so use the serializer for JSON Schema"
        )
    return content


def hint(reason: str, record: Record) -> str:
    """Returns what to set in Kafka Connect or in the serializer, if the wrapping is why the record is bad."""
    if "message key" in reason:
        return _for_key(record.key or b"")
    if reason.startswith("header "):
        type_ = dict(record.headers).get("ce_type") or b""
        return f". The headers are JSON: set header.converter={_STRINGS}" if type_.startswith((b'"', b"{")) else ""
    return _for_value(record.value or b"")


def _for_key(key: bytes) -> str:
    if key.startswith(b"\0"):
        return ". It has the frame of a schema registry: use a serializer for plain text (StringSerializer)"
    if key.startswith((b'"', b"{")):
        return f". It is JSON: use plain text, in Kafka Connect key.converter={_STRINGS}"
    return ""


def _for_value(value: bytes) -> str:
    content = value[_FRAME_BYTES:] if value.startswith(b"\0") else value
    if content.startswith(b'"'):
        return f". The event is inside a JSON string: set value.converter={_STRINGS}"
    if b'"payload"' not in content:  # which is found in much less time
        return ""
    try:
        envelope = _CONNECT_ENVELOPE.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    if bytes(envelope.payload).startswith(b'"'):
        return f". The event is inside a JSON string: set value.converter={_STRINGS}"
    return ". The event is inside an envelope of Kafka Connect: set value.converter.schemas.enable=false"
