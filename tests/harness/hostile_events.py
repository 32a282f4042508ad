"""What must be true of every record, whatever its bytes are; and valid events that contain what programs fail on."""

import json  # noqa: TID251 - as another reader than ours, and one that can be told to read what is not JSON
import re
from functools import cache
from typing import Any

import jsonschema_rs
import msgspec

from docs.generate.json_schema import event_schemas
from docs.generate.openapi import document
from projector import mapping
from projector.change import read
from projector.errors import BadRecord
from projector.record import Record
from schemas import resources
from tests.harness import crm
from tests.harness.crm import Message
from tests.harness.expected import documents_of

SECRET = "Zaphodia"
"""Represents personal data: the reason of a bad record must not quote it."""

VALID = [
    crm.lead(
        attribution={"a": [1, {"b": SECRET}], "n": 1.5},
        events=[{"id": crm.uuid(1), "starts_at": crm.at(5), "length_hours": 2.5, "guests": 3, "location": SECRET}],
        quote={"total": "1.50", "currency": "EUR"},
        counts={"notes": 1, "tasks": 0},
        tags=["x", SECRET],
        referrer=SECRET,
        assigned_to=crm.uuid(7),
        archived_at=crm.at(9),
    ),
    crm.contact(
        first_name=SECRET, custom_fields={"a": 1, "b": [SECRET], "c": None, "d": 0.5}, email="a@b.c", phone="1"
    ),
    crm.organization(rate_limits={"key": {"quota": 1, "window_seconds": 1}}),
    crm.api_key(expires_at=crm.at(1), name=SECRET),
    crm.deleted(resources.LEAD, 2),
]
VALID += [crm.binary(message) for message in VALID]
VALID += [crm.framed(VALID[0]), crm.framed(VALID[6])]

MORSELS: list[bytes] = [
    *b"null true false -0 -0.0 1.0 1e2 1e400 -1e400 1e-400 NaN Infinity -Infinity 007 +1 .5 1. 0x10".split(),
    *b'{} [] [[]] {"a":{}} [null] "" {"":""} {"a":1,"a":2} {,} [1,] //'.split(),
    *(str(2**power + 1).encode() for power in (31, 53, 63, 64, 1000)),
    *(b"9" * 4299, b"9" * 4400, b"0." + b"9" * 400, b'"' + b"9" * 65 + b'"'),
    *(
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\ud83d\\ude00"',
        b'"\\u0000"',
        b'"\\u2028"',
        b'"\\x41"',
        b'"\x00"',
        b'"\n"',
    ),
    *(b'"\xff"', b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b"\xef\xbb\xbf", b'"\xef\xbb\xbf"'),
    *('"\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}"'.encode(), '"e\u0301\u202e"'.encode(), b'"\'); DROP"', b'"${x}"'),
    *(b'"%s"' % SECRET.encode(), b'{"%s":"%s"}' % ((SECRET.encode(),) * 2), b'["%s",1]' % SECRET.encode()),
    *(
        b'"2026-01-01T00:00:00Z"',
        b'"0001-01-01T00:00:00+14:00"',
        b'"9999-12-31T23:59:59.999999-14:00"',
        b'"1e400"',
        b'"1e5"',
    ),
    *(b"[" * depth + b"]" * depth for depth in (99, 101, 300, 5000)),
    *(b'{"a":' * depth + b"1" + b"}" * depth for depth in (99, 100, 101, 300, 5000)),
    # Frames of schema registries: cut off, empty, two of them, around Avro, around Protobuf, of another version.
    *(b"\0", b"\0\0\0\0", b"\0\0\0\0\1", b"\0\0\0\0\1{}", b"\0\0\0\0\1\0\0\0\0\1{}", b"\0{}", b"\1\0\0\0\1{}"),
    *(b"\0\0\0\0\1\x061.0", b"\0\0\0\0\1\0\n\x031.0", b"\0\0\0\0\1 {", b"\0\0\0\0\1\xff"),
]
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9.]+|true|false|null|[\[{]')


def tokens(value: bytes) -> list[tuple[int, int]]:
    """Returns where each JSON token begins and ends."""
    return [match.span() for match in _TOKEN.finditer(value)]


def check(message: Message) -> str:
    """Returns whether a record is "good" or "bad". Raises AssertionError if it is neither or is not handled as such."""
    record = message.record()
    documents = documents_of([record])
    reason = _reason(record)
    if reason is not None:
        assert not documents
        assert SECRET not in reason
        return "bad"
    for (kind, *_), body in documents.items():
        document = json.loads(body.decode(), parse_constant=_no_number)
        assert msgspec.json.decode(body) == document
        _of_documents(kind).validate(document)
    if message.value is not None and "ce_specversion" not in dict(message.headers):
        event = _leniently(message.value)
        _of_events(event["type"]).validate(event)
    return "good"


def _reason(record: Record) -> str | None:
    """Returns why the record is bad; None if it is good."""
    try:
        mapping.intent(read(record), record)
    except BadRecord as error:
        return str(error)
    return None


def _leniently(value: bytes) -> Any:
    """Unknown fields are ignored, so text and numbers in them need not be valid."""
    text = value[5 if value.startswith(b"\0") else 0 :].decode(errors="replace")
    return json.loads(text, strict=False, parse_int=lambda digits: int(digits[:4300]))


def _no_number(text: str) -> Any:
    raise AssertionError(f"{text} is not JSON")


@cache
def _of_documents(kind: resources.Kind) -> jsonschema_rs.Validator:
    assert isinstance(kind, resources.Resource)
    name = kind.document.__name__
    components = document()["components"]
    return jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": components})


@cache
def _of_events(event_type: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(event_schemas()[event_type])
