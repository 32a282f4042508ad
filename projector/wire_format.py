"""How records are wrapped by producers that cannot choose: what is unwrapped, and how the rest is recognized.

A value may have the frame of a schema registry (Confluent's wire format): a zero byte and the id of the schema in four
bytes, before the JSON that follows. The registry is never asked, because the contract is checked here. JSON never
begins with a zero byte, so other values cost one comparison.

Message keys are never unwrapped. Kafka chooses the partition by the bytes of the key, and compacts by them, so an
entity with two spellings of its key would have no order.
"""

import msgspec

from projector.errors import BadRecord
from projector.record import Record
from schemas.faults import Fault, Hint

MAGIC = 0
"""The first byte of the frame."""
_FRAME_BYTES = 5


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
        raise BadRecord(Fault("registry_frame", expected="a JSON object"))
    return content


def hint(fault: Fault, record: Record) -> Hint | None:
    """Returns how Kafka Connect or the serializer has wrapped a record, if that is why it is bad."""
    if fault.path == "key" or fault.kind == "other_than_key":
        return _of_key(record.key or b"")
    if fault.path.startswith("headers."):
        type_ = dict(record.headers).get("ce_type") or b""
        return "json_headers" if type_.startswith((b'"', b"{")) else None
    return _of_value(record.value or b"")


def _of_key(key: bytes) -> Hint | None:
    if key.startswith(b"\0"):
        return "framed_key"
    return "json_key" if key.startswith((b'"', b"{")) else None


def _of_value(value: bytes) -> Hint | None:
    content = value[_FRAME_BYTES:] if value.startswith(b"\0") else value
    if content.startswith(b'"'):
        return "json_text"
    if b'"payload"' not in content:  # which is found in much less time
        return None
    try:
        envelope = _CONNECT_ENVELOPE.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return "json_text" if bytes(envelope.payload).startswith(b'"') else "connect_envelope"
