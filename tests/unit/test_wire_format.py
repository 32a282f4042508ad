"""Records as producers wrap them that cannot choose: what is unwrapped, and what the reasons say about the rest."""

import msgspec
import orjson
import pytest

from projector.change import read, version_of
from projector.errors import BadRecord
from projector.interpret import interpret
from schemas import resources
from schemas.limits import MAX_CONTAINERS
from tests.harness import crm
from tests.harness.crm import Message

LEAD = crm.lead(7, seconds=5)
JSON = LEAD.value or b""
FRAME = b"\0\0\0\1\7"
IN_JSON = orjson.dumps(JSON.decode())
STRINGS = "org.apache.kafka.connect.storage.StringConverter"
SCHEMA_IDS = (("__value_schema_id", b"\1" + bytes(16)), ("__key_schema_id", b"\1" + bytes(16)))
FRAMED_OTHER = (
    "the value has the frame of a schema registry, and what follows is not a JSON object: "
    "Avro and Protobuf are not read, so use the serializer for JSON Schema"
)


def connect_envelope(payload: bytes) -> bytes:
    """Returns what Kafka Connect's JsonConverter writes by default."""
    return b'{"schema":{"type":"string","optional":false},"payload":' + payload + b"}"


def valued(value: bytes, message: Message = LEAD) -> Message:
    return msgspec.structs.replace(message, value=value)


def keyed(key: bytes) -> Message:
    return msgspec.structs.replace(LEAD, key=key)


def converted(wrap: bool) -> Message:
    """Returns the event in binary mode with headers from a JsonConverter, with or without schemas."""
    binary = crm.binary(LEAD)
    quoted = ((name, b'"%b"' % value) for name, value in binary.headers)
    headers = tuple((name, connect_envelope(value) if wrap else value) for name, value in quoted)
    return msgspec.structs.replace(binary, headers=headers)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(crm.framed(LEAD), id="structured"),
        pytest.param(crm.framed(crm.binary(LEAD)), id="binary"),
        pytest.param(valued(b"\0\xff\xff\xff\xff" + JSON), id="the highest id of a schema"),
        pytest.param(valued(FRAME + b" \n" + JSON), id="space after the frame"),
        pytest.param(
            msgspec.structs.replace(LEAD, headers=SCHEMA_IDS),
            id="the id of the schema in a header",
        ),
    ],
)
def test_the_frame_changes_nothing(message: Message) -> None:
    record = message.record()
    assert read(record) == read(LEAD.record())
    assert version_of(record) == 7


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x061.0\x04e1\x08/crm", id="Avro"),
        pytest.param(b"\0\n\x031.0\x12\x02e1", id="Protobuf"),
        pytest.param(IN_JSON, id="a JSON string"),
        pytest.param(b"[" + JSON + b"]", id="an array"),
        pytest.param(FRAME + JSON, id="a second frame"),
    ],
)
def test_anything_else_in_the_frame_is_bad(content: bytes) -> None:
    record = valued(FRAME + content).record()
    with pytest.raises(BadRecord) as raised:
        interpret(record)
    assert version_of(record) is None
    assert raised.value.reason.startswith(FRAMED_OTHER)
    assert raised.value.fault.label == "json"


def test_a_bad_event_in_the_frame_is_named_like_any_other() -> None:
    with pytest.raises(BadRecord) as raised:
        interpret(crm.framed(crm.lead(7, stage="x")).record())
    assert "`$.data.stage` is not valid: allowed are ACCEPTED" in raised.value.reason
    assert raised.value.reason.endswith("(event e1 of /crm)")
    assert raised.value.version == 7


def test_the_limits_hold_in_the_frame() -> None:
    many = crm.framed(crm.lead(attribution={"a": [[[]] * 999] * (MAX_CONTAINERS // 999 + 1)}))
    with pytest.raises(BadRecord, match="objects and arrays"):
        read(many.record())


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        pytest.param(
            keyed(FRAME + b'"%b"' % LEAD.key),
            ". It has the frame of a schema registry: use a serializer for plain text (StringSerializer)",
            id="a key in the frame of a registry",
        ),
        pytest.param(
            keyed(b'"%b"' % LEAD.key),
            f". It is JSON: use plain text, in Kafka Connect key.converter={STRINGS}",
            id="a key in quotes",
        ),
        pytest.param(
            keyed(connect_envelope(b'"%b"' % LEAD.key)),
            f". It is JSON: use plain text, in Kafka Connect key.converter={STRINGS}",
            id="a key with a schema",
        ),
        pytest.param(
            valued(IN_JSON), f". The event is inside a JSON string: set value.converter={STRINGS}", id="a JSON string"
        ),
        pytest.param(
            valued(connect_envelope(IN_JSON)),
            f". The event is inside a JSON string: set value.converter={STRINGS}",
            id="a JSON string with a schema",
        ),
        pytest.param(
            valued(connect_envelope(JSON)),
            ". The event is inside an envelope of Kafka Connect: set value.converter.schemas.enable=false",
            id="an event with a schema",
        ),
        pytest.param(
            converted(wrap=False), f". The headers are JSON: set header.converter={STRINGS}", id="headers in quotes"
        ),
        pytest.param(
            converted(wrap=True), f". The headers are JSON: set header.converter={STRINGS}", id="headers with a schema"
        ),
        pytest.param(keyed(b"1"), "", id="another key"),
        pytest.param(valued(b"x"), "", id="another value"),
        pytest.param(valued(b'{"payload":{}}'), "", id="another envelope"),
        pytest.param(crm.binary(crm.lead(version=0)), "", id="a bad value in binary mode"),
    ],
)
def test_the_reason_says_what_to_set(message: Message, hint: str) -> None:
    with pytest.raises(BadRecord) as raised:
        interpret(message.record())
    reason = raised.value.reason.partition(" (event ")[0]
    assert reason.endswith(hint) if hint else ". " not in reason, reason


def test_nothing_is_said_of_a_key_that_is_not_there() -> None:
    with pytest.raises(BadRecord, match=r"with ids in lower case \(event"):
        interpret(msgspec.structs.replace(LEAD.record(), key=None))


@pytest.mark.parametrize("kind", resources.KINDS)
def test_a_tombstone_is_never_framed(kind: resources.Kind) -> None:
    assert read(crm.tombstone(kind).record()).entity is None
